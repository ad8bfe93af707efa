"""Ling 2.0 and Ring 2.0: DeepSeek-V3's experts in groups, norms per head, rotation of a half of each."""

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
    SHARED_SIZE,
    common,
    require_stated,
)
from onward.checkpoints.families.deepseek import experts_after_dense
from onward.checkpoints.mixtures import SIGMOID
from onward.checkpoints.parameters import PREDICTING


def _bailingmoe2(checkpoint: Checkpoint) -> Architecture:
    """Ling 2.0 (the authors' modeling_bailing_moe_v2.py, https://github.com/inclusionAI/Ling-V2)."""
    mixture = experts_after_dense(checkpoint.parameters, (SIGMOID,))
    has_bias = f"blk.{min(mixture.layers)}.exp_probs_b.bias" in checkpoint.tensors
    return replace(common(checkpoint), mixture=replace(mixture, has_bias=has_bias))


def _statements(stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return what config.json states in its own way. Raises CheckpointError for what is not computed."""
    only = {"score_function": ("sigmoid", None), "use_qk_norm": (True,), "norm_topk_prob": (True, None)}
    require_stated(stated, only, where)
    return {
        "expert_count": stated["num_experts"],
        "expert_used_count": stated["num_experts_per_tok"],
        EXPERT_SIZE: stated["moe_intermediate_size"],
        SHARED_COUNT: stated["num_shared_experts"] or 0,
        "expert_weights_norm": stated["num_experts_per_tok"] != 1,
        "expert_weights_scale": stated["routed_scaling_factor"],
        "expert_gating_func": SIGMOID,
        "expert_group_count": stated["n_group"],
        "expert_group_used_count": stated["topk_group"],
        LEADING_DENSE: stated["first_k_dense_replace"],
        PREDICTING: stated["num_nextn_predict_layers"] or 0,
    }


ARCHITECTURES: dict[str, Declaration] = {
    "bailingmoe2": Declaration(
        decoder=_bailingmoe2,
        keys=frozenset({
            RMS, *EXPERTS, *EXPERT_GROUPS, EXPERT_SIZE, SHARED_SIZE, SHARED_COUNT, LEADING_DENSE, PREDICTING,
        }),
        head_norms="always",
        is_untied=True,
        names={
            "word_embeddings": "token_embd", "attention.query_layernorm": "attn_q_norm",
            "attention.key_layernorm": "attn_k_norm", "mlp.gate.expert_bias": "exp_probs_b.bias",
        },
        norm_name=(".layer_output_norm.", ".nextn.shared_head_norm."),
        predicting=NUMBERED_ON,
        model_types={
            "bailing_moe_v2": ModelType(
                defaults={
                    "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 20,
                    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "rope_theta": 6e5,
                    "max_position_embeddings": 32_768, "num_experts": 256, "num_shared_experts": 1,
                    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "moe_intermediate_size": 512,
                    "first_k_dense_replace": 1, "routed_scaling_factor": 1.0, "use_qk_norm": True,
                    "num_nextn_predict_layers": 0,
                },
                attention_bias="use_qkv_bias",
                output_bias="use_bias",
                experts="own",
                statements=_statements,
            ),
        },
    ),
}  # fmt: skip
"""Defaults are those of the authors' class (configuration_bailing_moe_v2.py)."""
