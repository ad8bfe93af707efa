"""Runs tapes: the compiled functions, the threads that walk them, and the context of a step."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from onward.kernels.attention_plan import AttentionPlan
from onward.kernels.code import Code
from onward.kernels.interpreter import (
    COMPLETION_WORDS,
    CONTROL_QUIT,
    CONTROL_WORDS,
    NUM_OPERATIONS,
    STEP_FIELDS,
    Kernels,
)
from onward.kernels.memory import address, untouched
from onward.kernels.parts import Part
from onward.kernels.records import CONTEXT, CONTEXT_WORDS, COUNTER_BYTES, OWN, OWN_BYTES, PIECE_MASK, RUN_BYTES
from onward.kernels.waiting import waiting

POINTER, INTEGER = ctypes.c_void_p, ctypes.c_int64


class WeightSource(Protocol):
    """Has the weights of a part in memory, from `acquire` to `release`."""

    def acquire(self, index: int) -> None: ...
    def release(self, index: int) -> None: ...


class Machine:
    """Walks tapes again and again, part by part, on the caller's thread and `threads` - 1 others, which sleep in
    between.

    One caller at a time. Close it before the memory that the tape points to is freed.
    """

    def __init__(
        self,
        code: Code,
        tape: Sequence[Part],
        weights: WeightSource,
        kernels: Kernels,
        *,
        rows: int,
        positions: int,
        threads: int,
        scratch_bytes: int,
        growth: int = 1,
        log_stride: int = 0,
    ) -> None:
        """`tape`: the parts of the first tape; `kernels`: what the code was compiled for; `rows`: the most rows of a
        step; `positions`: of a sequence; `scratch_bytes`: per thread; `growth`: how many times as many records the
        parts of other tapes may have; `log_stride`: of the log of drafts, where sequences have states."""
        self._weights = weights
        longest = max(len(part.records) for part in tape)
        self._counters = np.zeros((longest * growth, COUNTER_BYTES // 8), np.int64)
        self._retired: list[tuple[int, Sequence[Part]]] = []
        self._completion, self._control = np.zeros(COMPLETION_WORDS, np.int64), np.zeros(CONTROL_WORDS, np.int64)
        self._own = np.zeros((threads, OWN_BYTES // 8), np.int64)
        self._scratch = untouched(threads * scratch_bytes)
        self.tokens, self.positions, self.tables = (np.zeros(rows, np.int64) for _ in range(3))
        self.runs = np.zeros((rows, RUN_BYTES // 8), np.int64)
        """records.RUN of each sequence of a step; used by models whose sequences have states."""
        self._plan = AttentionPlan(kernels.attention, rows, positions, threads)
        self._operations = np.zeros(NUM_OPERATIONS, np.int64)
        for number, name in kernels.operations().items():
            self._operations[number] = code.address(name)
        self._context = np.zeros(CONTEXT_WORDS, np.int64)
        how = waiting()
        CONTEXT.set(
            self._context, rows=0, threads=threads, counters=self._counters, num_records=longest,
            completion=self._completion, threads_own=self._own, tokens=self.tokens, positions=self.positions,
            tables=self.tables, scratch=self._scratch, scratch_stride=scratch_bytes, wait=how.wait,
            wait_number=how.wait_number, wake=how.wake, wake_number=how.wake_number, num_tiles=0, are_heads_together=0,
            num_merged=0, operations=self._operations, runs=self.runs, num_runs=0, log_stride=log_stride,
            **self._plan.memory(),
        )  # fmt: skip
        self._pointers = address(self._control), address(self._context)
        self._step = code.function("step", [POINTER, POINTER, INTEGER] + [INTEGER] * len(STEP_FIELDS))
        work = code.function("work", [POINTER, POINTER, INTEGER])
        kept = (code, self._control, self._context, self._completion, self._counters, self._own, self._operations)
        self._workers = [_started(work, (*self._pointers, number), kept) for number in range(1, threads)]

    def plan(self, rows: int) -> None:
        """Share the attention of the first rows of `positions` and `tables` among the threads."""
        self._plan.make(self.tables[:rows], self.positions[:rows])

    def accept(self, tape: Sequence[Part]) -> None:
        """Have room for another tape. Raises ValueError if it is too long. Between steps."""
        longest = max(len(part.records) for part in tape)
        if longest > len(self._counters):
            raise ValueError(f"A tape of {longest} records was accepted by a machine for {len(self._counters)}.")
        known = int(self._context[CONTEXT.offset("num_records") // 8])
        CONTEXT.set(self._context, num_records=max(longest, known))

    def retire(self, tape: Sequence[Part]) -> None:
        """Keep a tape that is no longer walked for as long as a late thread may read it. Between steps."""
        self._retired.append((int(self._control[0]) & PIECE_MASK, tape))
        begun = self._own[1:, OWN.offset("step") // 8]
        self._retired = [each for each in self._retired if len(begun) and begun.min() <= each[0]]

    def step(self, rows: int, tape: Sequence[Part], following: Sequence[Part] = (), *, runs: int = 0) -> None:
        """Walk a tape for the first rows of `tokens`, `positions`, `tables`, as planned, and of `runs`. `following`:
        what is walked next; weights that it needs first stay. Releases the GIL."""
        plan = self._plan
        fields = rows, plan.num_tiles, plan.are_heads_together, plan.num_merged, runs
        kept = following[0].needs if following else None
        for part in tape:
            if part.needs is not None:
                self._weights.acquire(part.needs)
            self._step(*self._pointers, address(part.records), *fields)
            if part.needs not in (None, kept):
                self._weights.release(part.needs)

    def close(self) -> None:
        """End the threads. May be called again."""
        if not self._workers:
            return
        self._control[CONTROL_QUIT // 8] = 1
        self._step(*self._pointers, address(_NOTHING), *[0] * len(STEP_FIELDS))
        for worker in self._workers:
            worker.join()
        self._workers = []


_NOTHING = np.zeros(16, np.int64)
"""A tape that ends at once."""


def _started(work: Callable[..., object], arguments: tuple[int, ...], kept: object) -> threading.Thread:
    """Start a thread that keeps what it reads while it sleeps: its machine may be collected without being closed."""

    def run(kept: object) -> None:
        work(*arguments)

    name = f"onward-compute-{arguments[-1]}"
    thread = threading.Thread(target=run, args=(kept,), name=name, daemon=True)
    thread.start()
    return thread
