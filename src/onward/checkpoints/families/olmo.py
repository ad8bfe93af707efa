"""OLMo: norms without weights. OLMo 2 and 3, and OLMoE: norms over all queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture, Rope
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import EXPERTS, LAYER, LOCAL_BASE, RMS, WINDOWS, common, local_base, windowed
from onward.checkpoints.mixtures import mixture_of
from onward.errors import CheckpointError

_OLMO3_PATTERN = 4
_LIMIT = "attention.clamp_kqv"
_EPSILON = 1e-5
"""Of OLMo's norms, which folders do not state."""


def _olmo(checkpoint: Checkpoint) -> Architecture:
    """OLMo (modular_olmo.py; arXiv 2402.00838): Llama with layer norms that have no weights, and, in some, a limit for
    queries, keys and values. Raises CheckpointError."""
    limit = checkpoint.parameters.real(_LIMIT, 0.0)
    if limit < 0:
        raise CheckpointError(f"{checkpoint.parameters.where} states {limit:g} as {_LIMIT!r}, which no model can have.")
    return replace(common(checkpoint, norm="layer"), has_norm_weights=False, projection_limit=limit or None)


def _epsilon(_: Mapping[str, Any], __: Mapping[str, MetadataValue], ___: str) -> dict[str, MetadataValue]:
    return {LAYER: _EPSILON}


def _olmo2(checkpoint: Checkpoint) -> Architecture:
    """OLMo 2 (modeling_olmo2.py): norms after attention and feed-forward layers, and over all queries and keys. OLMo 3
    (modular_olmo3.py) has the same name in GGUF files, and a window on three layers of four, which do not scale their
    positions."""
    parameters, found = checkpoint.parameters, common(checkpoint)
    assert found.rope is not None
    local = Rope(found.rope.size, parameters.real(LOCAL_BASE, found.rope.base))
    found = replace(found, has_norms_before=False, has_norms_after=True, local_rope=local)
    return windowed(found, parameters, _OLMO3_PATTERN)


def _olmoe(checkpoint: Checkpoint) -> Architecture:
    """OLMoE (modeling_olmoe.py): experts whose weights are not normalised, norms over all queries and keys."""
    found = common(checkpoint)
    mixture = mixture_of(checkpoint.parameters, feed_forward=found.feed_forward, is_normalised=False)
    return replace(found, mixture=mixture)


ARCHITECTURES: dict[str, Declaration] = {
    "olmo": Declaration(
        decoder=_olmo,
        keys=frozenset({LAYER, _LIMIT}),
        has_pairs_in_gguf=True,
        model_types={"olmo": ModelType(attention_bias="attention_bias", statements=_epsilon)},
    ),
    "olmo2": Declaration(
        decoder=_olmo2,
        keys=frozenset({RMS, *WINDOWS}),
        head_norms="of all heads",
        is_untied=True,
        model_types={
            "olmo2": ModelType(defaults={"rms_norm_eps": 1e-5}, attention_bias="attention_bias"),
            "olmo3": ModelType(
                defaults={
                    "rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": 4096, "sliding_window_pattern": 4,
                },
                attention_bias="attention_bias",
                statements=local_base,
            ),
        },
    ),
    "olmoe": Declaration(
        decoder=_olmoe,
        keys=frozenset({RMS, *EXPERTS}),
        head_norms="of all heads",
        is_untied=True,
        model_types={
            "olmoe": ModelType(
                defaults={"rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False},
                attention_bias="attention_bias",
                experts="usual",
            ),
        },
    ),
}  # fmt: skip
