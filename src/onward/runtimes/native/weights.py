"""The weights of a checkpoint as kernels read them: matrices in panels, tables in the file, vectors copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.architecture import Architecture, Mixture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.tensor import Tensor
from onward.kernels.activations import ActivationName
from onward.kernels.memory import Vector
from onward.kernels.operands import Matrix, Table
from onward.kernels.panels import panel_count
from onward.kernels.type_table import WEIGHT_TYPES
from onward.kernels.weight_types import PANEL_ROWS, WeightType
from onward.runtimes.native.expert_cache import ExpertLayer
from onward.runtimes.native.panel_cache import PanelCache, PanelGroup, PanelSource
from onward.runtimes.native.types import StoredType, is_sensitive

EMBEDDING, POSITION_EMBEDDING, LAYER_EMBEDDING = "token_embd", "position_embd", "per_layer_token_embd"
TABLES = (EMBEDDING, POSITION_EMBEDDING, LAYER_EMBEDDING)
"""What rows are looked up in."""
LATENT_MATRICES = ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_k_rope", "attn_k_b", "attn_v_b")
"""What makes queries, keys and values where they are made of fewer numbers."""
OUTPUT, LAYER_PROJECTION = "output", "per_layer_model_proj"


def table_of(tensor: Tensor) -> Table:
    """Return embeddings, which are read in the file, unless they have to be expanded."""
    rows, inputs = tensor.shape
    kind, data = tensor.type.name, tensor.data
    if kind not in WEIGHT_TYPES or tensor.order is not None or tensor.data.ndim > 1:
        kind, data = "F32", tensor.floats().reshape(-1).view(np.uint8)
    return Table(kind, rows, inputs, data)


def _layer_of(name: str) -> str:
    """Return "blk.0" of "blk.0.attn_q"; "" of what is in no layer."""
    return ".".join(name.split(".")[:-1][:2])


@dataclass(frozen=True, slots=True)
class MatrixChange:
    """What an adapter adds to a product W x: scale * high (low x), in float32."""

    low: Matrix
    high: Matrix
    scale: float


class Weights:
    """What a tape uses of a checkpoint. `form(tensor)`: in which type they are held."""

    def __init__(
        self, checkpoint: Checkpoint, form: Callable[[Tensor], StoredType], activations: ActivationName
    ) -> None:
        self._checkpoint, self._form, self._activations = checkpoint, form, activations
        self._panels: PanelCache | None = None
        self._changes: Mapping[str, MatrixChange] = {}
        self._tables: dict[str, Table] = {}
        self._vectors: dict[str, Vector] = {}

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this name."""
        return name in self._checkpoint.tensors

    def vector(self, name: str) -> Vector | None:
        """Return a bias or the weights of a norm, None if there is none."""
        return self.required_vector(name) if self.has(name) else None

    def required_vector(self, name: str) -> Vector:
        """Return a vector that the architecture requires. Raises CheckpointError."""
        if name not in self._vectors:
            self._vectors[name] = Vector.of(self._checkpoint.tensor(name).floats().reshape(-1))
        return self._vectors[name]

    def by_input(self, name: str) -> Vector:
        """Return a matrix as numbers, those of its first inputs before all others. Raises CheckpointError."""
        if name not in self._vectors:
            self._vectors[name] = Vector.of(np.ascontiguousarray(self._checkpoint.tensor(name).floats().T).reshape(-1))
        return self._vectors[name]

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
            self._tables[name] = table_of(self._checkpoint.tensor(f"{name}.weight"))
        return self._tables[name]

    def changed(self, changes: Mapping[str, MatrixChange], tables: Mapping[str, Table]) -> Weights:
        """Return what the tape of an adapter uses: these weights, in the same memory, and what it changes. `changes`:
        by the names of matrices; `tables`: by theirs."""
        other = copy(self)
        other._changes = changes
        other._tables = {**self._tables, **tables}
        return other

    def change(self, name: str) -> MatrixChange | None:
        """Return what an adapter adds to the product of a matrix, None where that is nothing."""
        return self._changes.get(name)

    def activations(self, name: str) -> ActivationName:
        """Return the form of activations that a matrix is multiplied with."""
        kind = WEIGHT_TYPES[self.type_of(name)]
        return self._activations if isinstance(kind, WeightType) and not is_sensitive(name) else "float32"

    def forms(self, name: str) -> list[ActivationName]:
        """Return the forms of activations that a matrix and an adapter's change of it are multiplied with."""
        own = self.activations(name)
        return [own] if own == "float32" or self.change(name) is None else [own, "float32"]

    def type_of(self, name: str) -> StoredType:
        """Return the type that a matrix is held in."""
        return self._form(self._checkpoint.tensor(f"{name}.weight"))

    def groups(self, names: Iterable[str]) -> list[PanelGroup]:
        """Return matrices in the groups that a step needs one after the other: of each layer, and those of none, which
        are alone."""
        sources: dict[str, list[PanelSource]] = {}
        for name in dict.fromkeys(names):
            sources.setdefault(_layer_of(name) or name, []).append(self._source(name))
        return list(sources.values())

    def _source(self, name: str) -> PanelSource:
        tensor = self._checkpoint.tensor(f"{name}.weight")
        num_dimensions = 3 if name.endswith("_exps") else 2
        shape = tensor.shape[-num_dimensions:]  # those before are 1; a matrix of one row may have one
        tensor = replace(tensor, shape=(1,) * (num_dimensions - len(shape)) + shape)
        return PanelSource(name, tensor, self.type_of(name))

    def expert_layers(self, found: Architecture) -> list[ExpertLayer]:
        """Return the experts of each layer that has some."""
        if (mixture := found.mixture) is None:
            return []
        layers = sorted(mixture.layers)
        return [ExpertLayer(layer, [self._source(name) for name in _expert_names(mixture, layer)]) for layer in layers]

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


def matrix_names(found: Architecture, weights: Weights) -> Iterator[str]:
    """Yield the names of all matrices that a decoder multiplies with."""
    parts = (
        "attn_q", "attn_k", "attn_v", *LATENT_MATRICES, "attn_output", "shortconv.in_proj", "shortconv.out_proj",
        "attn_q_gate", "ssm_qkv", "ssm_gate", "ssm_alpha", "ssm_beta", "ssm_in", "ssm_out",
        "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_inp",
        "ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "inp_gate", "proj", "nextn.eh_proj",
        "altup_router", "altup_predict_coef", "altup_correct_coef", "laurel_l", "laurel_r",
    )  # fmt: skip
    yield from found.embedding_matrices
    if found.layer_input:
        yield LAYER_PROJECTION
    for index in range(found.altup.count - 1 if found.altup else 0):
        yield from (f"altup_proj.{index}", f"altup_unembd_proj.{index}")
    for layer in range(found.num_layers):
        unused = () if found.keys_of(layer) == layer else ("attn_k", "attn_v")
        names = (f"blk.{layer}.{part}" for part in parts if part not in unused)
        yield from (name for name in names if weights.has(f"{name}.weight"))
    yield weights.output_name()


def expert_names(found: Architecture) -> Iterator[str]:
    """Yield the names of all tensors of experts."""
    if found.mixture is not None:
        for layer in sorted(found.mixture.layers):
            yield from _expert_names(found.mixture, layer)


def _expert_names(mixture: Mixture, layer: int) -> list[str]:
    return [f"blk.{layer}.ffn_{part}_exps" for part in (*mixture.inputs, "down")]
