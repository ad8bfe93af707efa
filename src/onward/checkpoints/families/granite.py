"""Granite, with experts or without, and Granite 4: Llama with four scales, and perhaps state spaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import EXPERTS, RMS, SCALES, SHARED_SIZE, STATE_SPACE, common
from onward.checkpoints.mixtures import has_experts, mixture_of
from onward.checkpoints.parameters import WINDOW
from onward.checkpoints.state_spaces import MAMBA_NAMES, as_in_gguf, expanded, heads_of_layers, sizes_of, state_space_of

_FINETUNED = "rope.scaling.finetuned"


def _granite(checkpoint: Checkpoint, *, may_lack_heads: bool = False) -> Architecture:
    """Granite (modeling_granite.py): Llama with four scales. A GGUF file whose 'rope.scaling.finetuned' is false has no
    positions (NoPE, as in Granite 4)."""
    parameters = checkpoint.parameters
    found = common(checkpoint, may_lack_heads=may_lack_heads)
    is_rotated = parameters.architecture == "granitemoe" or parameters.switch(_FINETUNED, True)
    return replace(
        found,
        ropeless_layers=frozenset() if is_rotated else frozenset(range(found.num_layers)),
        embedding_scale=parameters.real("embedding_scale", 1.0) or 1.0,
        residual_scale=parameters.real("residual_scale", 1.0) or 1.0,
        logit_scale=1.0 / (parameters.real("logit_scale", 1.0) or 1.0),
        attention_scale=parameters.real("attention.scale", 0.0) or None,
    )


def _granitemoe(checkpoint: Checkpoint) -> Architecture:
    """Granite with experts (modeling_granitemoe.py, modeling_granitemoeshared.py), perhaps with one that all tokens
    use."""
    found = _granite(checkpoint)
    return replace(
        found, mixture=mixture_of(checkpoint.parameters, feed_forward=found.feed_forward, is_normalised=True)
    )


def _granitehybrid(checkpoint: Checkpoint) -> Architecture:
    """Granite 4 (modular_granitemoehybrid.py): state spaces in the layers that state no heads of keys, which models
    without an H in their names do not have, attention in the others, mostly without positions, and perhaps experts,
    with a shared one that all tokens use."""
    parameters, found = checkpoint.parameters, _granite(checkpoint, may_lack_heads=True)
    heads = parameters.own("attention.head_count_kv")
    of_layers = heads if isinstance(heads, list | np.ndarray) else []
    layers = frozenset(layer for layer, count in enumerate(of_layers) if count == 0)
    found = replace(found, state_space=state_space_of(parameters, layers) if layers else None)
    if not has_experts(parameters):
        return found
    return replace(found, mixture=mixture_of(parameters, feed_forward=found.feed_forward, is_normalised=True))


def _hybrid_statements(
    stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str
) -> dict[str, MetadataValue]:
    """Return what config.json states in Granite 4's own way. Raises CheckpointError for kinds of layers that it does
    not have, and what is not computed."""
    has_mixture = bool(stated["num_local_experts"])
    dense = {"feed_forward_length": stated["shared_intermediate_size"], "expert_count": 0, "expert_used_count": 0}
    return {
        **sizes_of(stated, expanded(stated), where),
        "ssm.norm_group_count": 1,
        _FINETUNED: stated.get("position_embedding_type") == "rope",
        WINDOW: 0,
        **({} if has_mixture else dense),
        **heads_of_layers(stated, found, where),
    }


_EXPERTS_STATED = {"attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2}
_SHARED_STATED = {**_EXPERTS_STATED, "shared_intermediate_size": 1024}
ARCHITECTURES: dict[str, Declaration] = {
    "granite": Declaration(
        decoder=_granite,
        keys=frozenset({RMS, *SCALES, _FINETUNED}),
        has_pairs_in_gguf=True,
        model_types={
            "granite": ModelType(
                defaults={"attention_multiplier": 1.0},
                attention_bias="attention_bias",
                feed_forward_bias="mlp_bias",
                cuts_by="refact",
            ),
        },
    ),
    "granitemoe": Declaration(
        decoder=_granitemoe,
        keys=frozenset({RMS, *SCALES, *EXPERTS, SHARED_SIZE}),
        has_pairs_in_gguf=True,
        model_types={
            "granitemoe": ModelType(defaults=_EXPERTS_STATED, attention_bias="attention_bias", experts="usual"),
            "granitemoeshared": ModelType(defaults=_SHARED_STATED, attention_bias="attention_bias", experts="usual"),
        },
    ),
    "granitehybrid": Declaration(
        decoder=_granitehybrid,
        keys=frozenset({RMS, *SCALES, *EXPERTS, SHARED_SIZE, _FINETUNED, *STATE_SPACE}),
        has_pairs_in_gguf=True,
        names=MAMBA_NAMES,
        may_share_alone=True,
        as_in_gguf=as_in_gguf,
        model_types={
            "granitemoehybrid": ModelType(
                defaults={
                    **_SHARED_STATED, "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256,
                    "mamba_d_head": "auto", "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True,
                    "mamba_proj_bias": False,
                },
                attention_bias="attention_bias",
                experts="usual",
                statements=_hybrid_statements,
            ),
        },
    ),
}  # fmt: skip
