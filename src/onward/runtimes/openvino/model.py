"""The engine's Model over a compiled paged graph: rows in, logits out, in calls of the sizes that a window allows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.mapped import FileWatch
from onward.engine.model import Hook, Row, nothing
from onward.runtimes.openvino.batch import Batch
from onward.runtimes.openvino.kv_cache import KVTensors
from onward.runtimes.openvino.library import ov
from onward.runtimes.openvino.window import STEP_SHAPE, Window


class Evaluator:
    """Runs steps on a compiled graph. Owns the inputs of its request, except for the KV cache. Engine thread only."""

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


class OpenVINOModel:
    """Implements engine.model.ModelRunner. Created by `load_model`; engine thread only.

    `blocks` does not count the scratch block of the padding rows. `notes` are sentences for the operator: what was
    lowered, what was assumed. `weights` is the memory that the graph's constants share, `watch` that of their
    file. `fingerprint` changes with whatever may change results.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        cache: KVTensors,
        weights: NDArray[np.uint8],
        watch: FileWatch,
        *,
        vocab_size: int,
        context_length: int,
        fingerprint: str,
        notes: Sequence[str],
    ) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.blocks = cache.blocks
        self.shape = STEP_SHAPE
        self.fingerprint = fingerprint
        self.notes = list(notes)
        self._watch = watch
        self._parts: tuple[Evaluator, KVTensors, NDArray[np.uint8]] | None = (evaluator, cache, weights)

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        """Return logits, float32 [outputs, vocab_size]: a view of OpenVINO's memory, valid until the next call.

        See engine.model.ModelRunner. Raises RuntimeError if OpenVINO fails, the model is closed or its weights were
        written to.
        """
        logits = self._open()[0].evaluate(rows, before_compute)
        self._watch.require_unchanged()
        return logits

    def block_memory(self, block: int) -> list[NDArray[np.uint8]]:
        return self._open()[1].block_memory(block)

    def close(self) -> None:
        """Free the weights and the KV cache. May be called again; no view of logits may be in use."""
        self._parts = None
        self._watch.close()

    def _open(self) -> tuple[Evaluator, KVTensors, NDArray[np.uint8]]:
        if self._parts is None:
            raise RuntimeError("The model is closed.")
        return self._parts
