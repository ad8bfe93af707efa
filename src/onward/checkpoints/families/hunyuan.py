"""Hunyuan, with experts or without: Llama, whose queries and keys are normalised after their rotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Any

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import (
    EXPERT_SIZE,
    EXPERTS,
    RMS,
    SHARED_SIZE,
    common,
    require_norms_of_rotated,
    require_stated,
)
from onward.checkpoints.families.deepseek import EXPERT_NAMES
from onward.checkpoints.mixtures import SOFTMAX, mixture_of
from onward.checkpoints.rope_scaling import DECIMALS
from onward.errors import CheckpointError

_LANES = 16
"""Of which the size of a head is a multiple where rotated queries are normalised."""
_ALPHA = "rope.scaling.alpha"


def _hunyuan(checkpoint: Checkpoint) -> Architecture:
    """Hunyuan (modular_hunyuan_v1_dense.py). Raises CheckpointError for sizes of heads, and positions, that
    are not computed."""
    parameters, found = checkpoint.parameters, common(checkpoint)
    assert found.rope is not None
    if found.head_size % _LANES:
        raise CheckpointError(
            f"{parameters.where} has heads of {found.head_size} dimensions, which Onward computes for {found.name!r} "
            f"only if they are a multiple of {_LANES}."
        )
    require_norms_of_rotated(found, parameters.where)
    base = _stretched(found.rope.base, parameters.real(_ALPHA, 0.0), found.head_size, parameters.where)
    return replace(found, rope=replace(found.rope, base=base), has_head_norms_after_rotation=True)


def _stretched(base: float, alpha: float, size: int, where: str) -> float:
    """Return the base with which the slowest of `size` dimensions turn `alpha` times as slowly, correctly rounded; 0:
    the base itself. GGUF files of today have it as their base. Raises CheckpointError."""
    if alpha == 0:
        return base
    if not (0 < base < 1e30 and 0 < alpha < 1e9):
        raise CheckpointError(f"{where} states {alpha:g} as {_ALPHA!r}, with which Onward cannot compute.")
    with localcontext(DECIMALS):
        return float(Decimal(base) * (Decimal(alpha).ln() * size / (size - 2)).exp())


def _moe(checkpoint: Checkpoint) -> Architecture:
    """With experts, and one that all tokens use (modular_hunyuan_v1_moe.py)."""
    found = _hunyuan(checkpoint)
    mixture = mixture_of(checkpoint.parameters, feed_forward=found.feed_forward, is_normalised=True, rules=(SOFTMAX,))
    shared = mixture.shared_feed_forward or found.feed_forward
    return replace(found, mixture=replace(mixture, shared_feed_forward=shared))


def _require_computed(stated: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError for what the authors' own code reads, and transformers' class does not."""
    only: dict[str, tuple[Any, ...]] = {
        "use_qk_norm": (True, None), "use_cla": (False, None), "use_mla": (False, None), "norm_type": ("rms", None),
    }  # fmt: skip
    require_stated(stated, only, where)


def _of_dense(stated: Mapping[str, Any], _: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    _require_computed(stated, where)
    require_stated(stated, {"num_experts": (1, 0, None)}, where)
    return {}


def _of_moe(stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    _require_computed(stated, where)
    return {
        "expert_count": stated["num_experts"],
        "expert_used_count": stated.get("moe_topk", stated.get("num_experts_per_tok")),
        EXPERT_SIZE: found["feed_forward_length"],
        SHARED_SIZE: found["feed_forward_length"],
        "expert_weights_norm": True,
    }


_NAMES = {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
}  # fmt: skip
ARCHITECTURES: dict[str, Declaration] = {
    "hunyuan-dense": Declaration(
        decoder=_hunyuan,
        keys=frozenset({RMS, _ALPHA}),
        head_norms="always",
        names=_NAMES,
        model_types={
            "hunyuan_v1_dense": ModelType(
                defaults=_DEFAULTS, attention_bias="attention_bias", experts="own", statements=_of_dense
            ),
        },
    ),
    "hunyuan-moe": Declaration(
        decoder=_moe,
        keys=frozenset({RMS, *EXPERTS, EXPERT_SIZE, SHARED_SIZE, _ALPHA}),
        head_norms="always",
        names={
            **_NAMES, **EXPERT_NAMES, "mlp.gate.wg": "ffn_gate_inp",
            **{f"mlp.shared_mlp.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
        },
        model_types={
            "hunyuan_v1_moe": ModelType(
                defaults={**_DEFAULTS, "num_experts": 1, "moe_topk": 1},
                attention_bias="attention_bias",
                experts="own",
                statements=_of_moe,
            ),
        },
    ),
}  # fmt: skip
