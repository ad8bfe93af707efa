"""Attention masks, in the forms from which OpenVINO's paged attention reads what a layer attends to."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.runtimes.openvino.graphs.nodes import broadcast, index, integers, join, number
from onward.runtimes.openvino.library import ops

_DROPPED = -65_504.0
"""What is added to a score that must not count: float16's lowest number."""


class Masks:
    """The causal mask, and the one with a window: nodes [batch, 1, tokens, all tokens], float32.

    `tokens` [batch, tokens] and `attention_mask` [batch, all tokens] are the graph's inputs; `batch` is int64 [1].
    """

    def __init__(self, tokens: Any, attention_mask: Any, batch: Any, window: int) -> None:
        total = ops.gather(ops.shape_of(attention_mask), index(1), index(0))
        length = ops.gather(ops.shape_of(tokens), index(1), index(0))
        past = ops.subtract(total, length)
        query = _with_axes(ops.range(past, total, index(1), "i64"), 0, 0, 3)
        key = _with_axes(ops.range(index(0), total, index(1), "i64"), 0, 0, 0)
        self._shape = join(batch, integers(1), ops.unsqueeze(length, index(0)), ops.unsqueeze(total, index(0)))
        self._end = ops.unsqueeze(total, index(0))
        causal = ops.less_equal(key, query)
        self.causal = self._scores(causal)
        self.windowed = self._scores(_within(key, query, causal, window)) if window else None

    def _scores(self, kept: Any) -> Any:
        """Return 0 where a boolean node is true, _DROPPED elsewhere."""
        whole = ops.select(broadcast(kept, self._shape), number(0.0), number(_DROPPED))
        return ops.slice(whole, integers(0), self._end, integers(1), integers(3))


def _within(key: Any, query: Any, causal: Any, window: int) -> Any:
    """Return where a key is one of the last `window` before a query. The transformation to paged attention finds the
    window in this form only: a comparison with query - window, inside four Ands (as exporters write gpt-oss)."""
    true = ops.constant(np.asarray(True))
    near = ops.greater(key, ops.add(query, index(-window)))
    inner = ops.bitwise_and(ops.bitwise_and(true, near), causal)
    return ops.bitwise_and(ops.bitwise_and(true, inner), true)


def _with_axes(vector: Any, *axes: int) -> Any:
    """Return a vector with three more axes, inserted one after the other."""
    for axis in axes:
        vector = ops.unsqueeze(vector, index(axis))
    return vector
