"""A real model whose output is forced to a script, to measure text that no small model could generate.

The model evaluates every step; then the logit of the scripted token is raised in each row of logits, so far that it is
sampled. The text is forced; steps, kernels, sampling and the engine's decisions are real.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onward.engine.job import Job
from onward.engine.model import Hook, ModelRunner, Row, nothing
from onward.engine.step import Engine

SCRIPT_BIAS = 60.0
"""Added to the logit of a scripted token: more than the differences within a row."""


class Script(NamedTuple):
    """The tokens forced on a sequence, the first of them at position `start`."""

    start: int
    tokens: Sequence[int]


class ScriptedModel:
    """Implements engine.model.Model around another. For the thread that drives the engine.

    `seconds` is the time that forcing took. A sequence without a script samples from the model's logits.
    """

    def __init__(self, model: ModelRunner) -> None:
        self._model = model
        self._scripts: dict[int, Script] = {}
        self.vocab_size = model.vocab_size
        self.context_length = model.context_length
        self.blocks = model.blocks
        self.shape = model.shape
        self.seconds = 0.0

    def add(self, engine: Engine, job: Job, script: Sequence[int]) -> None:
        """Submit a job of one choice to the engine and force `script` on it; () forces nothing."""
        engine.add(job)
        (sequence,) = (each for each in engine.scheduler.sequences() if each.job is job)
        if script:
            self._scripts[sequence.id] = Script(len(job.prompt), script)

    def clear_scripts(self) -> None:
        """Remove all scripts. Sequence ids are unique within an engine only, so two engines must not have scripts at
        a time."""
        self._scripts.clear()

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        """Evaluate a step as engine.model.Model does. Writes to the model's logits if they are writable, else to a
        copy."""
        logits = self._model.evaluate(rows, before_compute)
        if not self._scripts:
            return logits
        started = time.perf_counter()
        if not logits.flags.writeable:
            logits = logits.copy()
        first = 0
        for row in rows:
            if row.outputs:
                self._force(logits, first, row)
                first += row.outputs
        self.seconds += time.perf_counter() - started
        return logits

    def _force(self, logits: NDArray[np.float32], first: int, row: Row) -> None:
        script = self._scripts.get(row.sequence)
        if script is None:
            return
        next_index = row.start + len(row.tokens) - row.outputs + 1 - script.start
        for output in range(row.outputs):
            index = next_index + output
            if 0 <= index < len(script.tokens):
                logits[first + output, script.tokens[index]] += SCRIPT_BIAS

    def block_memory(self, block: int) -> Sequence[NDArray[np.uint8]]:
        return self._model.block_memory(block)

    def close(self) -> None:
        self._model.close()
