"""Llama, and what is computed like it or nearly so: Mistral, Mixtral, Ministral 3, InternLM 2, Seed-OSS, SmolLM 3."""

from __future__ import annotations

from dataclasses import replace

from onward.checkpoints.architecture import Architecture, QueryGrowth
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import EXPERTS, RMS, common, heads_together, on, windowed
from onward.checkpoints.mixtures import has_experts, mixture_of

_SMOLLM3_PATTERN = 4


def llama(checkpoint: Checkpoint) -> Architecture:
    """Llama, and Mixtral (modeling_mixtral.py), whose files say so by their experts."""
    parameters, found = checkpoint.parameters, common(checkpoint)
    if has_experts(parameters):
        mixture = mixture_of(parameters, feed_forward=found.feed_forward, is_normalised=True)
        found = replace(found, mixture=mixture)
    return windowed(found, parameters)


def _mistral3(checkpoint: Checkpoint) -> Architecture:
    """Ministral 3 (modular_ministral3.py): Llama, whose queries grow with each context of its first training."""
    parameters, found = checkpoint.parameters, common(checkpoint)
    assert found.rope is not None
    length = parameters.integer("rope.scaling.original_context_length", found.context_length, minimum=1)
    growth = QueryGrowth(parameters.real("attention.temperature_scale", 0.0), length)
    return windowed(replace(found, rope=replace(found.rope, growth=growth)), parameters)


def _smollm3(checkpoint: Checkpoint) -> Architecture:
    """SmolLM 3 (modeling_smollm3.py): Llama, of which every fourth layer has no positions."""
    found = common(checkpoint)
    rotated = checkpoint.parameters.switches("rope.layers", found.num_layers)
    if rotated is None:
        rotated = [bool((layer + 1) % _SMOLLM3_PATTERN) for layer in range(found.num_layers)]
    return replace(found, ropeless_layers=on(not each for each in rotated))


ARCHITECTURES: dict[str, Declaration] = {
    "llama": Declaration(
        decoder=llama,
        keys=frozenset({RMS, *EXPERTS}),
        has_pairs_in_gguf=True,
        model_types={
            "llama": ModelType(attention_bias="attention_bias", feed_forward_bias="mlp_bias"),
            "mistral": ModelType(
                defaults={"num_key_value_heads": 8, "sliding_window": 4096},
                with_images="mistral3",
            ),
            "mixtral": ModelType(
                defaults={
                    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8,
                    "num_experts_per_tok": 2, "sliding_window": None,
                },
                experts="usual",
            ),
            "internlm3": ModelType(attention_bias="qkv_bias", output_bias="bias", feed_forward_bias="bias"),
        },
    ),
    "mistral3": Declaration(
        decoder=_mistral3,
        keys=frozenset({
            RMS, "attention.temperature_scale", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
            "rope.scaling.yarn_log_multiplier",
        }),
        has_pairs_in_gguf=True,
        model_types={
            "ministral3": ModelType(
                defaults={
                    "head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "sliding_window": None,
                    "max_position_embeddings": 262_144, "rope_scaling": {
                        "type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16_384,
                        "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0,
                        "llama_4_scaling_beta": 0.1,
                    },
                },
            ),
        },
    ),
    "internlm2": Declaration(
        decoder=llama,
        keys=frozenset({RMS}),
        is_untied=True,
        has_pairs_in_gguf=True,
        kinds_apart=heads_together,
        model_types={"internlm2": ModelType(defaults={"bias": True}, attention_bias="bias")},
    ),
    "seed_oss": Declaration(
        decoder=llama,
        keys=frozenset({RMS}),
        norm_name=(".post_attention_norm.", ".ffn_norm."),
        model_types={
            "seed_oss": ModelType(
                defaults={
                    "head_dim": 128, "num_attention_heads": 80, "num_key_value_heads": 8,
                    "max_position_embeddings": 524_288, "attention_bias": True,
                },
                attention_bias="attention_bias",
                output_bias="attention_out_bias",
                feed_forward_bias="mlp_bias",
            ),
        },
    ),
    "smollm3": Declaration(
        decoder=_smollm3,
        keys=frozenset({RMS}),
        has_pairs_in_gguf=True,
        model_types={
            "smollm3": ModelType(
                defaults={
                    "rope_theta": 2e6, "num_key_value_heads": 4, "no_rope_layer_interval": 4,
                    "use_sliding_window": False,
                },
                attention_bias="attention_bias",
                feed_forward_bias="mlp_bias",
                is_tied=True,
            ),
        },
    ),
}  # fmt: skip
