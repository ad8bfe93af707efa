"""`onward` whose toy model sleeps in each step, as an engine does that waits for a GPU.

`python -m benchmarks.sleeping_server serve --model toy`; STEP_SECONDS in the environment is the time of a step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onward.cli.main import main as onward
from onward.engine.model import Hook, Row, nothing
from onward.runtimes.toy.model import ToyModel

STEP_SECONDS = "STEP_SECONDS"
NAME = "benchmarks.sleeping_server"

evaluate = ToyModel.evaluate


def evaluate_slowly(model: ToyModel, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
    """Sleep, then evaluate the step."""
    time.sleep(float(os.environ[STEP_SECONDS]))
    return evaluate(model, rows, before_compute)


def main() -> None:
    ToyModel.evaluate = evaluate_slowly  # type: ignore[method-assign,assignment]
    onward()


if __name__ == "__main__":
    main()
