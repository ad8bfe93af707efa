"""dots.llm1: Qwen 3's attention, and DeepSeek-V3's experts after some dense layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import (
    EXPERT_GROUPS,
    EXPERT_SIZE,
    EXPERTS,
    LEADING_DENSE,
    RMS,
    SHARED_COUNT,
    WINDOW_LAYERS,
    common,
    windowed,
)
from onward.checkpoints.families.deepseek import EXPERT_NAMES, expert_statements, experts_after_dense
from onward.checkpoints.mixtures import SIGMOID
from onward.checkpoints.parameters import is_layer_count

_FIRST_WINDOW = "max_window_layers"


def _dots1(checkpoint: Checkpoint) -> Architecture:
    """dots.llm1 (modular_dots1.py)."""
    parameters = checkpoint.parameters
    mixture = experts_after_dense(parameters, (SIGMOID,))
    has_bias = f"blk.{min(mixture.layers)}.exp_probs_b.bias" in checkpoint.tensors
    return windowed(replace(common(checkpoint), mixture=replace(mixture, has_bias=has_bias)), parameters)


def _statements(stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return what config.json states in its own way. Published files call the rule of V3's bias that of the scores, too
    ('scoring_func'). Raises CheckpointError for what is not computed."""
    rule = "sigmoid" if stated["scoring_func"] == "noaux_tc" else stated["scoring_func"]
    experts = expert_statements({**stated, "scoring_func": rule}, where)
    first, count = stated[_FIRST_WINDOW], found.get("block_count")
    if isinstance(stated.get("layer_types"), list) or type(first) is not int or not is_layer_count(count):
        return experts
    return {**experts, WINDOW_LAYERS: [layer >= first for layer in range(count)]}


ARCHITECTURES: dict[str, Declaration] = {
    "dots1": Declaration(
        decoder=_dots1,
        keys=frozenset({RMS, *EXPERTS, *EXPERT_GROUPS, EXPERT_SIZE, SHARED_COUNT, LEADING_DENSE}),
        head_norms="always",
        is_untied=True,
        names=EXPERT_NAMES,
        model_types={
            "dots1": ModelType(
                defaults={
                    "hidden_size": 4608, "intermediate_size": 10_944, "num_hidden_layers": 62,
                    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 2048,
                    "moe_intermediate_size": 1408, "n_routed_experts": None, "n_shared_experts": None, "n_group": 1,
                    "topk_group": 1, "first_k_dense_replace": 0, "norm_topk_prob": False, "routed_scaling_factor": 1.0,
                    "sliding_window": 4096, _FIRST_WINDOW: 62, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
                    "num_nextn_predict_layers": 0,
                },
                attention_bias="attention_bias",
                statements=_statements,
            ),
        },
    ),
}  # fmt: skip
