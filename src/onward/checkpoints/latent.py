"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): what files state of it, and its tensors.

    c = norm(W_a h)                    a position's latent: what its keys and values are made of
    k = [W_k c, rotate(W_r h)]         of each head; the second part is the same in all
    v = W_v c
    q = W_q h, or W_b norm(W_a h)

GGUF files have W_k and W_v in one matrix, head by head, or each by itself, then W_k with inputs and rows exchanged.
Pairs of rotated dimensions are side by side, behind the dimensions that do not rotate; runtimes expect them first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tensor import Tensor, split_name, transposed_heads
from onward.errors import CheckpointError

_MAX_RANK = 1 << 14
"""Numbers of a latent, 32 times those of any model: where a file has inputs and rows of W_k exchanged, all weights of
a head are read for every few of its rows."""


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """What a checkpoint states of its attention."""

    heads: int
    unrotated: int
    """Dimensions of keys that do not rotate."""
    rotated: int
    values: int
    rank: int
    query_rank: int

    @classmethod
    def of(cls, parameters: Parameters) -> LatentSizes:
        """Raises CheckpointError."""
        is_split = parameters.has("attention.key_length_mla")
        keys, values = (
            parameters.integer(f"attention.{name}_length{'_mla' if is_split else ''}", minimum=1)
            for name in ("key", "value")
        )
        rotated = parameters.integer("rope.dimension_count", minimum=2)
        if rotated >= keys or rotated % 2:
            raise CheckpointError(
                f"{parameters.where} states keys of {keys} dimensions, of which {rotated} are rotated "
                "('rope.dimension_count'), which no model can have."
            )
        rank = parameters.integer("attention.kv_lora_rank", minimum=1)
        if rank > _MAX_RANK:
            raise CheckpointError(
                f"{parameters.where} makes keys and values of {rank} numbers ('attention.kv_lora_rank'), which no "
                f"model does: at most {_MAX_RANK} are computed."
            )
        return cls(
            heads=parameters.same_in_layers("attention.head_count", parameters.num_layers()),
            unrotated=keys - rotated,
            rotated=rotated,
            values=values,
            rank=rank,
            query_rank=parameters.integer("attention.q_lora_rank", 0),
        )

    @property
    def keys(self) -> int:
        return self.unrotated + self.rotated

    @property
    def halves(self) -> NDArray[np.int64]:
        """The order of rotated dimensions in which the first ones of all pairs come before the second ones."""
        return np.arange(self.rotated).reshape(-1, 2).swapaxes(0, 1).reshape(-1)


def matrices(found: Architecture) -> dict[str, tuple[int, int]]:
    """Return the shapes of what a layer's queries, keys and values are made by."""
    heads, latent, rope = found.heads_of(0), found.latent, found.rope
    assert latent is not None and rope is not None
    queries = heads.num_heads * heads.head_size
    own: dict[str, tuple[int, int]] = {"attn_q": (queries, found.hidden)}
    if latent.query_rank:
        own = {"attn_q_a": (latent.query_rank, found.hidden), "attn_q_b": (queries, latent.query_rank)}
    return {
        **own,
        "attn_kv_a_mqa": (latent.rank, found.hidden),
        "attn_k_rope": (rope.size, found.hidden),
        "attn_k_b": (heads.num_heads * (heads.head_size - rope.size), latent.rank),
        "attn_v_b": (heads.num_heads * heads.value_size, latent.rank),
    }


def norms(found: Architecture) -> dict[str, tuple[int]]:
    """Return the sizes of the norms of latents."""
    assert found.latent is not None
    queries = {"attn_q_a_norm": (found.latent.query_rank,)} if found.latent.query_rank else {}
    return {"attn_kv_a_norm": (found.latent.rank,), **queries}


def apart(parameters: Parameters, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with those apart that are several in one, and rows in order. One whose size contradicts the
    parameters stays as it is, and so does one that contains what another tensor is."""
    sizes = LatentSizes.of(parameters)
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        block, part, kind = split_name(name)
        for own, each in _parts(part, tensor, sizes):
            target = f"{block}.{own}.{kind}" if block else name
            if target != name and target in tensors:
                found[name] = tensor
            else:
                found[target] = replace(each, name=target)
    return found


def _parts(part: str, tensor: Tensor, sizes: LatentSizes) -> Iterator[tuple[str, Tensor]]:
    heads, rows = sizes.heads, tensor.shape[0]
    of_heads_apart = (1,) * (3 - len(tensor.shape)) + tensor.shape  # a single head's may have two axes

    def of_heads(size: int, of_head: NDArray[np.int64]) -> Tensor:
        """Return these rows of all heads, which have `size` each."""
        return tensor.selected((np.arange(heads)[:, None] * size + of_head).reshape(-1))

    match part:
        case "attn_q" | "attn_q_b" if rows == heads * sizes.keys:
            yield (
                part,
                of_heads(sizes.keys, np.concatenate([sizes.unrotated + sizes.halves, np.arange(sizes.unrotated)])),
            )
        case "attn_kv_a_mqa" if rows == sizes.rank + sizes.rotated:
            yield part, tensor.selected(np.arange(sizes.rank))
            yield "attn_k_rope", tensor.selected(sizes.rank + sizes.halves)
        case "attn_kv_b" if rows == heads * (sizes.unrotated + sizes.values):
            both = sizes.unrotated + sizes.values
            yield "attn_k_b", of_heads(both, np.arange(sizes.unrotated))
            yield "attn_v_b", of_heads(both, sizes.unrotated + np.arange(sizes.values))
        case "attn_k_b" if of_heads_apart == (heads, sizes.rank, sizes.unrotated):
            yield part, transposed_heads(replace(tensor, shape=of_heads_apart))
        case "attn_v_b" if of_heads_apart == (heads, sizes.values, sizes.rank):
            yield part, replace(tensor, shape=(heads * sizes.values, sizes.rank))
        case _:
            yield part, tensor
