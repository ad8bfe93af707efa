"""Small helpers over OpenVINO's operations. Nodes are of type Any: OpenVINO has no types for checkers."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.runtimes.openvino.library import ops

END = 2**63 - 1
"""The end of an axis, in a Slice."""


def integers(*values: int) -> Any:
    """Return a constant vector, int64."""
    return ops.constant(np.asarray(values, np.int64))


def index(value: int) -> Any:
    """Return a constant scalar, int64."""
    return ops.constant(np.asarray(value, np.int64))


def number(value: float) -> Any:
    """Return a constant scalar, float32."""
    return ops.constant(np.asarray(value, np.float32))


def scaled(node: Any, factor: float) -> Any:
    """Return the node times a number; the node itself for one."""
    return node if factor == 1 else ops.multiply(node, number(factor))


def join(*parts: Any) -> Any:
    """Return vectors joined to one: the shape of something."""
    return ops.concat(list(parts), 0)


def broadcast(node: Any, shape: Any) -> Any:
    """Return the node in a shape that its own and `shape` broadcast to."""
    return ops.broadcast(node, shape, broadcast_spec="BIDIRECTIONAL")
