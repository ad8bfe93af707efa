"""Compressed weights in a graph: how many inputs share a scale, and what OpenVINO's kernels make of that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.runtimes.openvino.library import ops, ov

_OWN_GROUP = 32
_LARGER_GROUP = 64
_LONGEST_SUM = 1024
_KERNEL_BLOCK = 16


def activation_group(core: ov.Core, model: ov.Model) -> int | None:
    """Over how many inputs activations shall share a scale where they are quantised; None: as OpenVINO does.

    64 instead of its 32 makes 8 and more rows a sixth faster and errors about a seventh larger. A layer whose
    weights' own groups the number does not divide would silently not be quantised, which is half as fast.
    Other processors than x86 have other defaults, for other kernels; a model may ask for a size of its own.
    """
    asked = model.has_rt_info(["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    if asked or core.get_property("CPU", "DYNAMIC_QUANTIZATION_GROUP_SIZE") != _OWN_GROUP:
        return None
    quantised = (group for group in _weight_groups(model) if group % _OWN_GROUP == 0)
    return None if any(group % _LARGER_GROUP for group in quantised) else _LARGER_GROUP


def group_long_rows(model: ov.Model) -> None:
    """Give each part of a long row of 8-bit weights a scale of its own, with the same value. Changes `model`.

    In float32, oneDNN may split the sum of a row of more than 1,024 inputs among threads, or not, by the number
    of tokens in the step and of threads: other rounding in other company. It never splits rows in groups. The
    numbers and their memory stay the same, and so does the speed.
    """
    for matmul in [op for op in model.get_ops() if op.get_type_name() == "MatMul"]:
        port = matmul.input(1)
        source = port.get_source_output()
        compressed = _compressed(_uncast(source.get_node()))
        if compressed is None or not matmul.get_attributes()["transpose_b"] or not (count := compressed.parts()):
            continue
        weights = compressed.grouped(count)
        if (kind := source.get_element_type().get_type_name()) != compressed.kind:
            weights = ops.convert(weights, kind)
        port.replace_source_output(weights.output(0))


@dataclass(frozen=True, slots=True)
class _Compressed:
    """Weights (values - zero) * scales, as a graph computes them; `zero` None: values * scales."""

    values: Any
    scales: Any
    zero: Any | None
    kind: str
    """The type in which they are computed."""

    def parts(self) -> int:
        """Into how many groups the rows shall fall: the least number of whole kernel blocks; 0: they stay whole."""
        shape = list(self.values.shape)
        if len(shape) != 2 or list(self.scales.shape) != [shape[0], 1] or shape[1] <= _LONGEST_SUM:
            return 0
        if self.values.get_element_type() not in (ov.Type.u8, ov.Type.i8):
            return 0
        return next((count for count in (2, 3, 4, 5, 7) if shape[1] % (count * _KERNEL_BLOCK) == 0), 0)

    def grouped(self, count: int) -> Any:
        """A node that computes the same weights from rows in `count` groups."""
        rows, inputs = self.values.shape
        groups = ops.reshape(self.values, ops.constant([rows, count, inputs // count]), special_zero=False)
        weights = ops.convert(groups, self.kind)
        if self.zero is not None:
            weights = ops.subtract(weights, ops.convert(ops.constant(_repeated(self.zero.data, count)), self.kind))
        weights = ops.multiply(weights, ops.convert(ops.constant(_repeated(self.scales.data, count)), self.kind))
        return ops.reshape(weights, ops.constant([rows, inputs]), special_zero=False)


def _compressed(node: Any) -> _Compressed | None:
    """The compressed weights that `node` gives, if it gives any."""
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
    """The sizes of groups within rows; rows with a single scale have none."""
    for weights in filter(None, map(_compressed, model.get_ops())):
        shape, grid = list(weights.values.shape), list(weights.scales.shape)
        if len(shape) > 2 and len(shape) == len(grid):
            yield prod(length for length, scale in zip(shape, grid, strict=True) if scale == 1)


def _repeated(values: NDArray[Any], count: int) -> NDArray[Any]:
    """One value a row, or one for all, as one a group: [rows or 1, count or 1, 1]."""
    if values.size == 1:
        return values.reshape(1, 1, 1)
    return np.repeat(values.reshape(-1, 1, 1), count, axis=1)
