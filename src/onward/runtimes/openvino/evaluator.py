"""Steps on a compiled graph: rows in, logits out, in calls of the sizes that a window allows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from onward.engine.model import Hook, Row, nothing
from onward.runtimes.openvino.batch import Batch
from onward.runtimes.openvino.lane_tuner import LaneTuner
from onward.runtimes.openvino.library import ov
from onward.runtimes.openvino.window import Window

MAX_SMALL_STEP_TOKENS = 32
"""Tokens of a step up to which the small lane is tried."""


class Lane:
    """A compiled graph's request with its inputs."""

    def __init__(self, request: ov.InferRequest, batch: Batch) -> None:
        self.request, self.batch = request, batch

    def evaluate(self, rows: Sequence[Row], vocab_size: int, before_compute: Hook = nothing) -> NDArray[np.float32]:
        """Return logits, float32 [outputs, vocab_size]: a view of OpenVINO's memory until the next call.

        Raises RuntimeError if OpenVINO fails or a block table is too short, MemoryError if the memory does not suffice.
        """
        count = self.batch.fill(rows)
        before_compute()
        logits: NDArray[np.float32] = self.request.infer(share_outputs=True)[0]
        if logits.size < count * vocab_size:
            raise MemoryError  # what OpenVINO returns where it could not allocate, without a word
        return logits.reshape(-1, vocab_size)[:count]


class Evaluator:
    """Engine thread only. Owns the inputs of its lanes, except for the KV cache, which they share.

    `small_lane`, where there is one, is tried for steps of few tokens; it must produce the same bits as `lane`.
    """

    def __init__(self, lane: Lane, vocab_size: int) -> None:
        self.lane = lane
        self.small_lane: Lane | None = None
        self.window = Window()
        self._vocab_size = vocab_size
        self._tuners: dict[tuple[int, int], LaneTuner] = {}
        """By number of tokens and rows in a step."""

    def use(self, window: Window) -> Evaluator:
        """Split and pad all later steps as `window` says. Returns this evaluator."""
        self.window = window
        self.lane.batch.min_tokens = window.min_tokens
        return self

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        """Return logits, float32 [outputs, vocab_size]; see engine.model.ModelRunner.

        A view of OpenVINO's memory until the next call, or a copy where the step took several calls.
        """
        calls = self.window.split(rows)
        if len(calls) == 1:
            return self._call(rows, before_compute)
        hooks = chain([before_compute], repeat(nothing))
        return np.concatenate([self._call(part, hook).copy() for part, hook in zip(calls, hooks, strict=False)])

    def _call(self, rows: Sequence[Row], before_compute: Hook) -> NDArray[np.float32]:
        tokens = sum(len(row.tokens) for row in rows)
        if self.small_lane is None or tokens > MAX_SMALL_STEP_TOKENS:
            return self.lane.evaluate(rows, self._vocab_size, before_compute)
        tuner = self._tuners.setdefault((tokens, len(rows)), LaneTuner())
        begin = 0.0

        def start_clock() -> None:
            nonlocal begin
            before_compute()
            begin = time.perf_counter()

        logits = (self.small_lane, self.lane)[tuner.lane].evaluate(rows, self._vocab_size, start_clock)
        tuner.record(time.perf_counter() - begin)
        return logits
