"""Command R, Aya and Command R7B: one layer norm for both layers of a block, and scaled logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import LAYER, WINDOWS, common, windowed
from onward.checkpoints.parameters import WINDOW

_PATTERN = 4


def _cohere(checkpoint: Checkpoint) -> Architecture:
    """Command R and R+, Aya 23 and Aya Expanse (modeling_cohere.py). Command R+ normalises queries and keys, with
    weights of each head's own."""
    scale = checkpoint.parameters.real("logit_scale", 1.0) or 1.0
    return replace(common(checkpoint, norm="layer"), is_parallel=True, logit_scale=scale)


def _cohere2(checkpoint: Checkpoint) -> Architecture:
    """Command R7B (modeling_cohere2.py): Command R, of which three layers of four have a window, and only those have
    positions."""
    parameters, found = checkpoint.parameters, _cohere(checkpoint)
    if parameters.has(WINDOW):
        parameters.integer(WINDOW, minimum=1)
    found = windowed(found, parameters, _PATTERN)
    return replace(found, ropeless_layers=frozenset(range(found.num_layers)) - found.window_layers)


def _statements(stated: Mapping[str, Any], found: Mapping[str, MetadataValue], _: str) -> dict[str, MetadataValue]:
    """Return what config.json states in its own way. 'model_max_length' is the context of Command R, whose
    'max_position_embeddings' is that of its first training."""
    return {
        "attention.head_norms": bool(stated.get("use_qk_norm")),
        "context_length": stated.get("model_max_length", found.get("context_length")),
    }


ARCHITECTURES: dict[str, Declaration] = {
    "command-r": Declaration(
        decoder=_cohere,
        keys=frozenset({LAYER, "logit_scale"}),
        head_norms="of each head",
        has_pairs_in_gguf=True,
        has_pairs_in_folders=True,
        model_types={
            "cohere": ModelType(
                defaults={
                    "hidden_size": 8192, "intermediate_size": 22_528, "num_hidden_layers": 40,
                    "num_attention_heads": 64, "max_position_embeddings": 8192, "rope_theta": 5e5,
                    "logit_scale": 0.0625, "layer_norm_eps": 1e-5,
                },
                attention_bias="attention_bias",
                is_tied=True,
                statements=_statements,
            ),
        },
    ),
    "cohere2": Declaration(
        decoder=_cohere2,
        keys=frozenset({LAYER, "logit_scale", *WINDOWS}),
        has_pairs_in_gguf=True,
        has_pairs_in_folders=True,
        model_types={
            "cohere2": ModelType(
                defaults={
                    "sliding_window": 4096, "sliding_window_pattern": 4, "logit_scale": 0.0625, "layer_norm_eps": 1e-5,
                },
                attention_bias="attention_bias",
                is_tied=True,
            ),
        },
    ),
}  # fmt: skip
