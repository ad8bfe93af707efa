"""The engine's Model over a compiled paged graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onward.engine.model import Hook, Row, StepShape, nothing
from onward.runtimes.openvino.evaluator import Evaluator
from onward.runtimes.openvino.kv_cache import KVCache


class OpenVINOModel:
    """Implements engine.model.Model. Made by `load_model`; engine thread only.

    `blocks` leaves out the scratch block of the padding rows; `kv_bytes` counts it. `notes` are sentences for
    the operator: what was lowered, what was guessed. `fingerprint` changes with whatever may change results.
    """

    def __init__(
        self,
        name: str,
        evaluator: Evaluator,
        cache: KVCache,
        *,
        vocab_size: int,
        context_length: int,
        fingerprint: str,
        notes: Sequence[str],
    ) -> None:
        self.name = name
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.blocks = cache.blocks
        self.shape = StepShape()
        self.block_bytes = cache.block_bytes
        self.kv_bytes = cache.bytes
        self.fingerprint = fingerprint
        self.notes = list(notes)
        self._parts: tuple[Evaluator, KVCache] | None = (evaluator, cache)

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        """See engine.model.Model. The view's memory is OpenVINO's; `rows` may be mixed in any way."""
        return self._open()[0].evaluate(rows, before_compute)

    def copy_block(self, source: int, target: int) -> None:
        self._open()[1].copy_block(source, target)

    def close(self) -> None:
        """Free the weights and the KV cache. May be called again; views of logits must be gone."""
        self._parts = None

    def _open(self) -> tuple[Evaluator, KVCache]:
        if self._parts is None:
            raise RuntimeError("The model is closed.")
        return self._parts
