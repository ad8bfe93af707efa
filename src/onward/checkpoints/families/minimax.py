"""MiniMax-M2: experts in all layers, chosen by sigmoids and a bias, norms over all queries and keys, and rotation of a
part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import EXPERT_SIZE, EXPERTS, RMS, common, require_stated
from onward.checkpoints.mixtures import SIGMOID, mixture_of


def _minimax_m2(checkpoint: Checkpoint) -> Architecture:
    """MiniMax-M2 (modular_minimax_m2.py): the weights of experts are normalised over the chosen ones."""
    parameters, found = checkpoint.parameters, common(checkpoint)
    mixture = mixture_of(parameters, feed_forward=found.feed_forward, is_normalised=True, rules=(SIGMOID,))
    return replace(found, mixture=replace(mixture, has_bias=True))


def _statements(stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return what config.json states in its own way. Raises CheckpointError for what is not computed: the class reads
    none of these, and the authors' own code all of them."""
    only = {
        "scoring_func": ("sigmoid", None), "use_qk_norm": (True, None), "qk_norm_type": ("per_layer", None),
        "use_routing_bias": (True, None), "norm_topk_prob": (True, None),
    }  # fmt: skip
    require_stated(stated, only, where)
    rules = stated.get("rope_parameters") or stated.get("rope_scaling") or {}
    is_partial = "partial_rotary_factor" in stated or "partial_rotary_factor" in rules
    rotated = stated.get("rotary_dim")
    return {} if rotated is None or is_partial else {"rope.dimension_count": rotated}


ARCHITECTURES: dict[str, Declaration] = {
    "minimax-m2": Declaration(
        decoder=_minimax_m2,
        keys=frozenset({RMS, *EXPERTS, EXPERT_SIZE}),
        head_norms="of all heads",
        is_untied=True,
        names={
            "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
            "mlp.e_score_correction_bias": "exp_probs_b.bias",
            "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
            "mlp.experts.down_proj": "ffn_down_exps.weight",
        },
        model_types={
            "minimax_m2": ModelType(
                defaults={
                    "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
                    "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 5e6,
                    "max_position_embeddings": 196_608, "num_experts_per_tok": 8, "num_local_experts": 256,
                },
                experts="usual",
                statements=_statements,
            ),
        },
    ),
}  # fmt: skip
