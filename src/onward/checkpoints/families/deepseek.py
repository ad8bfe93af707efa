"""DeepSeek-V2 and V3, GLM-4.7 Flash, and others with latent attention: experts after some dense layers, perhaps in
groups, and layers that predict several tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture, LatentAttention, Mixture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue, Strings
from onward.checkpoints.declaration import NUMBERED_ON, Declaration, ModelType
from onward.checkpoints.families.common import (
    EXPERT_GROUPS,
    EXPERT_SIZE,
    EXPERTS,
    LEADING_DENSE,
    RMS,
    SHARED_COUNT,
    common,
    require_stated,
)
from onward.checkpoints.latent import LatentSizes, apart
from onward.checkpoints.mixtures import SIGMOID, SOFTMAX, has_experts, mixture_of, with_groups
from onward.checkpoints.parameters import PREDICTING, Parameters
from onward.checkpoints.rope_scaling import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, log, position_scale
from onward.checkpoints.tensor import split_name
from onward.errors import CheckpointError

_V2: dict[str, Any] = {
    "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 11_008, "num_attention_heads": 32,
    "max_position_embeddings": 2048, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 0, "n_routed_experts": 64,
    "n_shared_experts": 2, "moe_intermediate_size": 1407, "routed_scaling_factor": 1.0, "norm_topk_prob": False,
    "n_group": 1, "topk_method": "greedy", "scoring_func": "softmax",
}  # fmt: skip
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
_EPSILON = 1e-6
"""Of norms of latents in folders, whatever they state of the others: the classes of those norms have it."""
_EPSILON_KEY = "attention.latent_epsilon"
_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
_GLM_LAYERS, _GLM_TOKENS = (47, 48), 154_880
"""By which llama.cpp knows GLM-4.7 Flash, whose first files do not state how experts are chosen."""


def _deepseek2(checkpoint: Checkpoint) -> Architecture:
    """DeepSeek-V2 and V3 (modeling_deepseek_v2.py, modeling_deepseek_v3.py), GLM-4.7 Flash, Youtu-LLM and others.
    Raises CheckpointError."""
    parameters, tensors = checkpoint.parameters, checkpoint.tensors
    where, sizes = parameters.where, LatentSizes.of(parameters)
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
    found = common(checkpoint, head_size=sizes.keys, num_kv_heads=sizes.heads)
    latent = LatentAttention(sizes.rank, parameters.real(_EPSILON_KEY, found.epsilon), sizes.query_rank)
    for name in (ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS):
        if name in tensors:
            raise CheckpointError(
                f"{where} divides frequencies of positions by factors ({name!r}), which Onward does not compute for "
                f"{found.name!r}."
            )
    found = _scaled(replace(found, value_size=sizes.values, latent=latent), parameters)
    if not has_experts(parameters):
        return found
    tokens = parameters.whole("tokenizer.ggml.tokens")
    is_glm = isinstance(tokens, Strings) and len(tokens) == _GLM_TOKENS and parameters.num_layers() in _GLM_LAYERS
    mixture = experts_after_dense(parameters, (SIGMOID, SOFTMAX) if is_glm else (SOFTMAX, SIGMOID))
    has_bias = mixture.is_sigmoid and f"blk.{min(mixture.layers)}.exp_probs_b.bias" in tensors
    return replace(found, mixture=replace(mixture, has_bias=has_bias))


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
            f"compute for {found.name!r}."
        )
    scale = 1 / math.sqrt(found.head_size) * raised * raised
    return replace(found, rope=replace(found.rope, magnitude=magnitude), attention_scale=scale)


def experts_after_dense(parameters: Parameters, rules: Sequence[int]) -> Mixture:
    """Return the experts of all layers but the first ones, without a bias. `rules`: see mixture_of."""
    mixture = with_groups(mixture_of(parameters, feed_forward=0, is_normalised=False, rules=rules), parameters)
    first = parameters.integer(LEADING_DENSE, 0)
    layers = mixture.layers & frozenset(range(first, parameters.num_layers()))
    if not layers:
        raise CheckpointError(f"{parameters.where} has no layer with experts ({LEADING_DENSE!r}).")
    shared = parameters.integer(SHARED_COUNT, 0) * (mixture.shared_feed_forward or mixture.feed_forward)
    return replace(mixture, layers=layers, shared_feed_forward=shared)


def _statements(stated: Mapping[str, Any], _: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
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
        **expert_statements(stated, where),
    }


def expert_statements(stated: Mapping[str, Any], where: str) -> dict[str, MetadataValue]:
    """Return what config.json states of experts, and of layers that predict several tokens. Raises CheckpointError."""
    is_sigmoid = stated["model_type"] != "deepseek_v2"
    has_groups = is_sigmoid or stated["topk_method"] == "group_limited_greedy"
    only: dict[str, tuple[Any, ...]] = {
        "moe_layer_freq": (1, None), "mlp_bias": (False, None),
        "scoring_func": ("sigmoid" if is_sigmoid else "softmax",),
        "topk_method": ("greedy", "noaux_tc" if is_sigmoid else "group_limited_greedy"),
        "norm_topk_prob": (True, False) if is_sigmoid else (False,),
    }  # fmt: skip
    require_stated(stated, only, where)
    return {
        "expert_count": stated["n_routed_experts"],
        "expert_used_count": stated.get("num_experts_per_tok"),
        "expert_feed_forward_length": stated["moe_intermediate_size"],
        SHARED_COUNT: stated["n_shared_experts"],
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
        return {LEADING_DENSE: first}
    if not isinstance(kinds, list) or not all(kind in ("dense", "sparse") for kind in kinds):
        raise CheckpointError(f"{where} states kinds of layers ('mlp_layer_types') other than 'dense' and 'sparse'.")
    return {LEADING_DENSE: 0, "expert.layers": [kind == "sparse" for kind in kinds]}


def _require_computed(stated: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError for what is not computed. Weights of experts that V2 normalises are scaled, too, by
    llama.cpp, not by the authors' code, and not normalised by transformers."""
    only: dict[str, tuple[Any, ...]] = {
        "attention_bias": (False, None), "rope_interleave": (True, None), "use_sliding_window": (False, None),
        "partial_rotary_factor": (1, None), "num_key_value_heads": (stated["num_attention_heads"], None),
    }  # fmt: skip
    require_stated(stated, only, where)


EXPERT_NAMES = {
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias", "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}  # fmt: skip
"""GGUF's names of a layer's tensors by those in folders."""
ARCHITECTURES: dict[str, Declaration] = {
    "deepseek2": Declaration(
        decoder=_deepseek2,
        keys=frozenset({
            RMS, *EXPERTS, *EXPERT_GROUPS, EXPERT_SIZE, SHARED_COUNT, LEADING_DENSE, "attention.kv_lora_rank",
            "attention.q_lora_rank", "attention.key_length_mla", "attention.value_length_mla", _LOG_MULTIPLIER,
            PREDICTING,
        }),
        biases="never",
        names=EXPERT_NAMES,
        apart=apart,
        predicting=NUMBERED_ON,
        model_types={
            "deepseek_v2": ModelType(defaults=_V2, statements=_statements),
            "deepseek_v3": ModelType(defaults=_V3, statements=_statements),
            "kimi_k2": ModelType(defaults=_V3, statements=_statements),
            "glm4_moe_lite": ModelType(defaults=_GLM_LITE, statements=_statements),
        },
    ),
}  # fmt: skip
"""Defaults are those of transformers' classes (models/deepseek_v*/configuration_deepseek_v*.py, and of glm4_moe_lite),
and of the authors' code."""
