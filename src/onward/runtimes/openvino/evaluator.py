"""Steps on a compiled graph: rows in, logits out, in calls of the sizes that a window allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onward.engine.model import Row
from onward.runtimes.openvino.batch import Batch
from onward.runtimes.openvino.library import ov
from onward.runtimes.openvino.window import Window


class Evaluator:
    """Engine thread only; owns the request's inputs, but for the caches."""

    def __init__(self, request: ov.InferRequest, batch: Batch, vocab_size: int) -> None:
        self.request = request
        self._batch, self._vocab_size = batch, vocab_size
        self._window = Window()

    def use(self, window: Window) -> Evaluator:
        """This evaluator, with calls of that window from now on."""
        self._window = window
        self._batch.least = window.least
        return self

    def evaluate(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """See engine.model.Model. A view of OpenVINO's memory, or a copy where the step took several calls."""
        pieces = self._window.pieces(rows)
        if len(pieces) == 1:
            return self._call(rows)
        return np.concatenate([self._call(piece).copy() for piece in pieces])

    def _call(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        wanted = self._batch.fill(rows)
        logits: NDArray[np.float32] = self.request.infer(share_outputs=True)[0]
        return logits.reshape(-1, self._vocab_size)[:wanted]
