"""State-space layers (Mamba 2), in place of attention or parallel to it: what files state of them.

GGUF files state no heads of keys for layers without attention; folders name the kind of each layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from onward.checkpoints.architecture import Architecture, StateSpace
from onward.checkpoints.convolutions import MAX_LENGTH
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.mixtures import has_experts, mixture_of
from onward.checkpoints.parameters import Parameters, is_layer_count
from onward.checkpoints.rope_scaling import DECIMALS
from onward.checkpoints.tensor import Tensor, vector
from onward.errors import CheckpointError

_LANES = 16
"""Of which a head's size is a multiple, and all that is convolved."""
_GROUP = 32
"""Of which all heads together are a multiple."""
_ATTENTION, _STATE_SPACE = ("attention", "full_attention"), ("mamba", "linear_attention")
_ENDLESS: tuple[Any, ...] = (None, math.inf, "Infinity", {"__float__": "Infinity"})
"""As folders state that time steps have no limit above."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {
        "attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024,
        "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_head": "auto", "mamba_d_conv": 4,
        "mamba_expand": 2, "mamba_conv_bias": True, "mamba_proj_bias": False,
    },
    "falcon_h1": {
        "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "mamba_d_ssm": 1024,
        "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4,
        "mamba_expand": 2, "mamba_conv_bias": True, "mamba_proj_bias": False, "mamba_norm_before_gate": True,
        "mamba_rms_norm": False,
    },
}  # fmt: skip
"""Of transformers' classes (models/*/configuration_*.py)."""
STATE_NORM = "ssm.is_normalised"
"""Whether a folder has norms of what state spaces return, where not all models have them."""
_MULTIPLIERS = (
    "embedding_multiplier", "lm_head_multiplier", "attention_in_multiplier", "attention_out_multiplier",
    "key_multiplier", "ssm_in_multiplier", "ssm_out_multiplier",
)  # fmt: skip
"""Of Falcon-H1, in folders; GGUF files have them in their weights."""
_LISTS = {"ssm_multipliers": ("gate", "values", "inputs", "outputs", "times"), "mlp_multipliers": ("feed_gate", "feed")}
"""Those that are lists, and what each one's entries are called here."""


def granitehybrid(parameters: Parameters, granite: Architecture) -> Architecture:
    """Granite 4 (modular_granitemoehybrid.py): state spaces in the layers that state no heads of keys, which models
    without an H in their names do not have, attention in the others, mostly without positions, and perhaps experts,
    with a shared one that all tokens use. `granite`: what is as in Granite. Raises CheckpointError."""
    heads = parameters.own("attention.head_count_kv")
    of_layers = heads if isinstance(heads, list | np.ndarray) else []
    layers = frozenset(layer for layer, count in enumerate(of_layers) if count == 0)
    found = replace(granite, state_space=state_space_of(parameters, layers) if layers else None)
    if not has_experts(parameters):
        return found
    return replace(found, mixture=mixture_of(parameters, feed_forward=found.feed_forward, is_normalised=True))


def falcon_h1(parameters: Parameters, common: Architecture) -> Architecture:
    """Falcon-H1 (modeling_falcon_h1.py): attention and a state space in each layer, which read the same and are added
    up. Multipliers are part of a GGUF file's weights; those of a folder's multiply products, and weights of
    convolutions (`as_in_gguf`). `common`: what all architectures state in the same way. Raises CheckpointError."""
    space = replace(state_space_of(parameters, frozenset(range(common.num_layers))), is_parallel_to_attention=True)
    if not states_multipliers(parameters):
        return replace(common, state_space=space)
    queries, keys = (heads * common.head_size for heads in (common.num_heads, common.num_kv_heads))
    read, of_state = (_multiplier(parameters, f"{part}_in_multiplier") for part in ("attention", "ssm"))
    whole = {
        "attn_q": (queries, read),
        "attn_k": (keys, read * _multiplier(parameters, "key_multiplier")),
        "attn_v": (keys, read),
        "attn_output": (common.hidden, _multiplier(parameters, "attention_out_multiplier")),
        "ssm_out": (common.hidden, _multiplier(parameters, "ssm_out_multiplier")),
        "ffn_gate": (common.feed_forward, _multiplier(parameters, "feed_gate")),
        "ffn_down": (common.hidden, _multiplier(parameters, "feed")),
    }
    gate, times = (of_state * _multiplier(parameters, part) for part in ("gate", "times"))
    return replace(
        common,
        state_space=space,
        embedding_scale=_multiplier(parameters, "embedding_multiplier"),
        logit_scale=_multiplier(parameters, "lm_head_multiplier"),
        multipliers={
            **{name: (part,) for name, part in whole.items()},
            "ssm_in": ((space.inner, gate), (space.width, 1.0), (space.num_heads, times)),
        },
    )


def states_multipliers(parameters: Parameters) -> bool:
    """Return whether these are of a folder of Falcon-H1's, whose weights do not contain its multipliers."""
    return parameters.has("multiplier.key_multiplier")


def _multiplier(parameters: Parameters, name: str) -> float:
    return parameters.real(f"multiplier.{name}")


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
    if not 2 <= length <= MAX_LENGTH:
        raise CheckpointError(
            f"{where} has convolutions over {length} positions ('ssm.conv_kernel'), 2 to {MAX_LENGTH} are computed."
        )
    return found


def _heads(stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return the heads of keys in each layer, 0 in those with a state space."""
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


def _common_metadata(stated: Mapping[str, Any], inner: Any, where: str) -> dict[str, MetadataValue]:
    """Return what Granite 4 and Falcon-H1 state alike. `inner`: the size of all heads together."""
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


def _expanded(stated: Mapping[str, Any]) -> int | None:
    hidden, expand = stated.get("hidden_size"), stated.get("mamba_expand")
    return hidden * expand if type(hidden) is int and type(expand) is int else None


def _granite_metadata(
    stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str
) -> dict[str, MetadataValue]:
    """Return what config.json states in Granite 4's own way, by GGUF's names. `found`: what it states as others do.
    Raises CheckpointError for kinds of layers that it does not have, and what is not computed."""
    has_experts = bool(stated["num_local_experts"])
    dense = {"feed_forward_length": stated["shared_intermediate_size"], "expert_count": 0, "expert_used_count": 0}
    return {
        **_common_metadata(stated, _expanded(stated), where),
        "ssm.norm_group_count": 1,
        "rope.scaling.finetuned": stated.get("position_embedding_type") == "rope",
        "attention.sliding_window": 0,
        **({} if has_experts else dense),
        **_heads(stated, found, where),
    }


def _falcon_metadata(
    stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str
) -> dict[str, MetadataValue]:
    """Return what config.json states in Falcon-H1's own way: sizes by GGUF's names, multipliers by names of their own.
    Raises CheckpointError for what is not computed."""
    require_computed(stated, "hidden_act", ("attention_bias", "mlp_bias", "projectors_bias"), where)
    has_norm = bool(stated["mamba_rms_norm"])
    if has_norm and stated["mamba_norm_before_gate"]:
        raise CheckpointError(
            f"{where} normalises what a state space returns before its gate ('mamba_norm_before_gate'), which Onward "
            "does not compute."
        )
    inner = _expanded(stated) if stated["mamba_d_ssm"] is None else stated["mamba_d_ssm"]
    multipliers = {name: stated.get(name, 1.0) for name in _MULTIPLIERS}
    for name, entries in _LISTS.items():
        numbers = stated.get(name, [1.0] * len(entries))
        if not isinstance(numbers, list) or len(numbers) != len(entries):
            raise CheckpointError(f"{where} states {str(numbers)[:60]} as {name!r} instead of {len(entries)} numbers.")
        multipliers |= dict(zip(entries, numbers, strict=True))
    return {
        **_common_metadata(stated, inner, where),
        STATE_NORM: has_norm,
        "embedding_scale": 0.0,  # which is no multiplier's name in a GGUF file
        **{f"multiplier.{name}": number for name, number in multipliers.items()},
    }


METADATA: dict[str, Callable[[Mapping[str, Any], Mapping[str, MetadataValue], str], dict[str, MetadataValue]]] = {
    "granitehybrid": _granite_metadata,
    "falcon-h1": _falcon_metadata,
}
"""By architecture, what config.json states of its state spaces."""
NAMES = frozenset(METADATA)


def as_in_gguf(parameters: Parameters, tensor: Tensor) -> Tensor:
    """Return a tensor of a folder, by GGUF's name, as GGUF files have it: what decays as the negative number of
    e**decay, numbers of heads as a matrix of one column, a norm by its groups, and convolutions of each number by
    itself as a matrix, which Falcon-H1's multipliers of what is convolved are part of."""
    layer = tensor.name.rpartition(".")
    if layer[2] == "ssm_a":
        # rounded correctly: powers of numpy differ between machines
        numbers = [-float(Decimal(float(x)).exp(DECIMALS)) for x in np.clip(tensor.floats().reshape(-1), -1000, 1000)]
        return _as_column(vector(tensor.name, np.array(numbers, np.float32)))
    if layer[2] == "ssm_d":
        return _as_column(tensor)
    if tensor.name.endswith("ssm_conv1d.weight") and tensor.shape[1:-1] == (1,):
        matrix = replace(tensor, shape=(tensor.shape[0], tensor.shape[-1]))
        return _multiplied(parameters, matrix) if states_multipliers(parameters) else matrix
    groups = parameters.integer("ssm.norm_group_count", parameters.integer("ssm.group_count", minimum=1), minimum=1)
    if tensor.name.endswith("ssm_norm.weight") and groups > 1 and tensor.shape[0] % groups == 0:
        return replace(tensor, shape=(groups, tensor.shape[0] // groups))
    return tensor


def _multiplied(parameters: Parameters, taps: Tensor) -> Tensor:
    """Return the weights of a convolution, multiplied by what Falcon-H1 multiplies what it reads by."""
    states = parameters.integer("ssm.group_count") * parameters.integer("ssm.state_size")
    counts = parameters.integer("ssm.inner_size"), states, states
    numbers = [_multiplier(parameters, part) for part in ("values", "inputs", "outputs")]
    if sum(counts) != taps.shape[0]:
        return taps  # as whoever checks sizes says
    factors = np.repeat(np.array(numbers) * _multiplier(parameters, "ssm_in_multiplier"), counts)
    values = (taps.floats() * factors[:, None]).astype(np.float32)
    return replace(vector(taps.name, values.reshape(-1)), shape=taps.shape)


def _as_column(tensor: Tensor) -> Tensor:
    return replace(tensor, shape=(tensor.shape[0], 1)) if len(tensor.shape) == 1 else tensor
