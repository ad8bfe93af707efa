"""Falcon-H1: attention and a state space in each layer, which read the same and are added up, and many multipliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import RMS, STATE_SPACE, common
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.state_spaces import (
    MAMBA_NAMES,
    STATE_NORM,
    as_in_gguf,
    expanded,
    require_computed,
    sizes_of,
    state_space_of,
    states_multipliers,
)
from onward.checkpoints.tensor import Tensor, few_floats, vector
from onward.errors import CheckpointError

_MULTIPLIERS = (
    "embedding_multiplier", "lm_head_multiplier", "attention_in_multiplier", "attention_out_multiplier",
    "key_multiplier", "ssm_in_multiplier", "ssm_out_multiplier",
)  # fmt: skip
"""Of Falcon-H1, in folders; GGUF files have them in their weights."""
_LISTS = {"ssm_multipliers": ("gate", "values", "inputs", "outputs", "times"), "mlp_multipliers": ("feed_gate", "feed")}
"""Those that are lists, and what each one's entries are called here."""


def _falcon_h1(checkpoint: Checkpoint) -> Architecture:
    """Falcon-H1 (modeling_falcon_h1.py): attention and a state space in each layer, which read the same and are added
    up. Multipliers are part of a GGUF file's weights; those of a folder's multiply products, and weights of
    convolutions (`_as_in_gguf`)."""
    parameters, found = checkpoint.parameters, common(checkpoint)
    space = replace(state_space_of(parameters, frozenset(range(found.num_layers))), is_parallel_to_attention=True)
    if not states_multipliers(parameters):
        return replace(found, state_space=space)
    queries, keys = (heads * found.head_size for heads in (found.num_heads, found.num_kv_heads))
    read, of_state = (_multiplier(parameters, f"{part}_in_multiplier") for part in ("attention", "ssm"))
    whole = {
        "attn_q": (queries, read),
        "attn_k": (keys, read * _multiplier(parameters, "key_multiplier")),
        "attn_v": (keys, read),
        "attn_output": (found.hidden, _multiplier(parameters, "attention_out_multiplier")),
        "ssm_out": (found.hidden, _multiplier(parameters, "ssm_out_multiplier")),
        "ffn_gate": (found.feed_forward, _multiplier(parameters, "feed_gate")),
        "ffn_down": (found.hidden, _multiplier(parameters, "feed")),
    }
    gate, times = (of_state * _multiplier(parameters, part) for part in ("gate", "times"))
    return replace(
        found,
        state_space=space,
        embedding_scale=_multiplier(parameters, "embedding_multiplier"),
        logit_scale=_multiplier(parameters, "lm_head_multiplier"),
        multipliers={
            **{name: (part,) for name, part in whole.items()},
            "ssm_in": ((space.inner, gate), (space.width, 1.0), (space.num_heads, times)),
        },
    )


def _multiplier(parameters: Parameters, name: str) -> float:
    return parameters.real(f"multiplier.{name}")


def _statements(stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return sizes by GGUF's names, and multipliers by names of their own. Raises CheckpointError for what is not
    computed."""
    require_computed(stated, "hidden_act", ("attention_bias", "mlp_bias", "projectors_bias"), where)
    has_norm = bool(stated["mamba_rms_norm"])
    if has_norm and stated["mamba_norm_before_gate"]:
        raise CheckpointError(
            f"{where} normalises what a state space returns before its gate ('mamba_norm_before_gate'), which Onward "
            "does not compute."
        )
    inner = expanded(stated) if stated["mamba_d_ssm"] is None else stated["mamba_d_ssm"]
    multipliers = {name: stated.get(name, 1.0) for name in _MULTIPLIERS}
    for name, entries in _LISTS.items():
        numbers = stated.get(name, [1.0] * len(entries))
        if not isinstance(numbers, list) or len(numbers) != len(entries):
            raise CheckpointError(f"{where} states {str(numbers)[:60]} as {name!r} instead of {len(entries)} numbers.")
        multipliers |= dict(zip(entries, numbers, strict=True))
    return {
        **sizes_of(stated, inner, where),
        STATE_NORM: has_norm,
        "embedding_scale": 0.0,  # which is no multiplier's name in a GGUF file
        **{f"multiplier.{name}": number for name, number in multipliers.items()},
    }


def _as_in_gguf(parameters: Parameters, tensor: Tensor) -> Tensor:
    """Return a tensor as other state spaces have it, weights of convolutions multiplied by the multipliers of what they
    read."""
    found = as_in_gguf(parameters, tensor)
    is_multiplied = states_multipliers(parameters) and tensor.name.endswith("ssm_conv1d.weight") and found is not tensor
    return _multiplied(parameters, found) if is_multiplied else found


def _multiplied(parameters: Parameters, taps: Tensor) -> Tensor:
    """Return the weights of a convolution, multiplied by what it reads is multiplied by."""
    states = parameters.integer("ssm.group_count") * parameters.integer("ssm.state_size")
    counts = parameters.integer("ssm.inner_size"), states, states
    numbers = [_multiplier(parameters, part) for part in ("values", "inputs", "outputs")]
    if sum(counts) != taps.shape[0]:
        return taps  # as whoever checks sizes says
    factors = np.repeat(np.array(numbers) * _multiplier(parameters, "ssm_in_multiplier"), counts)
    values = (few_floats(taps, parameters.where) * factors[:, None]).astype(np.float32)
    return replace(vector(taps.name, values.reshape(-1)), shape=taps.shape)


ARCHITECTURES: dict[str, Declaration] = {
    "falcon-h1": Declaration(
        decoder=_falcon_h1,
        keys=frozenset({RMS, *STATE_SPACE}),
        may_lack_state_norms=True,
        names=MAMBA_NAMES,
        norm_name=(".ffn_norm", ".ffn_norm.weight"),
        as_in_gguf=_as_in_gguf,
        has_multipliers=True,
        model_types={
            "falcon_h1": ModelType(
                defaults={
                    "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
                    "mamba_d_ssm": 1024, "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1,
                    "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True,
                    "mamba_proj_bias": False, "mamba_norm_before_gate": True, "mamba_rms_norm": False,
                },
                statements=_statements,
            ),
        },
    ),
}  # fmt: skip
