"""Command R, Aya, Command R7B and North: one norm for both layers of a block, and scaled logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture, Mixture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import NUMBERED_ON, Declaration, ModelType
from onward.checkpoints.families.common import (
    EXPERT_SIZE,
    EXPERTS,
    LAYER,
    LEADING_DENSE,
    RMS,
    SHARED_COUNT,
    SHARED_SIZE,
    WINDOW_LAYERS,
    WINDOWS,
    common,
    on,
    require_stated,
    windowed,
)
from onward.checkpoints.families.deepseek import EXPERT_NAMES
from onward.checkpoints.mixtures import SIGMOID, SOFTMAX, SOFTMAX_OF_CHOSEN, mixture_of
from onward.checkpoints.parameters import PREDICTING, WINDOW, Parameters, is_layer_count
from onward.errors import CheckpointError

_PATTERN = 4
_ROTATED, _WITH_EXPERTS, _IS_AVERAGE = "rope.layers", "expert.layers", "expert.results_are_averaged"
"""Of folders alone, from `_moe_statements`: llama.cpp has rules for them."""


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


def _cohere2moe(checkpoint: Checkpoint) -> Architecture:
    """North Mini Code and Command A+ (modular_cohere2_moe.py): Command R7B with experts, but for the first layers,
    which have positions and no window. Raises CheckpointError."""
    parameters = checkpoint.parameters
    found = common(checkpoint, norm="rms" if parameters.real(RMS, 0.0) else "layer")
    period = parameters.own(WINDOW_LAYERS)
    if type(period) is int or period is None:  # GGUF's: the first one of so many has no window
        period = parameters.integer(WINDOW_LAYERS, _PATTERN)
        local = on(period == 0 or layer % period != 0 for layer in range(found.num_layers))
    else:
        local = on(parameters.switches(WINDOW_LAYERS, found.num_layers) or ())
    mixture = _mixture(parameters, found.feed_forward)
    stated = parameters.switches(_ROTATED, found.num_layers)
    rotated = local | (frozenset(range(found.num_layers)) - mixture.layers) if stated is None else on(stated)
    return replace(
        found,
        is_parallel=True,
        logit_scale=parameters.real("logit_scale", 1.0) or 1.0,
        window=parameters.integer(WINDOW, minimum=1),
        window_layers=local,
        ropeless_layers=frozenset(range(found.num_layers)) - rotated,
        mixture=mixture,
    )


def _mixture(parameters: Parameters, feed_forward: int) -> Mixture:
    """Return the experts, whose results, where all tokens use some more, are averaged with those of these. Raises
    CheckpointError."""
    rules = SIGMOID, SOFTMAX, SOFTMAX_OF_CHOSEN
    found = mixture_of(parameters, feed_forward=feed_forward, is_normalised=False, rules=rules)
    layers = frozenset(layer for layer in found.layers if layer >= parameters.integer(LEADING_DENSE, 0))
    if not layers:
        raise CheckpointError(f"{parameters.where} has no layer with experts ({LEADING_DENSE!r}).")
    count = parameters.integer(SHARED_COUNT, 0)
    shared = (found.shared_feed_forward or found.feed_forward * count) if count else 0
    is_average = shared > 0 and parameters.switch(_IS_AVERAGE, True)
    return replace(
        found,
        layers=layers,
        shared_feed_forward=shared,
        is_by_logit=found.is_sigmoid,
        result_scale=0.5 if is_average else 1.0,
    )


def _moe_statements(
    stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str
) -> dict[str, MetadataValue]:
    """Return what config.json states in its own way. Raises CheckpointError for what is not computed."""
    only: dict[str, tuple[Any, ...]] = {
        "expert_selection_fn": ("softmax", "sigmoid"), "shared_expert_combination_strategy": ("average", "sum"),
    }  # fmt: skip
    require_stated(stated, only, where)
    result: dict[str, MetadataValue] = {
        "feed_forward_length": stated["prefix_dense_intermediate_size"] or stated["intermediate_size"],
        "expert_count": stated["num_experts"],
        "expert_used_count": stated["num_experts_per_tok"],
        EXPERT_SIZE: stated["intermediate_size"],
        SHARED_COUNT: stated["num_shared_experts"],
        "expert_gating_func": SIGMOID if stated["expert_selection_fn"] == "sigmoid" else SOFTMAX_OF_CHOSEN,
        "expert_weights_norm": stated["norm_topk_prob"],
        _IS_AVERAGE: stated["shared_expert_combination_strategy"] == "average",
        PREDICTING: stated.get("num_nextn_predict_layers") or 0,
    }
    if not is_layer_count(count := found.get("block_count")):
        return result  # which is refused elsewhere
    names = "first_k_dense_replace", "prefix_dense_sliding_window_pattern", "sliding_window_pattern"
    first, before, period = (stated[name] for name in names)
    if not all(type(each) is int for each in (first, before, period)) or min(before, period) < 1 or first < 0:
        raise CheckpointError(
            f"{where} states {str((first, before, period))[:60]} as layers without experts, and with windows "
            f"({', '.join(map(repr, names))})."
        )
    usual = [bool((layer + 1) % before if layer < first else (layer - first + 1) % period) for layer in range(count)]
    local = _named(stated, "layer_types", ("sliding_attention", "full_attention"), where) or usual
    dense = _named(stated, "mlp_layer_types", ("dense", "sparse"), where) or [layer < first for layer in range(count)]
    rotated = [each or (is_dense and before == 1) for each, is_dense in zip(local, dense, strict=False)]
    return {**result, WINDOW_LAYERS: local, _WITH_EXPERTS: [not each for each in dense], _ROTATED: rotated}


def _named(stated: Mapping[str, Any], name: str, kinds: tuple[str, str], where: str) -> list[bool] | None:
    """Return which layers are of the first of two kinds, None if no list says it. Raises CheckpointError for other
    kinds."""
    listed = stated.get(name)
    if not isinstance(listed, list):
        return None
    if other := [each for each in listed if each not in kinds]:
        raise CheckpointError(
            f"{where} has layers of the kind {str(other[0])[:40]!r} ({name!r}), which Onward does not compute for "
            f"{stated['model_type']!r}."
        )
    return [each == kinds[0] for each in listed]


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
    "cohere2moe": Declaration(
        decoder=_cohere2moe,
        keys=frozenset({
            LAYER, RMS, "logit_scale", *WINDOWS, *EXPERTS, EXPERT_SIZE, SHARED_SIZE, SHARED_COUNT, LEADING_DENSE,
            PREDICTING,
        }),
        has_pairs_in_gguf=True,
        has_pairs_in_folders=True,
        names=EXPERT_NAMES,
        predicting=NUMBERED_ON,
        model_types={
            "cohere2_moe": ModelType(
                defaults={
                    "hidden_size": 8192, "intermediate_size": 22_528, "num_hidden_layers": 40,
                    "num_attention_heads": 64, "head_dim": 128, "max_position_embeddings": 8192,
                    "layer_norm_eps": 1e-5, "rms_norm_eps": None, "logit_scale": 0.0625, "sliding_window": 4096,
                    "sliding_window_pattern": _PATTERN, "num_experts": 8, "num_experts_per_tok": 2,
                    "num_shared_experts": 0, "shared_expert_combination_strategy": "average",
                    "expert_selection_fn": "softmax", "norm_topk_prob": True, "first_k_dense_replace": 0,
                    "prefix_dense_sliding_window_pattern": 1, "prefix_dense_intermediate_size": None,
                },
                attention_bias="attention_bias",
                is_tied=True,
                experts="own",
                statements=_moe_statements,
            ),
        },
    ),
}  # fmt: skip
