"""Steps on a compiled graph: rows in, logits out, in calls of the sizes that a window allows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from onward.engine.model import Hook, Row, nothing
from onward.runtimes.openvino.batch import Batch
from onward.runtimes.openvino.library import ov
from onward.runtimes.openvino.window import Window


class Evaluator:
    """Engine thread only. Owns the inputs of a compiled graph's request, except for the KV cache."""

    def __init__(self, request: ov.InferRequest, batch: Batch, vocab_size: int) -> None:
        self.window = Window()
        self._request, self._batch, self._vocab_size = request, batch, vocab_size

    def use(self, window: Window) -> Evaluator:
        """Split and pad all later steps as `window` says. Returns this evaluator."""
        self.window = window
        self._batch.min_tokens = window.min_tokens
        return self

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        """Return logits, float32 [outputs, vocab_size]; see engine.model.ModelRunner.

        A view of OpenVINO's memory until the next call, or a copy where the step took several calls. Raises
        RuntimeError if OpenVINO fails or a block table is too short, MemoryError if the memory does not suffice.
        """
        calls = self.window.split(rows)
        if len(calls) == 1:
            return self._call(rows, before_compute)
        hooks = chain([before_compute], repeat(nothing))
        return np.concatenate([self._call(part, hook).copy() for part, hook in zip(calls, hooks, strict=False)])

    def _call(self, rows: Sequence[Row], before_compute: Hook) -> NDArray[np.float32]:
        count = self._batch.fill(rows)
        before_compute()
        logits: NDArray[np.float32] = self._request.infer(share_outputs=True)[0]
        if logits.size < count * self._vocab_size:
            raise MemoryError  # what OpenVINO returns, without an error, where it could not allocate
        return logits.reshape(-1, self._vocab_size)[:count]
