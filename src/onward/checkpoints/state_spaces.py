"""State-space layers (Mamba 2), in place of attention or parallel to it: what files state of them.

GGUF files state no heads of keys for layers without attention; folders name the kind of each layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.architecture import StateSpace
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.parameters import MAX_CONVOLUTION, Parameters, is_layer_count
from onward.checkpoints.rope_scaling import DECIMALS
from onward.checkpoints.tensor import Tensor, few_floats, vector
from onward.errors import CheckpointError

_LANES = 16
"""Of which a head's size is a multiple, and all that is convolved."""
_GROUP = 32
"""Of which all heads together are a multiple."""
_ATTENTION, _STATE_SPACE = ("attention", "full_attention"), ("mamba", "linear_attention")
_ENDLESS: tuple[Any, ...] = (None, math.inf, "Infinity", {"__float__": "Infinity"})
"""As folders state that time steps have no limit above."""
_DOUBT = 2.0**-44
"""By which powers of numpy may be wrong, as a fraction: 256 times what they are on any machine."""
MAMBA_NAMES = {"mamba.A_log": "ssm_a", "mamba.D": "ssm_d", "mamba.dt_bias": "ssm_dt.bias"}
"""GGUF's names of a layer's tensors by those of Granite 4's and Falcon-H1's folders."""
STATE_NORM = "ssm.is_normalised"
"""Whether a folder has norms of what state spaces return, where not all models have them."""


def states_multipliers(parameters: Parameters) -> bool:
    """Return whether these are of a folder of Falcon-H1's, whose weights do not contain its multipliers."""
    return parameters.has("multiplier.key_multiplier")


def state_space_of(parameters: Parameters, layers: frozenset[int]) -> StateSpace:
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
    if not 2 <= length <= MAX_CONVOLUTION:
        raise CheckpointError(
            f"{where} has convolutions over {length} positions ('ssm.conv_kernel'), 2 to {MAX_CONVOLUTION} are "
            "computed."
        )
    return found


def heads_of_layers(
    stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str
) -> dict[str, MetadataValue]:
    """Return the heads of keys in each layer, 0 in those with a state space. Raises CheckpointError for other kinds."""
    count, heads = found.get("block_count"), found.get("attention.head_count_kv", found.get("attention.head_count"))
    if not is_layer_count(count) or type(heads) is not int:
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


def sizes_of(stated: Mapping[str, Any], inner: Any, where: str) -> dict[str, MetadataValue]:
    """Return what Granite 4 and Falcon-H1 state alike. `inner`: the size of all heads together. Raises CheckpointError
    for what is not computed."""
    require_computed(stated, "hidden_act", ("mamba_proj_bias",), where)
    heads, size = stated["mamba_n_heads"], stated["mamba_d_head"]
    if size != "auto" and (type(size) is not int or type(heads) is not int or size * heads != inner):
        raise CheckpointError(
            f"{where} states {str(heads)[:40]} heads ('mamba_n_heads') of {str(size)[:40]} numbers ('mamba_d_head'), "
            f"but {str(inner)[:40]} together."
        )
    return {
        "ssm.inner_size": inner,
        "ssm.time_step_rank": heads,
        "ssm.group_count": stated["mamba_n_groups"],
        "ssm.state_size": stated["mamba_d_state"],
        "ssm.conv_kernel": stated["mamba_d_conv"],
        "ssm.convolution_bias": bool(stated["mamba_conv_bias"]),
    }


def require_computed(stated: Mapping[str, Any], activation: str, biases: Iterable[str], where: str) -> None:
    """Raise CheckpointError for a state space that is not computed: with another activation than SiLU, with biases of
    matrices, or with time steps within limits."""
    for bias in biases:
        if stated.get(bias):
            raise CheckpointError(
                f"{where} has state spaces and projections with biases ({bias!r}), which Onward does not compute."
            )
    if stated[activation] not in ("silu", "swish"):
        raise CheckpointError(
            f"{where} has state-space layers with the activation {str(stated[activation])[:40]!r} ({activation!r}), "
            "which Onward does not compute."
        )
    limits = stated.get("time_step_limit")
    is_pair = isinstance(limits, list | tuple) and len(limits) == 2
    if limits is not None and not (is_pair and limits[0] == 0 and limits[1] in _ENDLESS):
        raise CheckpointError(
            f"{where} limits time steps ('time_step_limit': {str(limits)[:60]}), which Onward does not compute."
        )


def expanded(stated: Mapping[str, Any]) -> int | None:
    """Return the size of all heads together, as a multiple of the hidden size."""
    hidden, expand = stated.get("hidden_size"), stated.get("mamba_expand")
    return hidden * expand if type(hidden) is int and type(expand) is int else None


def as_in_gguf(parameters: Parameters, tensor: Tensor) -> Tensor:
    """Return a tensor of a folder, by GGUF's name, as GGUF files have it: what decays as the negative number of
    e**decay, numbers of heads as a matrix of one column, a norm by its groups, and convolutions of each number by
    itself as a matrix."""
    layer = tensor.name.rpartition(".")
    if layer[2] == "ssm_a":
        return _as_column(vector(tensor.name, -powers(few_floats(tensor, parameters.where).reshape(-1))))
    if layer[2] == "ssm_d":
        return _as_column(tensor)
    if tensor.name.endswith("ssm_conv1d.weight") and tensor.shape[1:-1] == (1,):
        return replace(tensor, shape=(tensor.shape[0], tensor.shape[-1]))
    groups = parameters.integer("ssm.norm_group_count", parameters.integer("ssm.group_count", minimum=1), minimum=1)
    if tensor.name.endswith("ssm_norm.weight") and groups > 1 and tensor.shape[0] % groups == 0:
        return replace(tensor, shape=(groups, tensor.shape[0] // groups))
    return tensor


def powers(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return e**number of each, rounded as from decimal numbers. What numpy computes differs in its last bits between
    machines, which almost never changes the rounding. Where it might, for a few thousand of all numbers, decimal ones
    decide, which take 20 microseconds each."""
    distinct, places = np.unique(np.clip(numbers, -1000, 1000).astype(np.float64), return_inverse=True)
    with np.errstate(over="ignore"):
        found = np.exp(distinct)
        low, high = ((found * factor).astype(np.float32) for factor in (1 - _DOUBT, 1 + _DOUBT))
        for each in np.flatnonzero(low != high):
            found[each] = float(Decimal(float(distinct[each])).exp(DECIMALS))
        rounded: NDArray[np.float32] = found.astype(np.float32)[places].reshape(numbers.shape)
    return rounded


def _as_column(tensor: Tensor) -> Tensor:
    return replace(tensor, shape=(tensor.shape[0], 1)) if len(tensor.shape) == 1 else tensor
