"""`onward serve` whose engines crash when they compute FATAL: `python -m tests.journeys.fatal_engine serve …`.

An engine in a process of its own ends by SIGSEGV, one in a thread by an exception.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onward.cli.main import main as onward
from onward.compose import spare, worker
from onward.engine.model import Hook, Row, nothing
from onward.runtimes.toy.model import ToyModel

FATAL = "~"
NAME = "tests.journeys.fatal_engine"
IS_WORKER = sys.argv[1:] == ["worker"]

evaluate = ToyModel.evaluate


def evaluate_or_crash(model: ToyModel, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
    """Announce the step, as runtimes do, then crash if it has the token."""
    if any(ord(FATAL) in row.tokens for row in rows):
        before_compute()
        if IS_WORKER:
            os.kill(os.getpid(), signal.SIGSEGV)
        raise RuntimeError("a fatal token")
    return evaluate(model, rows, before_compute)


def main() -> None:
    ToyModel.evaluate = evaluate_or_crash  # type: ignore[method-assign,assignment]
    if IS_WORKER:
        worker.main()
    else:
        spare.WORKER = (sys.executable, "-m", NAME, "worker")
        onward()


if __name__ == "__main__":
    main()
