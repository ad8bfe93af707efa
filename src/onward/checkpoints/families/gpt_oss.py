"""gpt-oss: sinks, windows on every second layer, and experts with biases and a unit of their own."""

from __future__ import annotations

from dataclasses import replace

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import (
    EXPERT_SIZE,
    EXPERTS,
    RMS,
    WINDOW_BASE,
    WINDOWS,
    common,
    windowed,
    with_local_base,
)
from onward.checkpoints.mixtures import mixture_of
from onward.errors import CheckpointError

_PATTERN = 2


def _gpt_oss(checkpoint: Checkpoint) -> Architecture:
    """gpt-oss (modular_gpt_oss.py): the weights of experts are normalised over the chosen ones."""
    parameters, found = checkpoint.parameters, common(checkpoint)
    if found.activation != "silu":
        raise CheckpointError(f"{parameters.where} has the activation {found.activation!r} instead of 'silu'.")
    found = replace(
        found,
        has_sinks=True,
        activation="clamped_silu",
        mixture=mixture_of(parameters, feed_forward=found.feed_forward, is_normalised=True),
    )
    return windowed(with_local_base(found, checkpoint), parameters, _PATTERN)


ARCHITECTURES: dict[str, Declaration] = {
    "gpt-oss": Declaration(
        decoder=_gpt_oss,
        keys=frozenset({RMS, *EXPERTS, EXPERT_SIZE, *WINDOWS, WINDOW_BASE}),
        biases="always",
        is_untied=True,
        norm_name=(".post_attention_norm.", ".ffn_norm."),
        names={
            "self_attn.sinks": "attn_sinks.weight",
            **{
                f"mlp.experts.{part}_proj{end}": f"ffn_{part}_exps.{kind}"
                for part in ("gate_up", "down")
                for end, kind in {
                    "": "inputs_first", "_blocks": "codes", "_scales": "exponents", "_bias": "biases",
                }.items()
            },
        },
        model_types={
            "gpt_oss": ModelType(
                defaults={
                    "rms_norm_eps": 1e-5, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
                    "sliding_window": 128, "sliding_window_pattern": 2, "num_local_experts": 128,
                    "num_experts_per_tok": 4, "attention_bias": True, "rope_theta": 1.5e5,
                    "max_position_embeddings": 131_072, "rope_scaling": {
                        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                        "original_max_position_embeddings": 4096,
                    },
                },
                attention_bias="attention_bias",
                feed_forward_bias=True,
                experts="usual",
            ),
        },
    ),
}  # fmt: skip
