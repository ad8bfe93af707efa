"""Compressed weights in a graph: how many inputs share a scale, and what that means for OpenVINO's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.runtimes.openvino.library import ops, ov

DEFAULT_GROUP = 32
"""Activations that share a scale by the plugin's default."""
_LARGER_GROUP = 64
_FLOAT32 = "f32"
_FLOAT32_KEY = ["runtime_options", "INFERENCE_PRECISION_HINT"]
_MAX_UNSPLIT_INPUTS = 1024
KERNEL_BLOCK = 16
"""Inputs that kernels process at once."""


def activation_group(core: ov.Core, model: ov.Model) -> int | None:
    """Return how many inputs share a scale where activations are quantised; None: OpenVINO's default.

    64 instead of its 32 makes 8 and more rows a sixth faster and errors about a seventh larger. A layer whose
    weights have groups that the number does not divide would silently not be quantised, which is half as fast.
    Processors other than x86 have other defaults, for other kernels; a model may state a size of its own.
    """
    is_stated = model.has_rt_info(["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    if is_stated or core.get_property("CPU", "DYNAMIC_QUANTIZATION_GROUP_SIZE") != DEFAULT_GROUP:
        return None
    quantised = (group for group in _weight_groups(model) if group % DEFAULT_GROUP == 0)
    return None if any(group % _LARGER_GROUP for group in quantised) else _LARGER_GROUP


def states_float32(model: ov.Model) -> bool:
    """Return whether a graph states that numbers stay float32 between products of matrices."""
    return bool(model.has_rt_info(_FLOAT32_KEY) and model.get_rt_info(_FLOAT32_KEY).astype(str) == _FLOAT32)


def group_long_rows(model: ov.Model, block: int = KERNEL_BLOCK) -> None:
    """Split long rows of 8-bit weights into groups, each with the same scale as before. Mutates `model`.

    Groups are multiples of `block` inputs: of a group of activations where these are quantised, because a layer whose
    groups are not would silently not be.

    In float32, whether oneDNN splits the sum over a row of more than 1,024 inputs among threads depends on the numbers
    of tokens and threads, and so does the rounding. It never splits rows that are in groups. Values, memory and speed
    stay the same.
    """
    for matmul in [op for op in model.get_ops() if op.get_type_name() == "MatMul"]:
        port = matmul.input(1)
        source = port.get_source_output()
        compressed = _compressed(_uncast(source.get_node()))
        if compressed is None or not matmul.get_attributes()["transpose_b"]:
            continue
        if not (count := compressed.group_count(block)):
            continue
        weights = compressed.grouped(count)
        if (kind := source.get_element_type().get_type_name()) != compressed.kind:
            weights = ops.convert(weights, kind)
        port.replace_source_output(weights.output(0))


@dataclass(frozen=True, slots=True)
class _Compressed:
    """Weights (values - zero) * scales, as a graph computes them; `zero` None: values * scales.

    Constants: `values` [outputs, inputs] or [outputs, groups, inputs per group], `scales` and `zero` broadcast to it.
    """

    values: Any
    scales: Any
    zero: Any | None
    kind: str
    """Name of the element type in which they are computed."""

    def group_count(self, block: int) -> int:
        """Return into how many groups to split the rows: the fewest that are multiples of `block`; 0: do not split."""
        shape = list(self.values.shape)
        if len(shape) != 2 or list(self.scales.shape) != [shape[0], 1] or shape[1] <= _MAX_UNSPLIT_INPUTS:
            return 0
        if self.values.get_element_type() not in (ov.Type.u8, ov.Type.i8):
            return 0
        return next((count for count in (2, 3, 4, 5, 7) if shape[1] % (count * block) == 0), 0)

    def grouped(self, count: int) -> Any:
        """Return a node that computes the same weights, [outputs, inputs], from rows in `count` groups."""
        rows, inputs = self.values.shape
        groups = ops.reshape(self.values, ops.constant([rows, count, inputs // count]), special_zero=False)
        weights = ops.convert(groups, self.kind)
        if self.zero is not None:
            weights = ops.subtract(weights, ops.convert(ops.constant(_repeated(self.zero.data, count)), self.kind))
        weights = ops.multiply(weights, ops.convert(ops.constant(_repeated(self.scales.data, count)), self.kind))
        return ops.reshape(weights, ops.constant([rows, inputs]), special_zero=False)


def _compressed(node: Any) -> _Compressed | None:
    """Return the compressed weights that `node` computes, None if it does not."""
    if node.get_type_name() != "Multiply":
        return None
    before, scales = _uncast(node.input_value(0).get_node()), _uncast(node.input_value(1).get_node())
    zero = None
    if before.get_type_name() == "Subtract":
        zero = _uncast(before.input_value(1).get_node())
        before = _uncast(before.input_value(0).get_node())
    constants = [before, scales, *([] if zero is None else [zero])]
    if any(constant.get_type_name() != "Constant" for constant in constants):
        return None
    if before.get_element_type().bitwidth > 8:
        return None
    return _Compressed(before, scales, zero, node.get_output_element_type(0).get_type_name())


def _uncast(node: Any) -> Any:
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return node


def _weight_groups(model: ov.Model) -> Iterator[int]:
    """Yield the sizes of groups within rows; rows with a single scale have none."""
    for weights in filter(None, map(_compressed, model.get_ops())):
        shape, grid = list(weights.values.shape), list(weights.scales.shape)
        if len(shape) > 2 and len(shape) == len(grid):
            yield prod(length for length, scale in zip(shape, grid, strict=True) if scale == 1)


def _repeated(values: NDArray[Any], count: int) -> NDArray[Any]:
    """Return one value per row, or one for all, as one per group: [rows or 1, count or 1, 1], same dtype."""
    if values.size == 1:
        return values.reshape(1, 1, 1)
    return np.repeat(values.reshape(-1, 1, 1), count, axis=1)
