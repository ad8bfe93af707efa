"""Llama 4: three layers of four attend to chunks, with positions and plain norms of queries and keys; the others to
everything, without positions; experts whose weights multiply what they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture, Mixture, QueryGrowth
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import (
    EXPERT_SIZE,
    RMS,
    WINDOW_BASE,
    WINDOW_LAYERS,
    WINDOWS,
    common,
    on,
    require_norms_of_rotated,
    require_stated,
    with_local_base,
)
from onward.checkpoints.mixtures import SIGMOID, mixture_of, with_rows_first
from onward.checkpoints.parameters import WINDOW, Parameters, is_layer_count, listed_layers
from onward.checkpoints.tensor import Tensor
from onward.errors import CheckpointError

_STEP = "interleave_moe_layer_step"
_PATTERN, _CHUNK = 4, 8192
_GROWTH, _GROWTH_LENGTH = "attention.temperature_scale", "attention.temperature_length"
_ROTATED, _WITH_EXPERTS, _HAS_NORMS = "rope.layers", "expert.layers", "attention.head_norms"
"""Of folders alone, from `_statements`: llama.cpp has rules for them."""
_MAVERICK = 128
"""Experts of the model that has no norms of queries and keys, by which llama.cpp knows it."""


def _llama4(checkpoint: Checkpoint) -> Architecture:
    """Scout and Maverick (modeling_llama4.py). llama.cpp's graph has chunks of 8,192, whatever a file states. Raises
    CheckpointError."""
    parameters, found = checkpoint.parameters, with_local_base(common(checkpoint), checkpoint)
    layers = range(found.num_layers)
    usual = [bool((layer + 1) % _PATTERN) for layer in layers]
    rotated = on(parameters.switches(_ROTATED, found.num_layers) or usual)
    chunked = on(parameters.switches(WINDOW_LAYERS, found.num_layers) or usual)
    growth = QueryGrowth(parameters.real(_GROWTH, 0.1), parameters.integer(_GROWTH_LENGTH, _CHUNK, minimum=1), offset=1)
    mixture = _mixture(parameters)
    has_norms = parameters.switch(_HAS_NORMS, mixture is None or mixture.count != _MAVERICK)
    if has_norms:
        require_norms_of_rotated(found, parameters.where)
    return replace(
        found,
        mixture=mixture,
        has_plain_head_norms=has_norms,
        ropeless_layers=frozenset(layers) - rotated,
        ropeless_growth=growth,
        window=parameters.integer(WINDOW, _CHUNK, minimum=1),
        window_layers=chunked,
        has_chunks=True,
    )


def _mixture(parameters: Parameters) -> Mixture | None:
    """Return the experts, and one as large that all tokens use, in every so many-th layer; None for a folder that has
    none. Raises CheckpointError."""
    stated = parameters.switches(_WITH_EXPERTS, parameters.num_layers())
    if stated is not None and not any(stated):
        return None
    found = mixture_of(parameters, feed_forward=0, is_normalised=False, rules=(SIGMOID,))
    layers = found.layers
    if stated is None:
        step = parameters.integer(_STEP, minimum=1)
        layers = frozenset(layer for layer in layers if (layer + 1) % step == 0)
    if not layers:
        raise CheckpointError(f"{parameters.where} has no layer with experts ({_STEP!r}).")
    return replace(found, layers=layers, shared_feed_forward=found.feed_forward, is_by_logit=True, weighs_inputs=True)


def _statements(stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return what config.json states in its own way. Raises CheckpointError for what is not computed."""
    require_stated(stated, {"partial_rotary_factor": (1, None)}, where)
    rules = stated.get("rope_parameters") or stated.get("rope_scaling") or {}
    require_stated({**rules, "model_type": stated["model_type"]}, {"partial_rotary_factor": (1, None)}, where)
    result: dict[str, MetadataValue] = {
        "feed_forward_length": stated["intermediate_size_mlp"],
        _HAS_NORMS: bool(stated["use_qk_norm"]),
        _GROWTH: stated["attn_scale"] if stated["attn_temperature_tuning"] else 0.0,
        _GROWTH_LENGTH: stated["floor_scale"],
        WINDOW: stated["attention_chunk_size"],
    }
    if not is_layer_count(count := found.get("block_count")):
        return result  # which is refused elsewhere
    rotated = _switches(stated, "no_rope_layers", count)
    if rotated is None:
        period = _period(stated, "no_rope_layer_interval", where)
        rotated = [bool((layer + 1) % period) for layer in range(count)]
    with_experts = stated.get("moe_layers")
    if isinstance(with_experts, list):
        listed = listed_layers(with_experts)
        are_on = [layer in listed for layer in range(count)]
    else:
        period = _period(stated, _STEP, where)
        are_on = [(layer + 1) % period == 0 for layer in range(count)]
    result |= {_ROTATED: rotated, WINDOW_LAYERS: _chunked(stated, rotated, where), _WITH_EXPERTS: are_on}
    experts: dict[str, MetadataValue] = {
        "expert_count": stated["num_local_experts"],
        "expert_used_count": stated["num_experts_per_tok"],
        EXPERT_SIZE: stated["intermediate_size"],
    }
    return result | experts if any(are_on) else result


def _switches(stated: Mapping[str, Any], name: str, count: int) -> list[bool] | None:
    """Return whether something is on in each layer; None where there is no list, or an empty one. Lists may be longer
    than there are layers."""
    listed = stated.get(name)
    return [bool(each) for each in listed[:count]] if isinstance(listed, list) and listed else None


def _period(stated: Mapping[str, Any], name: str, where: str) -> int:
    period = stated[name]
    if type(period) is not int or period < 1:
        raise CheckpointError(f"{where} states {str(period)[:40]!r} as {name!r}, with which Onward cannot compute.")
    return period


def _chunked(stated: Mapping[str, Any], rotated: list[bool], where: str) -> list[bool]:
    """Return which layers attend to chunks: those that a list names so, else those with positions."""
    kinds = stated.get("layer_types")
    if not isinstance(kinds, list):
        return rotated
    if other := [kind for kind in kinds if kind not in ("chunked_attention", "full_attention")]:
        raise CheckpointError(
            f"{where} has layers of the kind {str(other[0])[:40]!r} ('layer_types'), which Onward does not compute for "
            f"{stated['model_type']!r}."
        )
    return [kind == "chunked_attention" for kind in kinds]


def _with_rows_first(_: Parameters, tensor: Tensor) -> Tensor:
    """Return a folder's tensor; matrices of all experts together have inputs first there."""
    part = tensor.name.partition(".ffn_")[2]
    return with_rows_first(tensor) if part in ("gate_up_exps.weight", "down_exps.weight") else tensor


_SHARED = {f"feed_forward.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
ARCHITECTURES: dict[str, Declaration] = {
    "llama4": Declaration(
        decoder=_llama4,
        keys=frozenset({
            RMS, "expert_count", "expert_used_count", EXPERT_SIZE, _STEP, *WINDOWS, WINDOW_BASE, _GROWTH,
            _GROWTH_LENGTH,
        }),
        has_pairs_in_gguf=True,
        has_pairs_in_folders=True,
        names={
            **_SHARED, "feed_forward.router": "ffn_gate_inp",
            "feed_forward.experts.gate_up_proj": "ffn_gate_up_exps.weight",
            "feed_forward.experts.down_proj": "ffn_down_exps.weight",
        },
        as_in_gguf=_with_rows_first,
        model_types={
            "llama4_text": ModelType(
                defaults={
                    "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16_384,
                    "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
                    "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
                    "num_local_experts": 16, "num_experts_per_tok": 1, _STEP: 1, "use_qk_norm": True,
                    "no_rope_layer_interval": _PATTERN, "attention_chunk_size": _CHUNK,
                    "attn_temperature_tuning": True, "floor_scale": _CHUNK, "attn_scale": 0.1,
                },
                attention_bias="attention_bias",
                experts="own",
                with_images="llama4",
                statements=_statements,
            ),
        },
    ),
}  # fmt: skip
