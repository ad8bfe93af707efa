"""The weights of a checkpoint as kernels read them: panels made in parallel, tables in the file, vectors copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from onward.checkpoints.adapter import Change
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.mapped import drop_pages
from onward.checkpoints.tensor import Tensor
from onward.kernels.activations import ActivationName
from onward.kernels.code import Code
from onward.kernels.machine import INTEGER, POINTER
from onward.kernels.memory import Vector, address, untouched
from onward.kernels.panels import panel_count
from onward.kernels.tape import Matrix, Table
from onward.kernels.weight_types import GROUP, PANEL_ROWS, WEIGHT_TYPES, WeightType
from onward.runtimes.native.types import WeightForm, stored_rows

EMBEDDING, POSITION_EMBEDDING, OUTPUT = "token_embd", "position_embd", "output"
_CHUNK_BYTES = 4 << 20
"""Of panels that a thread makes at a time."""
_PAGE = 4096


class Weights:
    """Makes panels of the matrices that a tape uses. `form(tensor)`: in which type they are held; `changes`: an
    adapter's, by the names of the weights, held and computed in float32."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        form: Callable[[Tensor], WeightForm],
        activations: ActivationName,
        changes: Mapping[str, Change],
    ) -> None:
        self._form, self._activations, self._changes = form, activations, changes
        sides = {
            f"{name.removesuffix('.weight')}.lora_{side}.weight": tensor
            for name, change in changes.items()
            for side, tensor in (("a", change.low), ("b", change.high))
        }
        self._adapter_names = [name.removesuffix(".weight") for name in sides]
        self._checkpoint = replace(checkpoint, tensors={**checkpoint.tensors, **sides})
        self._matrices: dict[str, Matrix] = {}
        self._tables: dict[str, Table] = {}

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this name."""
        return name in self._checkpoint.tensors

    def vector(self, name: str) -> Vector | None:
        """Return a bias or the weights of a norm, None if there is none."""
        if not self.has(name):
            return None
        return Vector.of(self._checkpoint.tensors[name].floats().reshape(-1))

    def required_vector(self, name: str) -> Vector:
        """Return a vector that the architecture requires. Raises CheckpointError."""
        return Vector.of(self._checkpoint.tensor(name).floats().reshape(-1))

    def output_name(self) -> str:
        """Return the name of the output layer's weights: the embeddings where they are shared."""
        return OUTPUT if self.has(f"{OUTPUT}.weight") else EMBEDDING

    def table(self, name: str) -> Table:
        """Return embeddings, which are read in the file."""
        if name not in self._tables:
            self._tables[name] = self._table(name)
        return self._tables[name]

    def _table(self, name: str) -> Table:
        tensor = self._checkpoint.tensor(f"{name}.weight")
        rows, inputs = tensor.shape
        kind, data = tensor.type.name, tensor.data
        if kind not in WEIGHT_TYPES or tensor.order is not None or tensor.data.ndim > 1:
            kind, data = "F32", tensor.floats().reshape(-1).view(np.uint8)
        return Table(kind, rows, inputs, data)

    def change_scale(self, name: str) -> float | None:
        """Return the scale of an adapter's change of a matrix, whose sides are NAME.lora_a and NAME.lora_b; None where
        there is none."""
        change = self._changes.get(f"{name}.weight")
        return None if change is None else change.scale

    def adapter_names(self) -> list[str]:
        """Return the names of the adapter's matrices."""
        return self._adapter_names

    def activations(self, name: str) -> ActivationName:
        """Return the form of activations that a matrix is multiplied with."""
        kind = WEIGHT_TYPES[self._form_of(name)]
        return self._activations if isinstance(kind, WeightType) else "float32"

    def forms(self, name: str) -> list[ActivationName]:
        """Return the forms of activations that a matrix and an adapter's change of it are multiplied with."""
        own = self.activations(name)
        return [own] if own == "float32" or self.change_scale(name) is None else [own, "float32"]

    def _form_of(self, name: str) -> WeightForm:
        return "F32" if name in self._adapter_names else self._form(self._checkpoint.tensor(f"{name}.weight"))

    def types(self, names: Iterator[str]) -> dict[str, str]:
        """Return the types of matrices, by name."""
        return {name: self._form_of(name) for name in names}

    def num_bytes(self, names: list[str]) -> int:
        """Return the memory that the panels of these matrices take."""
        tensors = {name: self._checkpoint.tensor(f"{name}.weight") for name in dict.fromkeys(names)}
        return sum(self._sized(name, tensor)[1] for name, tensor in tensors.items())

    def make(self, names: list[str], code: Code, threads: int) -> None:
        """Make the panels of these matrices, on several threads. Reads them from the file once, and drops its pages."""
        tensors = {name: self._checkpoint.tensor(f"{name}.weight") for name in dict.fromkeys(names)}
        sizes = {name: self._sized(name, tensor) for name, tensor in tensors.items()}
        total = sum(-(-size // _PAGE) * _PAGE for _, size in sizes.values())
        memory = untouched(total)
        jobs: list[tuple[Tensor, Matrix, int, int]] = []
        at = 0
        for name, tensor in tensors.items():
            matrix, size = sizes[name]
            matrix = Matrix(matrix.type, matrix.rows, matrix.inputs, memory[at : at + size])
            at += -(-size // _PAGE) * _PAGE
            self._matrices[name] = matrix
            step = max(1, _CHUNK_BYTES // matrix.panel_bytes)
            last = panel_count(matrix.rows)
            jobs += [(tensor, matrix, first, min(first + step, last)) for first in range(0, last, step)]
        interleave = {each.type: _function(code, each.type) for each in self._matrices.values()}
        with ThreadPoolExecutor(threads, thread_name_prefix="onward-panels") as pool:
            for _ in pool.map(lambda job: make_panels(interleave[job[1].type], *job), jobs):
                pass

    def _sized(self, name: str, tensor: Tensor) -> tuple[Matrix, int]:
        rows, inputs = tensor.shape
        matrix = Matrix(self._form_of(name), rows, inputs, np.empty(0, np.uint8))
        return matrix, panel_count(rows) * matrix.panel_bytes

    def matrix(self, name: str) -> Matrix:
        """Return a matrix whose panels were made."""
        return self._matrices[name]


def _function(code: Code, name: str) -> Callable[..., Any]:
    return code.function(f"interleave_{name}", [POINTER, INTEGER, POINTER, INTEGER, INTEGER])


def make_panels(interleave: Callable[..., Any], tensor: Tensor, matrix: Matrix, first: int, last: int) -> None:
    """Write panels `first` to `last` of a tensor, in the matrix's type."""
    kind = WEIGHT_TYPES[matrix.type]
    begin, end = first * PANEL_ROWS, min(last * PANEL_ROWS, matrix.rows)
    is_plain = tensor.type.name == matrix.type and tensor.data.ndim == 1 and matrix.inputs % GROUP == 0
    row_bytes = matrix.blocks * kind.block_bytes
    if is_plain:
        order = np.arange(begin, end) if tensor.order is None else tensor.order[begin:end]
        source, keep = address(tensor.data) + order * row_bytes, tensor.data
    else:
        keep = stored_rows(tensor, matrix.type, begin, end)
        source = address(keep) + np.arange(end - begin) * row_bytes
    zeros = np.zeros(row_bytes, np.uint8)
    pointers = np.full((last - first) * PANEL_ROWS, address(zeros), np.int64)
    pointers[: end - begin] = source
    interleave(address(pointers), matrix.blocks, address(matrix.panels), first, last)
    if is_plain and tensor.order is None:
        drop_pages(keep[begin * row_bytes : end * row_bytes])
