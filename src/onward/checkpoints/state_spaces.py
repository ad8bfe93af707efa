"""State-space layers (Mamba 2), in place of attention or parallel to it: what files state of them.

GGUF files state no heads of keys for layers without attention; folders name the kind of each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from onward.checkpoints.architecture import Architecture, StateSpace
from onward.checkpoints.convolutions import MAX_LENGTH
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.mixtures import has_experts, mixture_of
from onward.checkpoints.parameters import MAX_LAYERS, Parameters
from onward.checkpoints.rope_scaling import DECIMALS
from onward.checkpoints.tensor import Tensor, vector
from onward.errors import CheckpointError

_LANES = 16
"""Of which a head's size is a multiple, and all that is convolved."""
_GROUP = 32
"""Of which all heads together are a multiple."""
_ATTENTION, _STATE_SPACE = ("attention", "full_attention"), ("mamba", "linear_attention")
_NO_LIMITS: tuple[Any, ...] = (None, [0.0, None], [0.0, "Infinity"], [0.0, {"__float__": "Infinity"}])
"""Of time steps, as folders state that there are none."""


def granitehybrid(parameters: Parameters, granite: Architecture) -> Architecture:
    """Granite 4 (modular_granitemoehybrid.py): state spaces in the layers that state no heads of keys, which models
    without an H in their names do not have, attention in the others, mostly without positions, and perhaps experts,
    with a shared one that all tokens use. `granite`: what is as in Granite. Raises CheckpointError."""
    heads = parameters.own("attention.head_count_kv")
    of_layers = heads if isinstance(heads, list | np.ndarray) else []
    layers = frozenset(layer for layer, count in enumerate(of_layers) if count == 0)
    found = replace(granite, state_space=_state_space_of(parameters, layers) if layers else None)
    if not has_experts(parameters):
        return found
    return replace(found, mixture=mixture_of(parameters, feed_forward=found.feed_forward, is_normalised=True))


def falcon_h1(parameters: Parameters, common: Architecture) -> Architecture:
    """Falcon-H1 (modeling_falcon_h1.py): attention and a state space in each layer, which read the same and are added
    up. Multipliers are part of a GGUF file's weights. `common`: what all architectures state in the same way. Raises
    CheckpointError."""
    space = _state_space_of(parameters, frozenset(range(common.num_layers)))
    return replace(common, state_space=replace(space, is_parallel_to_attention=True))


def _state_space_of(parameters: Parameters, layers: frozenset[int]) -> StateSpace:
    """Return what a file states of these layers. Raises CheckpointError for sizes that contradict each other, or that
    are not computed."""
    where = parameters.where
    inner, heads, groups, count, length = (
        parameters.integer(f"ssm.{name}", minimum=1)
        for name in ("inner_size", "time_step_rank", "group_count", "state_size", "conv_kernel")
    )
    if inner % heads or heads % groups:
        raise CheckpointError(
            f"{where} states sizes of state-space layers that no model can have: {inner} numbers ('ssm.inner_size') of "
            f"{heads} heads ('ssm.time_step_rank') in {groups} groups ('ssm.group_count')."
        )
    found = StateSpace(
        layers=layers,
        num_heads=heads,
        head_size=inner // heads,
        state_size=count,
        groups=groups,
        norm_groups=parameters.integer("ssm.norm_group_count", groups, minimum=1),
        length=length,
    )
    if found.head_size % _LANES or found.width % _LANES or inner % _GROUP:
        raise CheckpointError(
            f"{where} has state-space layers with heads of {found.head_size} numbers ('ssm.inner_size'), {inner} "
            f"together, and {found.width} that are convolved ('ssm.group_count', 'ssm.state_size'), of which Onward "
            f"computes multiples of {_LANES}, {_GROUP} and {_LANES}."
        )
    if not 2 <= length <= MAX_LENGTH:
        raise CheckpointError(
            f"{where} has convolutions over {length} positions ('ssm.conv_kernel'), 2 to {MAX_LENGTH} are computed."
        )
    return found


def state_space_metadata(
    stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str
) -> dict[str, MetadataValue]:
    """Return what config.json states in Granite 4's own way, by GGUF's names. `found`: what it states as others do.
    Raises CheckpointError for kinds of layers that it does not have, and what is not computed."""
    if stated["mamba_proj_bias"]:
        raise CheckpointError(
            f"{where} has projections of state-space layers with biases ('mamba_proj_bias'), which Onward does not "
            "compute."
        )
    if stated["hidden_act"] not in ("silu", "swish"):
        raise CheckpointError(
            f"{where} has state-space layers with the activation {str(stated['hidden_act'])[:40]!r} ('hidden_act'), "
            "which Onward does not compute."
        )
    limits = stated.get("time_step_limit")
    if limits not in _NO_LIMITS:
        raise CheckpointError(
            f"{where} limits time steps ('time_step_limit': {str(limits)[:60]}), which Onward does not compute."
        )
    has_experts = bool(stated["num_local_experts"])
    dense = {"feed_forward_length": stated["shared_intermediate_size"], "expert_count": 0, "expert_used_count": 0}
    hidden, expand, heads = (stated.get(name) for name in ("hidden_size", "mamba_expand", "mamba_n_heads"))
    inner = hidden * expand if type(hidden) is int and type(expand) is int else None
    size = stated["mamba_d_head"]
    if (
        size != "auto"
        and inner is not None
        and (type(size) is not int or type(heads) is not int or size * heads != inner)
    ):
        raise CheckpointError(
            f"{where} states {str(heads)[:40]} heads ('mamba_n_heads') of {str(size)[:40]} numbers ('mamba_d_head'), "
            f"but {inner} together ('mamba_expand')."
        )
    return {
        "ssm.inner_size": inner,
        "ssm.time_step_rank": heads,
        "ssm.group_count": stated["mamba_n_groups"],
        "ssm.norm_group_count": 1,
        "ssm.state_size": stated["mamba_d_state"],
        "ssm.conv_kernel": stated["mamba_d_conv"],
        "ssm.convolution_bias": bool(stated["mamba_conv_bias"]),
        "rope.scaling.finetuned": stated.get("position_embedding_type") == "rope",
        "attention.sliding_window": 0,
        **({} if has_experts else dense),
        **_heads(stated, found, where),
    }


def _heads(stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return the heads of keys in each layer, 0 in those with a state space."""
    count, heads = found.get("block_count"), found.get("attention.head_count_kv", found.get("attention.head_count"))
    if type(count) is not int or not 0 < count <= MAX_LAYERS or type(heads) is not int:
        return {}  # as whoever reads the number says
    kinds = stated.get("layer_types", stated.get("layers_block_type"))
    if kinds is None:
        kinds = [_STATE_SPACE[0]] * count
    if not isinstance(kinds, list):
        raise CheckpointError(f"{where} states {str(kinds)[:40]!r} as 'layer_types' instead of a list.")
    for kind in kinds:
        if kind not in (*_ATTENTION, *_STATE_SPACE):
            raise CheckpointError(f"{where} has layers of the kind {str(kind)[:40]!r}, which Onward does not compute.")
    return {"attention.head_count_kv": [heads if kind in _ATTENTION else 0 for kind in kinds]}


def decays_of(logarithms: Tensor) -> Tensor:
    """Return -e**x of each number, [numbers, 1], with the same bits on every machine."""
    numbers = [-float(Decimal(float(x)).exp(DECIMALS)) for x in logarithms.floats().reshape(-1)]
    return as_column(vector(logarithms.name, np.array(numbers, np.float32)))


def as_column(tensor: Tensor) -> Tensor:
    """Return a vector as a matrix of one column, as GGUF files have those of state spaces."""
    return replace(tensor, shape=(tensor.shape[0], 1)) if len(tensor.shape) == 1 else tensor
