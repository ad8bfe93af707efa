"""Runs tapes: the compiled functions, the threads that walk them, and the context of a step."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from onward.kernels.code import Code
from onward.kernels.interpreter import COMPLETION_WORDS, CONTROL_QUIT, CONTROL_TAPE, CONTROL_WORDS
from onward.kernels.memory import address, untouched
from onward.kernels.records import CONTEXT, CONTEXT_WORDS, COUNTER_BYTES, OWN_BYTES
from onward.kernels.waiting import waiting

POINTER, INTEGER = ctypes.c_void_p, ctypes.c_int64


class Machine:
    """Walks one tape again and again, on the caller's thread and `threads` - 1 others, which sleep in between.

    One caller at a time. Close it before the memory that the tape points to is freed.
    """

    def __init__(self, code: Code, tape: NDArray[np.int64], *, rows: int, threads: int, scratch_bytes: int) -> None:
        """`rows`: the most rows of a step; `scratch_bytes`: per thread."""
        self._tape, self._threads = tape, threads
        self._counters = np.zeros((len(tape), COUNTER_BYTES // 8), np.int64)
        self._completion, self._control = np.zeros(COMPLETION_WORDS, np.int64), np.zeros(CONTROL_WORDS, np.int64)
        self._own = np.zeros((threads, OWN_BYTES // 8), np.int64)
        self._scratch = untouched(threads * scratch_bytes)
        self.tokens, self.positions, self.tables, self.logit_rows = (np.zeros(rows, np.int64) for _ in range(4))
        self._tiles = np.zeros((rows, 2), np.int64)
        self._context = np.zeros(CONTEXT_WORDS, np.int64)
        how = waiting()
        CONTEXT.set(
            self._context, rows=0, threads=threads, counters=address(self._counters), num_records=len(tape),
            completion=address(self._completion), threads_own=address(self._own),
            tokens=address(self.tokens), positions=address(self.positions), tables=address(self.tables),
            logit_rows=address(self.logit_rows), num_logit_rows=0, scratch=address(self._scratch),
            scratch_stride=scratch_bytes, tiles=address(self._tiles), num_tiles=0, wait=how.wait,
            wait_number=how.wait_number, wake=how.wake, wake_number=how.wake_number,
        )  # fmt: skip
        self._control[CONTROL_TAPE // 8] = address(tape)
        self._pointers = address(self._control), address(self._context)
        self._step = code.function("step", [POINTER, POINTER, INTEGER, INTEGER, INTEGER])
        work = code.function("work", [POINTER, POINTER, INTEGER])
        self._workers = [_started(work, (*self._pointers, number)) for number in range(1, threads)]

    @property
    def threads(self) -> int:
        return self._threads

    def step(self, rows: int, logit_rows: int, tiles: NDArray[np.int64]) -> None:
        """Walk the tape for the first rows of `tokens`, `positions`, `tables` and `logit_rows`. Releases the GIL."""
        self._tiles[: len(tiles)] = tiles
        self._step(*self._pointers, rows, logit_rows, len(tiles))

    def close(self) -> None:
        """End the threads. May be called again."""
        if not self._workers:
            return
        self._control[CONTROL_QUIT // 8] = 1
        self._control[CONTROL_TAPE // 8] = address(_NOTHING)
        self._step(*self._pointers, 0, 0, 0)
        for worker in self._workers:
            worker.join()
        self._workers = []


_NOTHING = np.zeros(16, np.int64)
"""A tape that ends at once."""


def _started(work: Callable[..., object], arguments: tuple[int, ...]) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, name=f"onward-compute-{arguments[-1]}", daemon=True)
    thread.start()
    return thread
