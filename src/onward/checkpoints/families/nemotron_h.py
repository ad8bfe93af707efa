"""Nemotron-H (arXiv 2504.03624), Nemotron Nano 2 and Nemotron 3 Nano: layers of one part each, which is a state space,
attention without positions, a feed-forward layer, or experts. What files state of them.

GGUF files state heads of keys for layers with attention, and inner sizes for those with feed-forward layers or experts;
folders have a letter or a name for each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import EXPERT_SIZE, EXPERTS, LAYER, RMS, SHARED_SIZE, STATE_SPACE, common
from onward.checkpoints.mixtures import SIGMOID, mixture_of
from onward.checkpoints.parameters import MAX_LAYERS
from onward.checkpoints.state_spaces import as_in_gguf, require_computed, state_space_of
from onward.errors import CheckpointError

_DENSE, _MIXED = "nemotron_h", "nemotron_h_moe"
_OLDER = {
    "n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv", "use_conv_bias": "mamba_conv_bias",
    "time_step_limit": "mamba_dt_limit",
}  # fmt: skip
"""Names that count more where they are stated, as there."""
_KINDS = {
    "M": "mamba", "*": "attention", "-": "mlp", "E": "moe", "linear_attention": "mamba", "full_attention": "attention",
    **{kind: kind for kind in ("mamba", "attention", "mlp", "moe")},
}  # fmt: skip
"""What a layer is, by what files call it."""


def _nemotron_h(checkpoint: Checkpoint) -> Architecture:
    """Nemotron-H and Nemotron 3 (modeling_nemotron_h.py)."""
    parameters = checkpoint.parameters
    count = parameters.num_layers()
    inner = parameters.in_layers("feed_forward_length", count, may_lack=True)
    keys = parameters.in_layers("attention.head_count_kv", count, may_lack=True)
    found = common(
        checkpoint, activation="relu_squared", feed_forward=max(*inner, 1), may_lack_heads=True,
        epsilon=parameters.real(RMS, parameters.real(LAYER)),
    )  # fmt: skip
    feeding = frozenset(layer for layer in range(count) if inner[layer])
    spaces = frozenset(layer for layer in range(count) if not inner[layer] and not keys[layer])
    if both := sorted(layer for layer in feeding if keys[layer]):
        raise CheckpointError(
            f"{parameters.where} has layers with attention ('attention.head_count_kv') and a feed-forward layer "
            f"('feed_forward_length'), such as layer {both[0]}, which Onward does not compute for {found.name!r}."
        )
    found = replace(
        found,
        ropeless_layers=frozenset(range(count)),
        state_space=state_space_of(parameters, spaces) if spaces else None,
        mixerless_layers=feeding,
        layer_feed_forward=tuple(inner),
    )
    if parameters.architecture == _DENSE:
        return found
    used = parameters.integer("expert_used_count", minimum=1)
    mixture = mixture_of(parameters, feed_forward=max(inner) // used, is_normalised=False, rules=(SIGMOID,))
    layers = mixture.layers & feeding
    if not layers:
        raise CheckpointError(f"{parameters.where} has no layer with experts ('feed_forward_length').")
    return replace(
        found,
        mixture=replace(mixture, layers=layers, has_bias=True, is_gated=False),
        layer_feed_forward=tuple(0 if layer in layers else size for layer, size in enumerate(inner)),
    )


def _statements(stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return what config.json states in its own way, by GGUF's names. Raises CheckpointError for what is not
    computed."""
    given = {**stated, **{name: stated[older] for name, older in _OLDER.items() if older in stated}}
    require_computed(given, "mamba_hidden_act", ("use_bias", "mamba_proj_bias"), where)
    if given["mlp_hidden_act"] != "relu2":
        raise CheckpointError(
            f"{where} has the activation {str(given['mlp_hidden_act'])[:40]!r} ('mlp_hidden_act'), which Onward does "
            "not compute."
        )
    for name, usual in {"moe_latent_size": 0, "n_group": 1, "num_nextn_predict_layers": 0, "sliding_window": 0}.items():
        if given.get(name) not in (usual, None):
            raise CheckpointError(
                f"{where} states {str(given[name])[:40]!r} as {name!r}, with which Onward does not compute Nemotron-H."
            )
    kinds = _kinds(given, where)
    heads, of_expert = given["num_key_value_heads"], given["moe_intermediate_size"]
    sizes = {"mlp": given["intermediate_size"], "moe": of_expert}
    values, size = given["mamba_num_heads"], given["mamba_head_dim"]
    experts: dict[str, MetadataValue] = {
        "expert.layers": [kind == "moe" for kind in kinds],
        "expert_count": given["n_routed_experts"],
        "expert_used_count": given["num_experts_per_tok"],
        "expert_feed_forward_length": of_expert,
        "expert_shared_feed_forward_length": given["moe_shared_expert_intermediate_size"],
        "expert_weights_norm": given["norm_topk_prob"],
        "expert_weights_scale": given["routed_scaling_factor"],
    }
    return {
        "general.architecture": _MIXED if "moe" in kinds else _DENSE,
        "activation": "relu_squared",
        "block_count": len(kinds),
        "feed_forward_length": [sizes.get(kind, 0) for kind in kinds],
        "attention.head_count_kv": [heads if kind == "attention" else 0 for kind in kinds],
        "attention.layer_norm_epsilon": given["layer_norm_epsilon"],
        "attention.layer_norm_rms_epsilon": given["layer_norm_epsilon"],
        "ssm.inner_size": values * size if type(values) is int and type(size) is int else None,
        "ssm.time_step_rank": values,
        "ssm.group_count": given["n_groups"],
        "ssm.state_size": given["ssm_state_size"],
        "ssm.conv_kernel": given["conv_kernel"],
        "ssm.convolution_bias": bool(given["use_conv_bias"]),
        **(experts if "moe" in kinds else {}),
    }


def _kinds(given: Mapping[str, Any], where: str) -> list[str]:
    """Return what each layer is. Raises CheckpointError."""
    stated = given.get("layers_block_type", given.get("layer_types", given.get("hybrid_override_pattern")))
    if not isinstance(stated, list | str) or not 0 < len(stated) <= MAX_LAYERS:
        raise CheckpointError(
            f"{where} does not state what its layers are ('hybrid_override_pattern' or 'layers_block_type')."
        )
    for each in stated:
        if not isinstance(each, str) or each not in _KINDS:
            raise CheckpointError(f"{where} has layers of the kind {str(each)[:40]!r}, which Onward does not compute.")
    return [_KINDS[each] for each in stated]


def _declared(*keys: str, **others: Any) -> Declaration:
    return Declaration(
        decoder=_nemotron_h,
        keys=frozenset({RMS, LAYER, *STATE_SPACE, *keys}),
        is_gated=False,
        names={
            "mixer.A_log": "ssm_a", "mixer.D": "ssm_d", "mixer.dt_bias": "ssm_dt.bias",
            "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
            "mixer.experts.up_proj": "ffn_up_exps.weight", "mixer.experts.down_proj": "ffn_down_exps.weight",
        },
        as_in_gguf=as_in_gguf,
        **others,
    )  # fmt: skip


ARCHITECTURES: dict[str, Declaration] = {
    _DENSE: _declared(
        model_types={
            "nemotron_h": ModelType(
                defaults={
                    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                    "max_position_embeddings": 4096, "intermediate_size": 21_504, "layer_norm_epsilon": 1e-5,
                    "mlp_hidden_act": "relu2", "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64,
                    "mamba_hidden_act": "silu", "n_groups": 8, "conv_kernel": 4, "use_conv_bias": True,
                    "n_routed_experts": 8, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
                    "num_experts_per_tok": 2, "routed_scaling_factor": 1.0, "n_group": 1, "norm_topk_prob": True,
                    "rms_norm_eps": None,
                },
                attention_bias="attention_bias",
                feed_forward_bias="mlp_bias",
                statements=_statements,
            ),
        },
    ),
    _MIXED: _declared(*EXPERTS, EXPERT_SIZE, SHARED_SIZE),
}  # fmt: skip
