"""`onward serve` whose engines fail when they are ordered to: `python -m tests.chaos.faulty_engine serve …`.

An order is a file in the folder that the environment variable CHAOS_ORDERS names: the engine that finds it before a
step removes it and fails in that step. Prompts that contain one of the markers make it fail without an order.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from onward.compose import spare, worker
from onward.engine.model import Hook, Row, nothing
from onward.engines.child.worker import Description, run_worker
from onward.model_files.base import Progress

if TYPE_CHECKING:
    from onward.engine.client import EngineInfo
    from onward.engine.step import Engine

NAME = "tests.chaos.faulty_engine"
ORDERS = "CHAOS_ORDERS"
ORDER_FILE = "order"
HANG_SECONDS = 3600

NOT_FINITE, NO_MEMORY, FATAL = 1, 2, 3
"""Markers: tokens that no other request of the tests contains and that the toy model does not sample."""
SPOILED_POSITION = 40
"""Logits of a prompt with NOT_FINITE are NaN from this position on: in its prefill or later, as its length has it."""

Evaluate = Callable[[Sequence[Row], Hook], NDArray[np.float32]]


class Panic(BaseException):
    """As a library written in Rust raises it."""


class Faulty:
    """Wraps a model's `evaluate`."""

    def __init__(self, evaluate: Evaluate, folder: Path) -> None:
        self._evaluate = evaluate
        self._order = folder / ORDER_FILE
        self._not_finite: set[int] = set()
        """Sequences whose prompt contains NOT_FINITE."""

    def __call__(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        order, moment = self._take_order()
        if moment == "before":
            FAULTS[order]()
        if any(FATAL in row.tokens for row in rows):
            before_compute()  # as runtimes do, so that the previous step's results are delivered
            FAULTS["segv"]()
        if _is_largest(NO_MEMORY, rows):
            _run_out_of_memory()
        logits = self._evaluate(rows, before_compute)
        self._spoil(rows, logits)
        if moment == "after":
            FAULTS[order]()
        return logits

    def _take_order(self) -> tuple[str, str]:
        if not self._order.exists():
            return "", ""
        order, moment = self._order.read_text(encoding="utf-8").split()
        self._order.unlink()
        return order, moment

    def _spoil(self, rows: Sequence[Row], logits: NDArray[np.float32]) -> None:
        """Set logits of sequences with NOT_FINITE to NaN. `logits`: float32 [sum of outputs, vocab_size]."""
        first = 0
        for row in rows:
            if NOT_FINITE in row.tokens:
                self._not_finite.add(row.sequence)
            if row.sequence in self._not_finite and row.start + len(row.tokens) > SPOILED_POSITION:
                logits[first : first + row.outputs] = np.nan
            first += row.outputs


def _is_largest(token: int, rows: Sequence[Row]) -> bool:
    """Whether the row with the token has more outputs than any other; the engine then ends that row's job."""
    marked = [row.outputs for row in rows if token in row.tokens]
    return bool(marked) and marked[0] > max((row.outputs for row in rows if token not in row.tokens), default=0)


def _run_out_of_memory() -> None:
    """Fail an allocation as a memory limit does."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    num_bytes = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, before[1]))
    try:
        np.empty(1 << 32, np.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _raise(error: type[BaseException]) -> None:
    raise error("ordered")


def _write_garbage() -> None:
    """Write bytes to the server that are not a frame."""
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.write(fd, b"\xff" * 64)
        except OSError:
            continue
    time.sleep(HANG_SECONDS)


FAULTS: dict[str, Callable[[], object]] = {
    "segv": lambda: ctypes.memset(8, 0, 1),
    "exception": lambda: _raise(RuntimeError),
    "panic": lambda: _raise(Panic),
    "exit": lambda: os._exit(3),
    "garbage": _write_garbage,
    "hang": lambda: time.sleep(HANG_SECONDS),
    "hang_with_lock": lambda: ctypes.PyDLL(None).sleep(HANG_SECONDS),
}
"""What can be ordered: each ends or stops the engine for good."""


def load(description: Description, progress: Progress) -> tuple[Engine, EngineInfo]:
    """As `onward.compose.worker.load`, with a model that follows orders."""
    engine, info = worker.load(description, progress)
    faulty = Faulty(engine.model.evaluate, Path(os.environ[ORDERS]))
    engine.model.evaluate = faulty  # type: ignore[method-assign]
    return engine, info


def main() -> None:
    if sys.argv[1:] == ["worker"]:
        os._exit(run_worker(load))
    from onward.cli.main import main as onward

    spare.WORKER = (sys.executable, "-m", NAME, "worker")
    onward()


if __name__ == "__main__":
    main()
