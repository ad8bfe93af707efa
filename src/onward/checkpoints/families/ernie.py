"""ERNIE 4.5 without experts: Llama, whose rotated pairs are side by side in folders, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import RMS, require_stated
from onward.checkpoints.families.llama import llama


def _statements(stated: Mapping[str, Any], _: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return nothing. Raises CheckpointError for biases, which no published model has and llama.cpp leaves out."""
    require_stated(stated, {"use_bias": (False, None)}, where)
    return {}


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
                    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
                    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5,
                    "rope_theta": 5e5, "max_position_embeddings": 131_072,
                },
                is_tied=True,
                statements=_statements,
            ),
        },
    ),
}  # fmt: skip
