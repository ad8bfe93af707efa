"""The weights of a checkpoint as nodes of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.mapped import drop_pages
from onward.checkpoints.tensor import Tensor
from onward.runtimes.openvino.graphs.forms import Form, Precision, form_of, num_bytes
from onward.runtimes.openvino.graphs.nodes import integers
from onward.runtimes.openvino.graphs.repack import Packed, repack
from onward.runtimes.openvino.graphs.weights_file import WeightsFile
from onward.runtimes.openvino.library import ops, ov
from onward.runtimes.options import WeightForm

_EMBEDDING = "token_embd.weight"
_OUTPUT = "output.weight"
_POSITIONS = "position_embd.weight"
_TABLES = (_EMBEDDING, _OUTPUT, _POSITIONS)
_MIDDLE = 8
"""The 4-bit value that stands for zero, where all groups have the same."""


class Weights:
    """Makes each weight matrix once, and writes it to `file`, which has to outlive the graph."""

    def __init__(
        self, checkpoint: Checkpoint, precision: Precision, weights: WeightForm = "auto", *, file: WeightsFile
    ) -> None:
        self._checkpoint = checkpoint
        self._file = file
        self._weights: WeightForm = weights
        self._precision: Precision = precision
        self._nodes: dict[str, Any] = {}
        self._corrections: dict[str, Any] = {}
        self._sums: dict[tuple[str, int], Any] = {}

    def has(self, name: str) -> bool:
        """Return whether the checkpoint has a tensor of this name."""
        return name in self._checkpoint.tensors

    def vector(self, name: str) -> Any:
        """Return a bias or the weight of a norm as float32, None if there is none."""
        if not self.has(name):
            return None
        return ops.constant(self._checkpoint.tensors[name].floats().reshape(-1))

    def length(self, name: str) -> int:
        """Return the numbers in a vector, 0 if there is none."""
        return self._checkpoint.tensors[name].shape[-1] if self.has(name) else 0

    def required_vector(self, name: str) -> Any:
        """Return a vector that the architecture requires. Raises CheckpointError."""
        self._checkpoint.tensor(name)
        return self.vector(name)

    def embedding(self) -> Any:
        """Return the embeddings, [vocabulary, hidden]."""
        return self._matrix(_EMBEDDING)

    def positions(self) -> Any:
        """Return the embeddings of positions, [positions, hidden]."""
        return self._matrix(_POSITIONS)

    def output_layer(self) -> str:
        """Return the name, without `.weight`, of the output layer: the embeddings where they are shared."""
        return (_OUTPUT if self.has(_OUTPUT) else _EMBEDDING).removesuffix(".weight")

    def multiplied(self, hidden: Any, name: str) -> Any:
        """Return `hidden` [batch, tokens, inputs] times a weight matrix [rows, inputs]. Raises CheckpointError."""
        product = ops.matmul(hidden, self._matrix(name), False, True)
        corrections = self._corrections.get(name)
        if corrections is None:
            return product
        num_groups = corrections.shape[1]
        weights = ops.convert(corrections, "f32")
        return ops.add(product, ops.matmul(self._group_sums(hidden, num_groups), weights, False, True))

    def _group_sums(self, hidden: Any, num_groups: int) -> Any:
        """Return the sums of the inputs of each group, made once for all layers that read the same input."""
        key = (hidden.get_name(), num_groups)
        if key not in self._sums:
            inputs = hidden.get_output_partial_shape(0)[2].get_length()
            grouped = ops.reshape(hidden, integers(0, 0, num_groups, inputs // num_groups), True)
            self._sums[key] = ops.reduce_sum(grouped, integers(3), False)
        return self._sums[key]

    def _matrix(self, name: str) -> Any:
        if name not in self._nodes:
            tensor = self._checkpoint.tensor(name)
            form = form_of(tensor, self._precision, self._weights, is_table=name in _TABLES)
            self._nodes[name] = self._node(name, tensor, repack(tensor, form), form)
            drop_pages(tensor.data)
        return self._nodes[name]

    def _node(self, name: str, tensor: Tensor, packed: Packed, form: Form) -> Any:
        rows, inputs = tensor.num_rows, tensor.shape[-1]
        if packed.scales is None:
            constant = self._constant(packed.values)
            return ops.convert(constant, "f32") if form is Form.FLOAT16 else constant
        num_groups = packed.scales.shape[1]
        shape = [rows, num_groups, inputs // num_groups] if num_groups > 1 else [rows, inputs]
        grid = [rows, num_groups, 1] if num_groups > 1 else [rows, 1]
        is_4_bits = form in (Form.UINT4_GROUPS, Form.UINT4_CORRECTED)
        node = ops.convert(self._constant(packed.values, shape, four_bits=is_4_bits), "f16")
        if form is Form.UINT4_GROUPS:
            node = ops.subtract(node, ops.convert(ops.constant(np.asarray(_MIDDLE, np.uint8)), "f16"))
        if packed.zeros is not None:
            zeros = self._constant(packed.zeros.reshape(-1), grid)
            node = ops.subtract(node, ops.convert(zeros, "f16"))
        node = ops.multiply(node, self._constant(packed.scales, grid))
        if num_groups > 1:
            node = ops.reshape(node, integers(rows, inputs), False)
        if packed.corrections is not None:
            self._corrections[name] = self._constant(packed.corrections)
        return ops.convert(node, "f32")

    def _constant(self, values: NDArray[Any], shape: list[int] | None = None, *, four_bits: bool = False) -> Any:
        """Return a constant of an array's values; `shape`: that of the array, unless it is given."""
        kind = ov.Type.u4 if four_bits else ov.Type(values.dtype)
        return self._file.constant(values, kind, list(values.shape) if shape is None else shape)


def graph_bytes(checkpoint: Checkpoint, precision: Precision, weights: WeightForm = "auto") -> int:
    """Return about how many bytes the graph of a checkpoint takes on disk."""
    return sum(
        num_bytes(tensor, form_of(tensor, precision, weights, is_table=name in _TABLES))
        if len(tensor.shape) > 1
        else 4 * tensor.shape[-1]
        for name, tensor in checkpoint.tensors.items()
    )
