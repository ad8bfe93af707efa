"""ERNIE 4.5: Llama, whose rotated pairs are side by side in folders, too; with experts in most layers, or without."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType, Predicting
from onward.checkpoints.families.common import (
    EXPERT_SIZE,
    EXPERTS,
    LEADING_DENSE,
    RMS,
    SHARED_SIZE,
    common,
    require_stated,
)
from onward.checkpoints.families.deepseek import EXPERT_NAMES
from onward.checkpoints.families.llama import llama
from onward.checkpoints.mixtures import SOFTMAX, mixture_of
from onward.checkpoints.parameters import is_layer_count
from onward.errors import CheckpointError

_STEP = "interleave_moe_layer_step"
_LEAST_SUM = 1e-12
"""What weights of experts are divided by at least, in all published models."""


def _ernie4_5_moe(checkpoint: Checkpoint) -> Architecture:
    """ERNIE 4.5 with experts (modular_ernie4_5_moe.py): a softmax over all weighs them, a bias counts for the choice
    alone. Raises CheckpointError."""
    parameters = checkpoint.parameters
    mixture = mixture_of(parameters, feed_forward=0, is_normalised=True, rules=(SOFTMAX,))
    first, step = parameters.integer(LEADING_DENSE, 0), parameters.integer(_STEP, 1, minimum=1)
    layers = frozenset(layer for layer in mixture.layers if layer >= first and (layer + 1) % step == 0)
    if not layers:
        raise CheckpointError(f"{parameters.where} has no layer with experts ({LEADING_DENSE!r}, {_STEP!r}).")
    has_bias = f"blk.{min(layers)}.exp_probs_b.bias" in checkpoint.tensors
    return replace(common(checkpoint), mixture=replace(mixture, layers=layers, has_bias=has_bias))


def _statements(stated: Mapping[str, Any], _: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return nothing. Raises CheckpointError for biases, which no published model has and llama.cpp leaves out."""
    require_stated(stated, {"use_bias": (False, None)}, where)
    return {}


def _moe_statements(
    stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str
) -> dict[str, MetadataValue]:
    """Return what config.json states of experts. Raises CheckpointError for what is not computed."""
    only = {"use_bias": (False, None), "moe_norm_min": (_LEAST_SUM,), "moe_gate_act": ("softmax", None)}
    require_stated(stated, only, where)
    size, shared = stated["moe_intermediate_size"], stated["moe_num_shared_experts"]
    if type(size) is not int or type(shared) is not int:
        raise CheckpointError(
            f"{where} states {str((size, shared))[:60]} as size and number of experts for all tokens."
        )
    return {
        "expert_count": stated.get("num_experts", stated["moe_num_experts"]),
        "expert_used_count": stated.get("num_experts_per_tok", stated["moe_k"]),
        EXPERT_SIZE: size,
        SHARED_SIZE: size * shared,
        "expert.layers": _layers(stated, found.get("block_count"), where),
    }


def _layers(stated: Mapping[str, Any], count: MetadataValue | None, where: str) -> list[bool]:
    """Return which layers have experts: every so many-th one from the first such layer to the last."""
    names = "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"
    first, last, step = (stated[name] for name in names)
    if not all(type(each) is int for each in (first, last, step)) or step < 1:
        raise CheckpointError(f"{where} states {str((first, last, step))[:60]} as layers with experts ({names[0]!r}).")
    if not is_layer_count(count):
        return []  # which is refused elsewhere
    return [(layer + 1) % step == 0 and first <= layer and (last == -1 or layer <= last) for layer in range(count)]


_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-5, "rope_theta": 5e5, "max_position_embeddings": 131_072,
}  # fmt: skip
ARCHITECTURES: dict[str, Declaration] = {
    "ernie4_5": Declaration(
        decoder=llama,
        keys=frozenset({RMS}),
        biases="never",
        has_pairs_in_gguf=True,
        has_pairs_in_folders=True,
        model_types={
            "ernie4_5": ModelType(
                defaults={
                    **_DEFAULTS, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
                    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128,
                },
                is_tied=True,
                statements=_statements,
            ),
        },
    ),
    "ernie4_5-moe": Declaration(
        decoder=_ernie4_5_moe,
        keys=frozenset({RMS, *EXPERTS, EXPERT_SIZE, SHARED_SIZE, LEADING_DENSE, _STEP}),
        biases="never",
        has_pairs_in_gguf=True,
        has_pairs_in_folders=True,
        names={
            **EXPERT_NAMES, "mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
            "mlp.gate.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
        },
        predicting=Predicting(
            names=re.compile(r"model\.mtp_(?P<rest>[a-z_]+\.(?P<layer>\d{1,3})\.[\w.]+)"), are_in_gguf=False
        ),
        model_types={
            "ernie4_5_moe": ModelType(
                defaults={
                    **_DEFAULTS, "hidden_size": 2560, "intermediate_size": 12_288, "num_hidden_layers": 28,
                    "num_attention_heads": 20, "num_key_value_heads": 4, "moe_intermediate_size": 1536, "moe_k": 6,
                    "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
                    "moe_layer_end_index": -1, "moe_layer_interval": 1, "moe_norm_min": _LEAST_SUM,
                },
                is_tied=True,
                experts="own",
                statements=_moe_statements,
            ),
        },
    ),
}  # fmt: skip
