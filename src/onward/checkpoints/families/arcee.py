"""Arcee's AFM, Llama without gates, and Trinity (AFMoE): experts chosen by sigmoids and a bias, norms before and after,
gated attention, and windows whose layers alone know positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import (
    EXPERT_SIZE,
    EXPERTS,
    LEADING_DENSE,
    RMS,
    SHARED_COUNT,
    WINDOW_BASE,
    WINDOW_LAYERS,
    WINDOWS,
    common,
    on,
    require_stated,
    with_local_base,
)
from onward.checkpoints.families.deepseek import EXPERT_NAMES, experts_after_dense
from onward.checkpoints.mixtures import SIGMOID
from onward.checkpoints.parameters import WINDOW, Parameters, is_layer_count
from onward.checkpoints.tensor import Tensor
from onward.errors import CheckpointError

_PATTERN = 4
_IS_SCALED = "embeddings_are_scaled"
"""Of folders alone: llama.cpp scales the embeddings of every file."""


def _arcee(checkpoint: Checkpoint) -> Architecture:
    """AFM (modular_arcee.py)."""
    return common(checkpoint, activation="relu_squared")


def _afmoe(checkpoint: Checkpoint) -> Architecture:
    """Trinity (modular_afmoe.py; Arcee AI, arXiv 2602.17004): three layers of four have a window, and only those have
    positions."""
    parameters, found = checkpoint.parameters, with_local_base(common(checkpoint), checkpoint)
    pattern = parameters.switches(WINDOW_LAYERS, found.num_layers)
    local = on(pattern or [bool((layer + 1) % _PATTERN) for layer in range(found.num_layers)])
    window = parameters.integer(WINDOW, 0)
    return replace(
        found,
        has_norms_after=True,
        has_gated_attention=True,
        embedding_scale=math.sqrt(found.hidden) if parameters.switch(_IS_SCALED, True) else 1.0,
        window=window,
        window_layers=local if window else frozenset(),
        ropeless_layers=frozenset(range(found.num_layers)) - local,
        mixture=replace(experts_after_dense(parameters, (SIGMOID,)), has_bias=True),
    )


def _statements(stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return what config.json states in its own way. Raises CheckpointError for what is not computed: the authors' own
    code reads it, and the class does not."""
    one = (1, None)
    require_stated(
        stated,
        {"score_func": ("sigmoid", None), "route_norm": (True, None), "n_group": one, "num_expert_groups": one},
        where,
    )
    kinds, period, count = stated.get("layer_types"), stated["global_attn_every_n_layers"], found.get("block_count")
    pattern: dict[str, MetadataValue] = {}
    if kinds is None and is_layer_count(count):
        if type(period) is not int or period < 1:
            raise CheckpointError(f"{where} states {str(period)[:40]!r} as 'global_attn_every_n_layers'.")
        pattern = {WINDOW_LAYERS: [bool((layer + 1) % period) for layer in range(count)]}
    elif isinstance(kinds, list):
        pattern = {WINDOW_LAYERS: [kind == "sliding_attention" for kind in kinds]}
    return {
        **pattern,
        _IS_SCALED: bool(stated["mup_enabled"]),
        "expert_count": stated["num_experts"],
        "expert_used_count": stated["num_experts_per_tok"],
        EXPERT_SIZE: stated["moe_intermediate_size"],
        SHARED_COUNT: stated["num_shared_experts"] or 0,
        LEADING_DENSE: stated["num_dense_layers"],
        "expert_gating_func": SIGMOID,
        "expert_weights_norm": True,
        "expert_weights_scale": stated["route_scale"],
    }


def _apart(_: Parameters, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors, with the gate of attention by the name that it has everywhere here."""
    renamed = {name.replace(".attn_gate.", ".attn_q_gate."): tensor for name, tensor in tensors.items()}
    return {name: replace(tensor, name=name) for name, tensor in renamed.items()}


ARCHITECTURES: dict[str, Declaration] = {
    "arcee": Declaration(
        decoder=_arcee,
        keys=frozenset({RMS}),
        is_gated=False,
        has_pairs_in_gguf=True,
        model_types={
            "arcee": ModelType(
                defaults={
                    "hidden_size": 2560, "intermediate_size": 18_432, "num_hidden_layers": 32,
                    "num_attention_heads": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
                    "hidden_act": "relu2",
                },
                attention_bias="attention_bias",
                feed_forward_bias="mlp_bias",
            ),
        },
    ),
    "afmoe": Declaration(
        decoder=_afmoe,
        keys=frozenset({
            RMS, *EXPERTS, EXPERT_SIZE, SHARED_COUNT, LEADING_DENSE, *WINDOWS, WINDOW_BASE,
        }),
        head_norms="always",
        names={
            **EXPERT_NAMES, "post_attention_layernorm": "post_attention_norm", "pre_mlp_layernorm": "ffn_norm",
            "self_attn.gate_proj": "attn_q_gate", "mlp.router.gate": "ffn_gate_inp",
            "mlp.expert_bias": "exp_probs_b.bias",
        },
        apart=_apart,
        model_types={
            "afmoe": ModelType(
                defaults={
                    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 32,
                    "num_attention_heads": 16, "head_dim": 128, "max_position_embeddings": 16_384,
                    "rms_norm_eps": 1e-5, "moe_intermediate_size": 1408, "num_dense_layers": 1, "num_experts": 64,
                    "num_experts_per_tok": 6, "num_shared_experts": 2, "route_scale": 1.0,
                    "global_attn_every_n_layers": 4, "sliding_window": 1024, "mup_enabled": False,
                },
                attention_bias="attention_bias",
                experts="own",
                statements=_statements,
            ),
        },
    ),
}  # fmt: skip
