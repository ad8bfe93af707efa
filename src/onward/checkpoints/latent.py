"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), and the mixtures of experts of the models that have it,
which are GLM-4.5's, too: what files state of them, and their tensors.

    c = norm(W_a h)                    a position's latent: what its keys and values are made of
    k = [W_k c, rotate(W_r h)]         of each head; the second part is the same in all
    v = W_v c
    q = W_q h, or W_b norm(W_a h)

GGUF files have W_k and W_v in one matrix, head by head, or each by itself, then W_k with inputs and rows exchanged.
Pairs of rotated dimensions are side by side, behind the dimensions that do not rotate; runtimes expect them first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.architecture import Architecture, LatentAttention, Mixture
from onward.checkpoints.cursor import MetadataValue, Strings
from onward.checkpoints.mixtures import SIGMOID, SOFTMAX, has_experts, mixture_of, with_groups
from onward.checkpoints.parameters import PREDICTING, Parameters
from onward.checkpoints.rope_scaling import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, log, position_scale
from onward.checkpoints.tensor import Tensor, split_name, turned
from onward.errors import CheckpointError

NAME, GLM = "deepseek2", "glm4moe"
NUMBERED_ON = frozenset({NAME, GLM})
"""In folders, their layers that predict several tokens are numbered after the others."""
_V3: dict[str, Any] = {
    "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18_432, "num_attention_heads": 128,
    "max_position_embeddings": 4096, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 3, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "routed_scaling_factor": 2.5,
    "norm_topk_prob": True, "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
}  # fmt: skip
_GLM_LITE: dict[str, Any] = {
    "num_hidden_layers": 47, "hidden_size": 2048, "intermediate_size": 10_240, "num_attention_heads": 20,
    "max_position_embeddings": 202_752, "rms_norm_eps": 1e-5, "kv_lora_rank": 512, "q_lora_rank": 768,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "first_k_dense_replace": 1,
    "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4, "moe_intermediate_size": 1536,
    "routed_scaling_factor": 1.8, "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "deepseek_v2": {
        "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 11_008, "num_attention_heads": 32,
        "max_position_embeddings": 2048, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 0, "n_routed_experts": 64,
        "n_shared_experts": 2, "moe_intermediate_size": 1407, "routed_scaling_factor": 1.0, "norm_topk_prob": False,
        "n_group": 1, "topk_method": "greedy", "scoring_func": "softmax",
    },
    "deepseek_v3": _V3,
    "glm4_moe_lite": _GLM_LITE,
}  # fmt: skip
"""Of transformers' classes (models/deepseek_v*/configuration_deepseek_v*.py, and of glm4_moe_lite), and of the authors'
code."""
GLM_DEFAULTS: dict[str, Any] = {
    "num_hidden_layers": 46, "hidden_size": 4096, "intermediate_size": 10_944, "num_attention_heads": 96,
    "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5,
    "first_k_dense_replace": 1, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408, "routed_scaling_factor": 1.0, "norm_topk_prob": True, "n_group": 1, "topk_group": 1,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid",
}  # fmt: skip
"""The same of glm4_moe."""
_MAX_RANK = 1 << 14
"""Numbers of a latent, 32 times those of any model: where a file has inputs and rows of W_k exchanged, all weights of
a head are read for every few of its rows."""
_EPSILON = 1e-6
"""Of norms of latents in folders, whatever they state of the others: the classes of those norms have it."""
_EPSILON_KEY = "attention.latent_epsilon"
_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
_GLM_LAYERS, _GLM_TOKENS = (47, 48), 154_880
"""By which llama.cpp knows GLM-4.7 Flash, whose first files do not state how experts are chosen."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What a checkpoint states of its attention."""

    heads: int
    unrotated: int
    """Dimensions of keys that do not rotate."""
    rotated: int
    values: int
    rank: int
    query_rank: int

    @classmethod
    def of(cls, parameters: Parameters) -> _Sizes:
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


def deepseek2(
    parameters: Parameters, tensors: Mapping[str, Tensor], common_of: Callable[..., Architecture]
) -> Architecture:
    """DeepSeek-V2 and V3 (modeling_deepseek_v2.py, modeling_deepseek_v3.py), GLM-4.7 Flash, Youtu-LLM and others.
    `tensors`: as `apart` returns them; `common_of`: returns what all architectures state in the same way. Raises
    CheckpointError."""
    where, sizes = parameters.where, _Sizes.of(parameters)
    for name, tensor in tensors.items():
        part = split_name(name)[1]
        if part == "attn_kv_b" or (part == "attn_kv_a_mqa" and tensor.shape[0] != sizes.rank):
            raise CheckpointError(
                f"{where}: {name!r} has the shape {list(tensor.shape)}, which contradicts the sizes of its heads and "
                "latents ('attention.kv_lora_rank'), or is there in two forms."
            )
    heads = parameters.same_in_layers("attention.head_count_kv", parameters.num_layers(), sizes.heads)
    if heads not in (1, sizes.heads):
        raise CheckpointError(
            f"{where} states {heads} heads of keys ('attention.head_count_kv') instead of 1 or {sizes.heads}: latent "
            "attention makes keys for all."
        )
    found: Architecture = common_of(head_size=sizes.keys, num_kv_heads=sizes.heads)
    latent = LatentAttention(sizes.rank, parameters.real(_EPSILON_KEY, found.epsilon), sizes.query_rank)
    for name in (ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS):
        if name in tensors:
            raise CheckpointError(
                f"{where} divides frequencies of positions by factors ({name!r}), which Onward does not compute for "
                f"{NAME!r}."
            )
    found = _scaled(replace(found, value_size=sizes.values, latent=latent), parameters)
    if not has_experts(parameters):
        return found
    tokens = parameters.whole("tokenizer.ggml.tokens")
    is_glm = isinstance(tokens, Strings) and len(tokens) == _GLM_TOKENS and parameters.num_layers() in _GLM_LAYERS
    mixture = _mixture(parameters, (SIGMOID, SOFTMAX) if is_glm else (SOFTMAX, SIGMOID))
    has_bias = mixture.is_sigmoid and f"blk.{min(mixture.layers)}.exp_probs_b.bias" in tensors
    return replace(found, mixture=replace(mixture, has_bias=has_bias))


def glm4moe(parameters: Parameters, common: Architecture) -> Architecture:
    """GLM-4.5 and GLM-4.6 (modeling_glm4_moe.py): the experts of DeepSeek-V3, and perhaps norms per head."""
    return replace(common, mixture=replace(_mixture(parameters, (SIGMOID,)), has_bias=True))


def _scaled(found: Architecture, parameters: Parameters) -> Architecture:
    """Return the architecture with the scale of attention, which YaRN raises (yarn_get_mscale of the authors' code). A
    GGUF file that does not state by how much raises it by the magnitude of positions, as llama.cpp does, YaRN or not.
    """
    assert found.rope is not None
    kind, factor = parameters.text("rope.scaling.type", "none"), position_scale(parameters)
    magnitude = raised = found.rope.magnitude
    if kind == "yarn":
        multiplier = parameters.real(_LOG_MULTIPLIER, 0.0)
        is_folder = parameters.has("rope.scaling.yarn_attn_factor")
        if multiplier and not is_folder:
            magnitude = parameters.real("rope.scaling.attn_factor", 1.0)
        raised = (1.0 + multiplier * log(factor)) * (1.0 if is_folder else magnitude)
    elif factor != 1:
        raise CheckpointError(
            f"{parameters.where} scales its positions by {kind!r} ('rope.scaling.factor'), which Onward does not "
            f"compute for {NAME!r}."
        )
    scale = 1 / math.sqrt(found.head_size) * raised * raised
    return replace(found, rope=replace(found.rope, magnitude=magnitude), attention_scale=scale)


def _mixture(parameters: Parameters, rules: Sequence[int]) -> Mixture:
    """Return the experts of all layers but the first ones, without a bias. `rules`: see mixture_of."""
    mixture = with_groups(mixture_of(parameters, feed_forward=0, is_normalised=False, rules=rules), parameters)
    first = parameters.integer("leading_dense_block_count", 0)
    layers = mixture.layers & frozenset(range(first, parameters.num_layers()))
    if not layers:
        raise CheckpointError(f"{parameters.where} has no layer with experts ('leading_dense_block_count').")
    shared = parameters.integer("expert_shared_count", 0) * mixture.feed_forward
    return replace(mixture, layers=layers, shared_feed_forward=shared)


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
    sizes = _Sizes.of(parameters)
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


def _parts(part: str, tensor: Tensor, sizes: _Sizes) -> Iterator[tuple[str, Tensor]]:
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
            yield part, turned(replace(tensor, shape=of_heads_apart))
        case "attn_v_b" if of_heads_apart == (heads, sizes.values, sizes.rank):
            yield part, replace(tensor, shape=(heads * sizes.values, sizes.rank))
        case _:
            yield part, tensor


def latent_metadata(stated: Mapping[str, Any], where: str) -> dict[str, MetadataValue]:
    """Return what config.json states in DeepSeek's own way, by GGUF's names. Raises CheckpointError for what is not
    computed."""
    _require_computed(stated, where)
    unrotated, rotated = stated["qk_nope_head_dim"], stated["qk_rope_head_dim"]
    if type(unrotated) is not int or type(rotated) is not int:
        raise CheckpointError(f"{where} states {str((unrotated, rotated))[:60]} as sizes of parts of keys.")
    rules = stated.get("rope_parameters") or stated.get("rope_scaling") or {}
    if (share := rules.get("partial_rotary_factor", 1)) != 1:
        raise CheckpointError(f"{where} rotates {str(share)[:40]} of a part of keys ('partial_rotary_factor').")
    multiplier = rules.get("mscale_all_dim") or 0.0
    if isinstance(multiplier, bool) or not isinstance(multiplier, int | float) or not 0 <= multiplier < 1e6:
        raise CheckpointError(f"{where} states {str(multiplier)[:40]!r} as 'mscale_all_dim'.")
    return {
        "attention.head_count_kv": stated["num_attention_heads"],
        "attention.key_length": unrotated + rotated,
        "attention.value_length": stated["v_head_dim"],
        "attention.kv_lora_rank": stated["kv_lora_rank"],
        "attention.q_lora_rank": stated["q_lora_rank"] or 0,
        "rope.dimension_count": rotated,
        _EPSILON_KEY: _EPSILON,
        _LOG_MULTIPLIER: 0.1 * multiplier,
        **expert_metadata(stated, where),
    }


def expert_metadata(stated: Mapping[str, Any], where: str) -> dict[str, MetadataValue]:
    """Return what config.json states of experts, and of layers that predict several tokens. Raises CheckpointError."""
    is_sigmoid = stated["model_type"] != "deepseek_v2"
    has_groups = is_sigmoid or stated["topk_method"] == "group_limited_greedy"
    only: dict[str, tuple[Any, ...]] = {
        "moe_layer_freq": (1, None), "mlp_bias": (False, None),
        "scoring_func": ("sigmoid" if is_sigmoid else "softmax",),
        "topk_method": ("greedy", "noaux_tc" if is_sigmoid else "group_limited_greedy"),
        "norm_topk_prob": (True, False) if is_sigmoid else (False,),
    }  # fmt: skip
    _require(stated, only, where)
    return {
        "expert_count": stated["n_routed_experts"],
        "expert_used_count": stated.get("num_experts_per_tok"),
        "expert_feed_forward_length": stated["moe_intermediate_size"],
        "expert_shared_count": stated["n_shared_experts"],
        "expert_weights_norm": stated["norm_topk_prob"],
        "expert_weights_scale": stated["routed_scaling_factor"],
        "expert_gating_func": SIGMOID if is_sigmoid else SOFTMAX,
        "expert_group_count": stated["n_group"] if has_groups else 1,
        "expert_group_used_count": stated.get("topk_group"),
        PREDICTING: stated.get("num_nextn_predict_layers", int(is_sigmoid)) or 0,
        **_layers(stated, where),
    }


def _layers(stated: Mapping[str, Any], where: str) -> dict[str, MetadataValue]:
    """Return which layers have experts: those that a list names "sparse" (GLM), or all but the first ones."""
    kinds, first = stated.get("mlp_layer_types"), stated["first_k_dense_replace"]
    if kinds is None:
        return {"leading_dense_block_count": first}
    if not isinstance(kinds, list) or not all(kind in ("dense", "sparse") for kind in kinds):
        raise CheckpointError(f"{where} states kinds of layers ('mlp_layer_types') other than 'dense' and 'sparse'.")
    return {"leading_dense_block_count": 0, "expert.layers": [kind == "sparse" for kind in kinds]}


def _require_computed(stated: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError for what is not computed. Weights of experts that V2 normalises are scaled, too, by
    llama.cpp, not by the authors' code, and not normalised by transformers."""
    only: dict[str, tuple[Any, ...]] = {
        "attention_bias": (False, None), "rope_interleave": (True, None), "use_sliding_window": (False, None),
        "partial_rotary_factor": (1, None), "num_key_value_heads": (stated["num_attention_heads"], None),
    }  # fmt: skip
    _require(stated, only, where)


def _require(stated: Mapping[str, Any], only: Mapping[str, tuple[Any, ...]], where: str) -> None:
    for name, possible in only.items():
        if stated.get(name) not in possible:
            raise CheckpointError(
                f"{where} states {str(stated[name])[:40]!r} as {name!r}, with which Onward does not compute "
                f"{stated['model_type']!r}."
            )
