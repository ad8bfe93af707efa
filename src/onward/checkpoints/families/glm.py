"""GLM-4 of 2025, and GLM-4.5 and 4.6 with DeepSeek-V3's experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import NUMBERED_ON, Declaration, ModelType
from onward.checkpoints.families.common import (
    EXPERT_GROUPS,
    EXPERT_SIZE,
    EXPERTS,
    LEADING_DENSE,
    RMS,
    SHARED_COUNT,
    common,
)
from onward.checkpoints.families.deepseek import EXPERT_NAMES, expert_statements, experts_after_dense
from onward.checkpoints.mixtures import SIGMOID
from onward.checkpoints.parameters import PREDICTING


def _glm4(checkpoint: Checkpoint) -> Architecture:
    """GLM-4 of 2025 (modeling_glm4.py): norms before and after, and rotation of half of each head."""
    return replace(common(checkpoint), has_norms_after=True)


def _glm4moe(checkpoint: Checkpoint) -> Architecture:
    """GLM-4.5 and GLM-4.6 (modeling_glm4_moe.py): the experts of DeepSeek-V3, and perhaps norms per head."""
    mixture = experts_after_dense(checkpoint.parameters, (SIGMOID,))
    return replace(common(checkpoint), mixture=replace(mixture, has_bias=True))


def _statements(stated: Mapping[str, Any], _: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    return {**expert_statements(stated, where), "attention.head_norms": bool(stated.get("use_qk_norm"))}


ARCHITECTURES: dict[str, Declaration] = {
    "glm4": Declaration(
        decoder=_glm4,
        keys=frozenset({RMS}),
        has_pairs_in_gguf=True,
        has_pairs_in_folders=True,
        has_joined_gates=True,
        model_types={
            "glm4": ModelType(
                defaults={
                    "head_dim": 128, "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-7,
                    "max_position_embeddings": 131_072, "attention_bias": True,
                },
                attention_bias="attention_bias",
                output_bias=False,
            ),
        },
    ),
    "glm4moe": Declaration(
        decoder=_glm4moe,
        keys=frozenset({
            RMS, *EXPERTS, *EXPERT_GROUPS, EXPERT_SIZE, SHARED_COUNT, LEADING_DENSE, PREDICTING,
        }),
        head_norms="perhaps",
        names=EXPERT_NAMES,
        norm_name=(".post_attention_norm.", ".ffn_norm."),
        predicting=NUMBERED_ON,
        model_types={
            "glm4_moe": ModelType(
                defaults={
                    "num_hidden_layers": 46, "hidden_size": 4096, "intermediate_size": 10_944,
                    "num_attention_heads": 96, "num_key_value_heads": 8, "max_position_embeddings": 131_072,
                    "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "first_k_dense_replace": 1,
                    "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
                    "moe_intermediate_size": 1408, "routed_scaling_factor": 1.0, "norm_topk_prob": True, "n_group": 1,
                    "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
                },
                attention_bias="attention_bias",
                output_bias=False,
                statements=_statements,
            ),
        },
    ),
}  # fmt: skip
