"""Rotary positions: tables of cosines and sines, and their use on queries and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.checkpoints.architecture import Rope
from onward.runtimes.openvino.graphs.nodes import END, broadcast, index, integers, join, number, scaled
from onward.runtimes.openvino.library import ops


@dataclass(frozen=True, slots=True)
class Tables:
    """Cosines and sines by position, nodes of shape [batch, 1, tokens, size]."""

    size: int
    cosines: Any
    sines: Any


def rope_tables(rope: Rope, positions: Any, batch: Any) -> Tables:
    """Return the tables for `positions` [batch, tokens] in the form that OpenVINO fuses. `batch`: int64 [1]."""
    frequencies = rope.inverse_frequencies().astype(np.float32).reshape(1, -1, 1)
    by_row = ops.convert(ops.unsqueeze(positions, integers(1)), "f32")
    angles = ops.matmul(
        broadcast(ops.constant(frequencies), join(batch, integers(1), integers(1))), by_row, False, False
    )
    both = ops.transpose(angles, integers(0, 2, 1))
    doubled = ops.concat([both, both], -1)
    cosines, sines = (scaled(each, rope.magnitude) for each in (ops.cos(doubled), ops.sin(doubled)))
    return Tables(rope.size, ops.unsqueeze(cosines, integers(1)), ops.unsqueeze(sines, integers(1)))


def rotated(node: Any, tables: Tables, head_size: int) -> Any:
    """Return queries or keys, [batch, heads, tokens, head size], with their first dimensions rotated."""
    if tables.size == head_size:
        return _rotated(node, tables)
    turned, kept = ops.variadic_split(node, index(3), integers(tables.size, -1)).outputs()
    return ops.concat([_rotated(turned, tables), kept], -1)


def _rotated(node: Any, tables: Tables) -> Any:
    half = tables.size // 2
    second = ops.slice(node, integers(half), integers(END), integers(1), integers(3))
    first = ops.slice(node, integers(0), integers(half), integers(1), integers(3))
    swapped = ops.concat([ops.multiply(second, number(-1.0)), first], -1)
    return ops.add(ops.multiply(node, tables.cosines), ops.multiply(swapped, tables.sines))
