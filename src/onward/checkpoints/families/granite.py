"""Granite, with experts or without, and Granite 4: Llama with four scales, and perhaps state spaces; MiniCPM, with
three."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import (
    EXPERTS,
    RMS,
    SCALES,
    SHARED_SIZE,
    STATE_SPACE,
    common,
    require_stated,
)
from onward.checkpoints.mixtures import has_experts, mixture_of
from onward.checkpoints.parameters import MAX_NUMBER, MAX_SCALE, WINDOW, is_layer_count
from onward.checkpoints.state_spaces import MAMBA_NAMES, as_in_gguf, expanded, heads_of_layers, sizes_of, state_space_of
from onward.errors import CheckpointError

_FINETUNED = "rope.scaling.finetuned"
_MINICPM_WIDTH = 256
"""Of the model whose settings larger ones have."""


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


def _minicpm(checkpoint: Checkpoint) -> Architecture:
    """MiniCPM 1, 2 and 4 (modeling_minicpm.py; OpenBMB, arXiv 2404.06395, section 3): what layers add is scaled by
    their number, and logits by the width. Older GGUF files state no scales, which are those of MiniCPM 1 and 2."""
    parameters, found = checkpoint.parameters, common(checkpoint)
    return replace(
        found,
        embedding_scale=parameters.real("embedding_scale", 12.0) or 1.0,
        residual_scale=parameters.real("residual_scale", 1.4 / math.sqrt(found.num_layers)) or 1.0,
        logit_scale=1.0 / (parameters.real("logit_scale", found.hidden / _MINICPM_WIDTH) or 1.0),
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


def _minicpm_statements(
    stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str
) -> dict[str, MetadataValue]:
    """Return MiniCPM's scales. Raises CheckpointError for what is not computed."""
    require_stated(stated, {"sparse_config": (None,)}, where)
    layers, hidden = found.get("block_count"), found.get("embedding_length")
    names = ("scale_emb", "scale_depth", "dim_model_base")
    embedding, depth, width = (stated[name] for name in names)
    if not all(type(each) in (int, float) and 0 < each < MAX_SCALE for each in (embedding, depth, width)):
        raise CheckpointError(
            f"{where} states {embedding!r:.40}, {depth!r:.40} and {width!r:.40} as {', '.join(map(repr, names))}, "
            "which need to be numbers above 0."
        )
    if not is_layer_count(layers) or type(hidden) is not int or not 0 < hidden <= MAX_NUMBER:
        return {}
    return {
        "embedding_scale": float(embedding),
        "residual_scale": depth / math.sqrt(layers),
        "logit_scale": hidden / width,
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
    "minicpm": Declaration(
        decoder=_minicpm,
        keys=frozenset({RMS, *SCALES[:3]}),
        has_pairs_in_gguf=True,
        model_types={
            "minicpm": ModelType(
                defaults={
                    "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
                    "num_attention_heads": 32, "max_position_embeddings": 2048, "scale_emb": 1, "scale_depth": 1,
                    "dim_model_base": 1,
                },
                attention_bias="attention_bias",
                is_tied=True,
                statements=_minicpm_statements,
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
