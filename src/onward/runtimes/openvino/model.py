"""The engine's Model over a compiled paged graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.mapped import FileWatch
from onward.engine.model import Hook, Row, nothing
from onward.runtimes.openvino.evaluator import Evaluator
from onward.runtimes.openvino.kv_cache import KVTensors
from onward.runtimes.openvino.step_shape import STEP_SHAPE


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
