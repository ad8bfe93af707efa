"""A real model made to say what a benchmark wants, so that text which no small model could write costs what it costs.

Every step is evaluated by the model; then the logit of the scripted token is raised in each row of logits, far enough
that the sampler draws it. The text is forced; steps, kernels, sampling and the engine's decisions are real.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onward.engine.job import Job
from onward.engine.model import Hook, Model, Row, nothing
from onward.engine.step import Engine

FORCE = 60.0
"""Added to a scripted token's logit: more than logits of one row differ by."""


class Script(NamedTuple):
    """What a sequence is to say: `tokens`, the first of them at position `start`."""

    start: int
    tokens: Sequence[int]


class ScriptedModel:
    """Implements engine.model.Model around another. Owned by the caller, who drives the engine: no threads.

    `seconds` counts what forcing took. A sequence without a script says what the model says.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._scripts: dict[int, Script] = {}
        self.vocab_size = model.vocab_size
        self.context_length = model.context_length
        self.blocks = model.blocks
        self.shape = model.shape
        self.seconds = 0.0

    def add(self, engine: Engine, job: Job, script: Sequence[int]) -> None:
        """Hand the engine a job of one choice that is going to say `script`; () lets it speak freely."""
        engine.add(job)
        (sequence,) = (each for each in engine.scheduler.sequences() if each.job is job)
        if script:
            self._scripts[sequence.id] = Script(len(job.prompt), script)

    def forget(self) -> None:
        """Drop all scripts: sequence ids are an engine's own, so no two engines may have scripts at a time."""
        self._scripts.clear()

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        """See engine.model.Model. Writes into the model's view of logits where it may, else into a copy."""
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
        next_place = row.start + len(row.tokens) - row.outputs + 1 - script.start
        for output in range(row.outputs):
            place = next_place + output
            if 0 <= place < len(script.tokens):
                logits[first + output, script.tokens[place]] += FORCE

    def copy_block(self, source: int, target: int) -> None:
        self._model.copy_block(source, target)

    def close(self) -> None:
        self._model.close()
