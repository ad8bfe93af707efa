"""LFM2, with experts or without: gated short convolutions in most layers, attention in the others.

GGUF files state no heads of keys for such layers; folders name the kind of each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import EVERY_LAYER, EXPERT_SIZE, EXPERTS, LEADING_DENSE, RMS, common, windowed
from onward.checkpoints.mixtures import SIGMOID, mixture_of
from onward.checkpoints.parameters import MAX_CONVOLUTION, WINDOW, Parameters, is_layer_count, listed_layers
from onward.checkpoints.tensor import Tensor
from onward.errors import CheckpointError

_ATTENTION, _CONVOLUTION = "full_attention", "conv"
_DEFAULTS: dict[str, Any] = {
    "conv_L_cache": 3, "norm_eps": 1e-5, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
}  # fmt: skip
"""Of transformers' Lfm2Config (models/lfm2/configuration_lfm2.py)."""
_MOE_DEFAULTS: dict[str, Any] = {
    "conv_L_cache": 3, "norm_eps": 1e-5, "num_dense_layers": 2, "use_expert_bias": True, "routed_scaling_factor": 1.0,
}  # fmt: skip
"""Of its Lfm2MoeConfig (models/lfm2_moe/configuration_lfm2_moe.py)."""


def _lfm2(checkpoint: Checkpoint) -> Architecture:
    """LFM2 (modular_lfm2.py): gated short convolutions in most layers, norms per head in the others, which may have a
    window in GGUF files."""
    found = _with_convolutions(checkpoint)
    windows = windowed(found, checkpoint.parameters, EVERY_LAYER)
    return replace(windows, window_layers=windows.window_layers - found.convolution_layers)


def _with_convolutions(checkpoint: Checkpoint) -> Architecture:
    """Return the architecture with convolutions in the layers that state no heads of keys. Raises CheckpointError."""
    parameters, found = checkpoint.parameters, common(checkpoint, may_lack_heads=True)
    heads = parameters.own("attention.head_count_kv")
    of_layers = heads if isinstance(heads, list | np.ndarray) else []
    length = parameters.integer("shortconv.l_cache", minimum=2)
    if length > MAX_CONVOLUTION:
        raise CheckpointError(
            f"{parameters.where} has convolutions over {length} positions ('shortconv.l_cache'), at most "
            f"{MAX_CONVOLUTION} are computed."
        )
    layers = frozenset(layer for layer, count in enumerate(of_layers) if count == 0)
    return replace(found, convolution_layers=layers, convolution_length=length)


def _lfm2moe(checkpoint: Checkpoint) -> Architecture:
    """LFM2 with experts in all layers but the first ones (modular_lfm2_moe.py), whose weights are sigmoids. A bias that
    balances the training counts for the choice alone."""
    parameters, found = checkpoint.parameters, _with_convolutions(checkpoint)
    first = parameters.integer(LEADING_DENSE, 0)
    mixture = mixture_of(parameters, feed_forward=0, is_normalised=True, rules=(SIGMOID,))
    layers = frozenset(range(first, found.num_layers))
    if not layers:
        raise CheckpointError(f"{parameters.where} has no layer with experts ({LEADING_DENSE!r}).")
    return replace(found, mixture=replace(mixture, layers=layers, has_bias=parameters.switch("expert_bias", True)))


def _statements(stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return what config.json states in LFM2's own way, by GGUF's names. Raises CheckpointError for a kind of layer
    that LFM2 does not have, and for numbers that no size can be made of."""
    is_mixture = stated.get("model_type") == "lfm2_moe"
    given = (_MOE_DEFAULTS if is_mixture else _DEFAULTS) | dict(stated)
    common = {
        "activation": "silu",
        RMS: given["norm_eps"],
        "shortconv.l_cache": given["conv_L_cache"],
        WINDOW: 0,
        **_heads(given, found, where),
    }
    if not is_mixture:
        return {**common, "feed_forward_length": _feed_forward(given, where)}
    return {
        **common,
        LEADING_DENSE: given["num_dense_layers"],
        "expert_bias": given["use_expert_bias"],
        "expert_weights_scale": given["routed_scaling_factor"],
    }


def _heads(given: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return the heads of keys in each layer, 0 in those with a convolution."""
    count, heads = found.get("block_count"), found.get("attention.head_count_kv")
    for name in ("layer_types", "full_attn_idxs"):
        if not isinstance(given.get(name, []), list):
            raise CheckpointError(f"{where} states {str(given[name])[:40]!r} as {name!r} instead of a list.")
    if not is_layer_count(count) or type(heads) is not int:
        return {}  # reported by what reads the number
    with_attention = listed_layers(given.get("full_attn_idxs", range(count)))
    usual = [_ATTENTION if layer in with_attention else _CONVOLUTION for layer in range(count)]
    kinds = given.get("layer_types", usual)
    for kind in kinds:
        if kind not in (_ATTENTION, _CONVOLUTION):
            raise CheckpointError(f"{where} has layers of the kind {str(kind)[:40]!r}, which Onward does not compute.")
    return {"attention.head_count_kv": [heads if kind == _ATTENTION else 0 for kind in kinds]}


def _feed_forward(given: Mapping[str, Any], where: str) -> Any:
    """Return the inner size of feed-forward layers, which files state before it is adjusted."""
    size = given.get("block_ff_dim", given.get("intermediate_size"))
    if not given["block_auto_adjust_ff_dim"] or size is None:
        return size
    multiplier, multiple = given["block_ffn_dim_multiplier"], given["block_multiple_of"]
    if multiplier is None:  # then the size need not be a multiple, either
        multiplier, multiple = 1, 1
    for number in (size, multiplier, multiple):
        if not isinstance(number, int | float) or isinstance(number, bool) or not 1e-9 < number < 1e9:
            raise CheckpointError(f"{where} states {str(number)[:40]!r} where a number is needed.")
    adjusted = int(multiplier * int(2 * size / 3))
    return int(-(-adjusted // multiple) * multiple)


def _as_in_gguf(_: Parameters, tensor: Tensor) -> Tensor:
    """Return convolutions of each number by itself as a matrix."""
    is_convolution = tensor.name.endswith("shortconv.conv.weight") and tensor.shape[1:-1] == (1,)
    return replace(tensor, shape=(tensor.shape[0], tensor.shape[-1])) if is_convolution else tensor


_COMMON_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 1e6, "max_position_embeddings": 128_000,
    "num_hidden_layers": 32,
}  # fmt: skip
_NORM_NAME = ("token_embd_norm.", "output_norm.")
ARCHITECTURES: dict[str, Declaration] = {
    "lfm2": Declaration(
        decoder=_lfm2,
        keys=frozenset({RMS, "shortconv.l_cache", WINDOW}),
        head_norms="always",
        norm_name=_NORM_NAME,
        as_in_gguf=_as_in_gguf,
        model_types={
            "lfm2": ModelType(
                defaults={**_COMMON_DEFAULTS, "hidden_size": 2560, "intermediate_size": 12_288},
                is_tied=True,
                tied_by="tie_embedding",
                statements=_statements,
            ),
        },
    ),
    "lfm2moe": Declaration(
        decoder=_lfm2moe,
        keys=frozenset({RMS, *EXPERTS, EXPERT_SIZE, "shortconv.l_cache", LEADING_DENSE}),
        head_norms="always",
        norm_name=_NORM_NAME,
        names={"feed_forward.expert_bias": "exp_probs_b.bias"},
        as_in_gguf=_as_in_gguf,
        model_types={
            "lfm2_moe": ModelType(
                defaults={
                    **_COMMON_DEFAULTS, "hidden_size": 2048, "intermediate_size": 7168, "num_experts": 32,
                    "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "norm_topk_prob": True,
                },
                is_tied=True,
                tied_by="tie_embedding",
                experts="usual",
                statements=_statements,
            ),
        },
    ),
}  # fmt: skip
