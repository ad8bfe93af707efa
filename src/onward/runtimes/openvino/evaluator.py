"""Steps on a compiled graph: rows in, logits out, in calls of the sizes that a window allows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from onward.engine.model import Hook, Row, nothing
from onward.runtimes.openvino.batch import Batch
from onward.runtimes.openvino.contest import Contest
from onward.runtimes.openvino.library import ov
from onward.runtimes.openvino.window import Window

SMALL_STEP = 32
"""Tokens of a step that may go through the small lane."""


class Lane:
    """A compiled graph's request with its inputs."""

    def __init__(self, request: ov.InferRequest, batch: Batch) -> None:
        self.request, self.batch = request, batch

    def evaluate(self, rows: Sequence[Row], vocab_size: int, before_compute: Hook = nothing) -> NDArray[np.float32]:
        """Logits of the rows that are read: a view of OpenVINO's memory."""
        wanted = self.batch.fill(rows)
        before_compute()
        logits: NDArray[np.float32] = self.request.infer(share_outputs=True)[0]
        return logits.reshape(-1, vocab_size)[:wanted]


class Evaluator:
    """Engine thread only; owns the requests' inputs, but for the caches, which both lanes share.

    `small`, if there is one, is for steps of few tokens, where it is faster; it must give the same bits.
    """

    def __init__(self, lane: Lane, vocab_size: int) -> None:
        self.lane = lane
        self.small: Lane | None = None
        self.window = Window()
        self._vocab_size = vocab_size
        self._contests: dict[tuple[int, int], Contest] = {}
        """By tokens and rows of a step."""

    def use(self, window: Window) -> Evaluator:
        """This evaluator, with calls of that window from now on."""
        self.window = window
        self.lane.batch.least = window.least
        return self

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        """See engine.model.Model. A view of OpenVINO's memory, or a copy where the step took several calls."""
        pieces = self.window.pieces(rows)
        if len(pieces) == 1:
            return self._call(rows, before_compute)
        hooks = chain([before_compute], repeat(nothing))
        return np.concatenate([self._call(piece, hook).copy() for piece, hook in zip(pieces, hooks, strict=False)])

    def _call(self, rows: Sequence[Row], before_compute: Hook) -> NDArray[np.float32]:
        tokens = sum(len(row.tokens) for row in rows)
        if self.small is None or tokens > SMALL_STEP:
            return self.lane.evaluate(rows, self._vocab_size, before_compute)
        contest = self._contests.setdefault((tokens, len(rows)), Contest())
        begin = 0.0

        def start() -> None:
            nonlocal begin
            before_compute()
            begin = time.perf_counter()

        logits = (self.small, self.lane)[contest.way].evaluate(rows, self._vocab_size, start)
        contest.took(time.perf_counter() - begin)
        return logits
