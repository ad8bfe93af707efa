"""Gemma 4 (modeling_gemma4.py, modeling_gemma4_unified.py).

Layers with a window have heads of another size, and perhaps another number of keys. Values are normalised; where no
matrix makes them, they are the keys before their norm. The last layers may attend to keys and values of an earlier one,
and be twice as wide. In small models each layer adds something that it looks up for its token. A mixture of experts
comes in addition to an ordinary feed-forward layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture, Heads, Rope
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import (
    EXPERT_SIZE,
    EXPERTS,
    RMS,
    WINDOW_BASE,
    WINDOW_LAYERS,
    WINDOWS,
    common,
    on,
)
from onward.checkpoints.mixtures import has_experts, mixture_of
from onward.checkpoints.parameters import WINDOW, Parameters, is_layer_count
from onward.errors import CheckpointError

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
_PERIOD = 6
"""Of folders that state no kinds of layers: the last one of so many has no window."""
LOGIT_CAP = 30.0
"""llama.cpp's, where a file states none."""
_INPUT_GROUP = 32
"""Of which a layer's own input is a multiple, as blocks of quantised weights are."""
_PER_LAYER = frozenset({"head_dim", "num_key_value_heads"})
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512, "max_position_embeddings": 131_072,
    "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 512, "final_logit_softcapping": 0.0,
    "hidden_size_per_layer_input": 256, "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    },
}  # fmt: skip
"""Of the configuration class."""
_UNIFIED_DEFAULTS: dict[str, Any] = {
    **_DEFAULTS, "sliding_window": 1024, "max_position_embeddings": 262_144, "hidden_size_per_layer_input": 0,
}  # fmt: skip
"""Of the one of models without encoders of their own."""


def _sizes(stated: Mapping[str, Any], _: Mapping[str, MetadataValue], where: str) -> dict[str, Any]:
    """Return what a configuration states of layers, by GGUF's names. Raises CheckpointError."""
    count = stated["num_hidden_layers"]
    if not is_layer_count(count):
        return {}
    # the last layer never has a window
    local = [*local_layers(stated.get("layer_types"), count, _PERIOD, where)[:-1], False]
    heads = [_heads_stated(stated, layer, local[layer], where) for layer in range(count)]
    sizes = [size for size, _ in heads]
    keyless = stated.get("num_kv_shared_layers") or 0
    inner = stated["intermediate_size"]
    is_wide = stated.get("use_double_wide_mlp") and type(inner) is int and type(keyless) is int
    found = {
        "attention.key_length": _of_kind(sizes, local, False, where),
        "attention.key_length_swa": _of_kind(sizes, local, True, where),
        "attention.head_count_kv": [keys for _, keys in heads],
        "attention.shared_kv_layers": keyless,
        "attention.keys_are_values": bool(stated.get("attention_k_eq_v")),
        WINDOW_LAYERS: local,
        "embedding_length_per_layer_input": stated.get("hidden_size_per_layer_input") or 0,
        "feed_forward_length": [inner * (1 + (i >= count - keyless)) for i in range(count)] if is_wide else inner,
    }
    if stated.get("enable_moe_block"):
        found |= _experts_stated(stated, where)
    return found


def local_layers(kinds: Any, count: int, period: int, where: str) -> list[bool]:
    """Return which layers have a window. `kinds`: as they are stated; if not, the last of each `period` has none.
    Raises CheckpointError."""
    if kinds is None:
        kinds = [_LOCAL if (layer + 1) % period else _GLOBAL for layer in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count:
        raise CheckpointError(f"{where} states {str(kinds)[:40]!r} as 'layer_types', but has {count} layers.")
    for kind in kinds:
        if kind not in (_LOCAL, _GLOBAL):
            raise CheckpointError(f"{where} has layers of the kind {str(kind)[:40]!r}, which Onward does not compute.")
    return [kind == _LOCAL for kind in kinds]


def _experts_stated(stated: Mapping[str, Any], where: str) -> dict[str, Any]:
    names = {"count": "num_experts", "used_count": "top_k_experts", "feed_forward_length": "moe_intermediate_size"}
    if missing := [name for name in names.values() if stated.get(name) is None]:
        raise CheckpointError(
            f"{where} has a mixture of experts ('enable_moe_block'), but does not state {missing[0]!r}."
        )
    return {f"expert_{name}": stated[key] for name, key in names.items()}


def _heads_stated(stated: Mapping[str, Any], layer: int, is_local: bool, where: str) -> tuple[Any, Any]:
    """Return the size of a layer's heads, and how many keys it has."""
    size, keys = stated["head_dim"], stated["num_key_value_heads"]
    own = stated.get("per_layer_config")
    if own is None:
        if is_local:
            return size, keys
        of_global = stated.get("num_global_key_value_heads") if stated.get("attention_k_eq_v") else None
        return stated["global_head_dim"], of_global or keys
    if not isinstance(own, dict) or not all(isinstance(each, dict) for each in own.values()):
        raise CheckpointError(f"{where} has layers of their own ('per_layer_config') that are not objects.")
    changed: Mapping[str, Any] = next(
        (each for name, each in own.items() if str(name).lstrip("0") == (str(layer) if layer else "")), {}
    )
    if unknown := sorted(changed.keys() - _PER_LAYER):
        raise CheckpointError(f"{where} has layers that differ in {unknown[0][:40]!r}, which Onward does not compute.")
    return changed.get("head_dim", size), changed.get("num_key_value_heads", keys)


def _of_kind(sizes: Sequence[Any], local: Sequence[bool], is_local: bool, where: str) -> Any:
    """Return the size that all layers with a window have, or all others; of all where there are none."""
    found = [size for size, each in zip(sizes, local, strict=True) if each == is_local]
    if any(each != found[0] for each in found):
        raise CheckpointError(
            f"{where} has layers of different sizes ('per_layer_config'), which Onward does not compute."
        )
    return found[0] if found else sizes[0]


def _gemma4(checkpoint: Checkpoint) -> Architecture:
    """Return the architecture. Raises CheckpointError."""
    parameters = checkpoint.parameters
    count = parameters.num_layers()
    local = parameters.switches(WINDOW_LAYERS, count)
    if local is None:
        raise CheckpointError(f"{parameters.where} does not state which layers have a window ({WINDOW_LAYERS!r}).")
    keys = parameters.in_layers("attention.head_count_kv", count)
    local_keys, global_keys = (
        {n for n, each in zip(keys, local, strict=True) if each == kind} for kind in (True, False)
    )
    if len(local_keys) > 1 or len(global_keys) > 1:
        raise parameters.unequal("attention.head_count_kv")
    widths = parameters.in_layers("feed_forward_length", count)
    found = common(
        checkpoint,
        activation="gelu_tanh",
        num_kv_heads=max(global_keys or local_keys),
        feed_forward=max(widths),
    )
    size = parameters.head_size(end="_swa")
    rotated = parameters.integer("rope.dimension_count_swa", min(size, found.head_size), minimum=2)
    found = replace(
        with_local_layers(found, parameters, local, rotated),
        local_heads=Heads(found.num_heads, max(local_keys or global_keys), size, size),
        num_keyless_layers=keyless(parameters, local, 0),
        layer_feed_forward=tuple(widths),
        layer_input=layer_input(parameters, 0),
    )
    if has_experts(parameters):
        mixture = mixture_of(parameters, feed_forward=0, is_normalised=True)
        found = replace(found, mixture=replace(mixture, is_beside_dense=True))
    return found


def with_local_layers(found: Architecture, parameters: Parameters, local: Sequence[bool], rotated: int) -> Architecture:
    """Return an architecture with what Gemma 3n and 4 have in common. `local`: which layers have a window, in which so
    many numbers of a head are rotated."""
    return replace(
        found,
        has_norms_after=True,
        has_value_norms=True,
        embedding_scale=math.sqrt(found.hidden),
        attention_scale=1.0,
        logit_cap=parameters.real("final_logit_softcapping", LOGIT_CAP) or None,
        window=parameters.integer(WINDOW, minimum=1),
        window_layers=on(local),
        local_rope=Rope(
            rotated,
            parameters.real(WINDOW_BASE, 10_000.0),
            magnitude=parameters.real("rope.scaling.attn_factor", 1.0),
        ),
    )


def keyless(parameters: Parameters, local: Sequence[bool], default: int) -> int:
    """Return how many of the last layers have no keys. llama.cpp has those with a window attend to the keys of the last
    but one before them, and the others to those of the last one, which transformers does where these are of that kind.
    """
    found = parameters.integer("attention.shared_kv_layers", default)
    first = len(local) - found
    if found and (first < 2 or not local[first - 2] or local[first - 1]):
        raise CheckpointError(
            f"{parameters.where} has {found} layers without keys of their own ('attention.shared_kv_layers'), but "
            "those before them are not one with a window and one without."
        )
    return found


def layer_input(parameters: Parameters, default: int) -> int:
    """Return how many numbers of its own each layer looks up for a token. Raises CheckpointError."""
    found = parameters.integer("embedding_length_per_layer_input", default)
    if found % _INPUT_GROUP:
        raise CheckpointError(
            f"{parameters.where} has embeddings of {found} numbers for each layer "
            f"('embedding_length_per_layer_input'), which Onward computes only for multiples of {_INPUT_GROUP}."
        )
    return found


def _model_type(defaults: Mapping[str, Any], with_images: str, **others: Any) -> ModelType:
    return ModelType(
        defaults=defaults,
        attention_bias="attention_bias",
        is_tied=True,
        with_images=with_images,
        sizes=_sizes,
        **others,
    )


ARCHITECTURES: dict[str, Declaration] = {
    "gemma4": Declaration(
        decoder=_gemma4,
        keys=frozenset({
            RMS, *WINDOWS, WINDOW_BASE, *EXPERTS[:2], EXPERT_SIZE, "final_logit_softcapping",
            "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa",
            "attention.shared_kv_layers", "embedding_length_per_layer_input",
        }),
        head_norms="always",
        may_lack_values=True,
        has_unrotated_parts=True,
        names={
            "layer_scalar": "layer_output_scale.weight",
            "router.scale": "ffn_gate_inp.scale",
            "router.per_expert_scale": "ffn_down_exps.scale",
            "experts.gate_up_proj": "ffn_gate_up_exps.weight",
            "experts.down_proj": "ffn_down_exps.weight",
        },
        model_types={
            "gemma4_text": _model_type(_DEFAULTS, "gemma4", experts="own"),
            "gemma4_unified_text": _model_type(_UNIFIED_DEFAULTS, "gemma4_unified"),
        },
    ),
}  # fmt: skip
