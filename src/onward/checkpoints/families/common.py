"""What many architectures state in the same way, and names of GGUF's keys that several use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.architecture import Activation, Architecture, NormKind
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.parameters import PREDICTING, WINDOW, Parameters
from onward.checkpoints.rope import rope_of
from onward.errors import CheckpointError

RMS, LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
EXPERTS = (
    "expert_count", "expert_used_count", "expert_gating_func", "expert_weights_norm", "expert_weights_scale",
)  # fmt: skip
EXPERT_GROUPS = ("expert_group_count", "expert_group_used_count")
EXPERT_SIZE, SHARED_SIZE = "expert_feed_forward_length", "expert_shared_feed_forward_length"
SCALES = ("logit_scale", "residual_scale", "embedding_scale", "attention.scale")
STATE_SPACE = (
    "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count",
)  # fmt: skip
LEADING_DENSE, SHARED_COUNT = "leading_dense_block_count", "expert_shared_count"
WINDOW_LAYERS, WINDOW_BASE = "attention.sliding_window_pattern", "rope.freq_base_swa"
WINDOWS = (WINDOW, WINDOW_LAYERS)
DELTA = (*STATE_SPACE, "full_attention_interval", "attention.recurrent_layers", PREDICTING)

LOCAL_BASE = "rope.freq_base_local"
"""The base of positions of layers with a window, of folders alone: where llama.cpp's graph has one base."""
EVERY_LAYER = 0
"""The period of windows that all layers have."""

_LEAST_MAGNITUDE = 2.0**-10
"""By which rotated queries and keys are multiplied before their norms, which take it out again; at most its inverse."""
_EPSILONS: dict[NormKind, str] = {"rms": RMS, "layer": LAYER}
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_tanh", "relu": "relu", "relu_squared": "relu_squared",
    "xielu": "xielu",
}  # fmt: skip


def common(
    checkpoint: Checkpoint,
    *,
    norm: NormKind = "rms",
    activation: Activation = "silu",
    head_size: int | None = None,
    num_kv_heads: int | None = None,
    feed_forward: int | None = None,
    may_lack_heads: bool = False,
    epsilon: float | None = None,
) -> Architecture:
    """Return what all architectures state in the same way, as Llama would use it. `head_size`, `num_kv_heads`,
    `feed_forward`: of an architecture that states it in another way; `may_lack_heads`: layers may have no attention.
    Raises CheckpointError."""
    parameters = checkpoint.parameters
    hidden, layers = parameters.integer("embedding_length", minimum=1), parameters.num_layers()
    heads = parameters.same_in_layers("attention.head_count", layers)
    if head_size is None:
        head_size = parameters.head_size(hidden // heads)
    return Architecture(
        name=parameters.architecture,
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=num_kv_heads
        or parameters.same_in_layers("attention.head_count_kv", layers, heads, may_lack=may_lack_heads),
        head_size=head_size,
        feed_forward=feed_forward or parameters.same_in_layers("feed_forward_length", layers, 4 * hidden),
        context_length=parameters.integer("context_length", minimum=1),
        epsilon=parameters.real(_EPSILONS[norm]) if epsilon is None else epsilon,
        rope=rope_of(
            checkpoint,
            parameters.integer("rope.dimension_count", head_size, minimum=2),
            parameters.real("rope.freq_base", 10_000.0),
        ),
        norm=norm,
        activation=_activation(parameters, activation),
    )


def _activation(parameters: Parameters, default: Activation) -> Activation:
    stated = parameters.text("activation", default)
    found = _ACTIVATIONS.get(stated)
    if found is None:
        raise CheckpointError(f"{parameters.where} has the activation {stated[:40]!r}, which Onward does not compute.")
    return found


def with_local_base(found: Architecture, checkpoint: Checkpoint) -> Architecture:
    """Return the architecture with another base of positions for layers with a window, if the file states one."""
    assert found.rope is not None
    base = checkpoint.parameters.real(WINDOW_BASE, found.rope.base)
    if base == found.rope.base:
        return found
    return replace(found, local_rope=rope_of(checkpoint, found.rope.size, base))


def require_norms_of_rotated(found: Architecture, where: str) -> None:
    """Raise CheckpointError for a rotation after which queries and keys are not computed as normalised: one that
    changes the size of a part of a head alone, or that of a head a thousandfold."""
    assert found.rope is not None
    magnitude, is_whole = found.rope.magnitude, found.rope.size == found.head_size
    if not (magnitude == 1 or (is_whole and _LEAST_MAGNITUDE <= magnitude <= 1 / _LEAST_MAGNITUDE)):
        raise CheckpointError(
            f"{where} multiplies {found.rope.size} rotated of {found.head_size} dimensions by {magnitude:g} "
            f"(YaRN, or 'rope.scaling.attn_factor'), which Onward does not compute for {found.name!r}."
        )


def windowed(found: Architecture, parameters: Parameters, period: int | None = None, default: int = 0) -> Architecture:
    """Return the architecture with the window that the parameters state, on the layers that they state, else on all but
    every `period`-th one. With neither it stays without one, which is refused if the window matters."""
    window = parameters.integer(WINDOW, default)
    layers = parameters.switches(WINDOW_LAYERS, found.num_layers)
    if layers is None and period is not None:
        layers = [period == EVERY_LAYER or bool((layer + 1) % period) for layer in range(found.num_layers)]
    return replace(found, window=window, window_layers=on(layers)) if window and layers is not None else found


def on(switches: Iterable[bool]) -> frozenset[int]:
    """Return the layers in which something is on."""
    return frozenset(layer for layer, is_on in enumerate(switches) if is_on)


def heads_together(parameters: Parameters, count: int) -> NDArray[np.int64] | None:
    """Return the order of rows of which folders have the queries of each head of keys together, then it and its value:
    GPT-NeoX's, InternLM 2's and Falcon's. None for another number of rows than these are."""
    heads = parameters.integer("attention.head_count", minimum=1)
    keys = parameters.integer("attention.head_count_kv", heads, minimum=1)
    if heads % keys or count % (heads + 2 * keys):
        return None
    rows = np.arange(count).reshape(keys, heads // keys + 2, -1)
    return np.concatenate([part.reshape(-1) for part in np.split(rows, (-2, -1), axis=1)])


def without_window(_: Mapping[str, Any], found: Mapping[str, MetadataValue], __: str) -> dict[str, MetadataValue]:
    """Return that there is no window, of a folder that switches it off: a GGUF file that states none has one."""
    return {} if WINDOW in found else {WINDOW: 0}


def local_base(_: Mapping[str, Any], found: Mapping[str, MetadataValue], __: str) -> dict[str, MetadataValue]:
    """Return the base of positions of layers with a window under the name that only folders have."""
    return {LOCAL_BASE: found[WINDOW_BASE]} if WINDOW_BASE in found else {}


def require_stated(stated: Mapping[str, Any], only: Mapping[str, tuple[Any, ...]], where: str) -> None:
    """Raise CheckpointError for a statement that is none of those that are computed."""
    for name, possible in only.items():
        if stated.get(name) not in possible:
            raise CheckpointError(
                f"{where} states {str(stated[name])[:40]!r} as {name!r}, with which Onward does not compute "
                f"{stated['model_type']!r}."
            )
