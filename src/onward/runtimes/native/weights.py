"""The weights of a checkpoint as kernels read them: matrices in panels, tables in the file, vectors copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.adapter import Change
from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.mixtures import EXPERT_PARTS
from onward.checkpoints.tensor import Tensor
from onward.kernels.activations import ActivationName
from onward.kernels.memory import Vector
from onward.kernels.panels import panel_count
from onward.kernels.tape import Matrix, Table
from onward.kernels.weight_types import PANEL_ROWS, WEIGHT_TYPES, WeightType
from onward.runtimes.native.expert_cache import ExpertLayer
from onward.runtimes.native.panel_cache import Group, PanelCache, PanelSource
from onward.runtimes.native.types import StoredType, is_router

EMBEDDING, POSITION_EMBEDDING, OUTPUT = "token_embd", "position_embd", "output"


class Weights:
    """What a tape uses of a checkpoint. `form(tensor)`: in which type they are held; `changes`: an
    adapter's, by the names of the weights, held and computed in float32."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        form: Callable[[Tensor], StoredType],
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
        self._panels: PanelCache | None = None
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

    def expert_biases(self, name: str) -> NDArray[np.float32] | None:
        """Return biases of experts, with zeros up to whole panels: [experts, 16 * panels]. None if there are none."""
        if not self.has(f"{name}.bias"):
            return None
        tensor = self._checkpoint.tensors[f"{name}.bias"]
        count, rows = tensor.shape[-2:]
        found = np.zeros((count, PANEL_ROWS * panel_count(rows)), np.float32)
        found[:, :rows] = tensor.floats().reshape(count, rows)
        return found

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
        return self._activations if isinstance(kind, WeightType) and not is_router(name) else "float32"

    def forms(self, name: str) -> list[ActivationName]:
        """Return the forms of activations that a matrix and an adapter's change of it are multiplied with."""
        own = self.activations(name)
        return [own] if own == "float32" or self.change_scale(name) is None else [own, "float32"]

    def _form_of(self, name: str) -> StoredType:
        return "F32" if name in self._adapter_names else self._form(self._checkpoint.tensor(f"{name}.weight"))

    def types(self, names: Iterator[str]) -> dict[str, str]:
        """Return the types of matrices, by name."""
        return {name: self._form_of(name) for name in names}

    def groups(self, names: Iterable[str]) -> list[Group]:
        """Return matrices in the groups that a step needs one after the other: of each layer, and the output's.
        Matrices of an adapter, which are small, are with the first one."""
        sources: dict[str, list[PanelSource]] = {}
        for name in dict.fromkeys(names):
            source = self._source(name)
            group = name.rpartition(".")[0] if name not in self._adapter_names else next(iter(sources))
            sources.setdefault(group, []).append(source)
        return list(sources.values())

    def _source(self, name: str) -> PanelSource:
        tensor = self._checkpoint.tensor(f"{name}.weight")
        num_dimensions = 3 if name.endswith("_exps") else 2
        shape = tensor.shape[-num_dimensions:]  # those before are 1; a matrix of one row may have one
        tensor = replace(tensor, shape=(1,) * (num_dimensions - len(shape)) + shape)
        return PanelSource(name, tensor, self._form_of(name))

    def expert_layers(self, found: Architecture) -> list[ExpertLayer]:
        """Return the experts of each layer that has some."""
        return [
            ExpertLayer(layer, [self._source(f"blk.{layer}.ffn_{part}_exps") for part in EXPERT_PARTS])
            for layer in sorted(found.mixture.layers if found.mixture else ())
        ]

    def use(self, panels: PanelCache) -> None:
        """Take matrices from a cache that has made them."""
        self._panels = panels

    def stream_index(self, name: str) -> int | None:
        """Return the number of the group that a matrix is in, where its panels do not stay in memory."""
        assert self._panels is not None
        return self._panels.stream_index.get(name)

    def matrix(self, name: str) -> Matrix:
        """Return a matrix of the cache."""
        assert self._panels is not None
        return self._panels.matrices[name]
