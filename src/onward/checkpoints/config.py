"""config.json of Hugging Face's libraries as parameters by GGUF's names, with the defaults of transformers' classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import ModelType
from onward.checkpoints.parameters import WINDOW, is_layer_count, listed_layers
from onward.checkpoints.rope_scaling import rope_metadata
from onward.checkpoints.table import ARCHITECTURE_OF, MODEL_TYPES
from onward.errors import CheckpointError

Config = Mapping[str, Any]
_COMMON_DEFAULTS: dict[str, Any] = {"rms_norm_eps": 1e-6, "rope_theta": 1e4, "hidden_act": "silu"}
_KEYS: dict[str, tuple[str, ...]] = {
    "block_count": ("num_hidden_layers", "n_layer"),
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "norm_epsilon", "layer_norm_epsilon"),
    "attention.scale": ("attention_multiplier",),
    "attention.clamp_kqv": ("clip_qkv",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logit_scale", "logits_scaling"),
    "use_parallel_residual": ("use_parallel_residual",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "attention.head_norms": ("qk_layernorm",),
    "rope.freq_base": ("rope_theta", "rotary_emb_base"),
    "rope.freq_base_swa": ("rope_local_base_freq",),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "expert_weights_norm": ("norm_topk_prob",),
}
"""GGUF's names without the architecture's prefix, and those in config.json; the first one that is stated counts."""
_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "relu": "relu", "relu2": "relu_squared", "xielu": "xielu",
}  # fmt: skip
_CHANGES = {
    "alibi": "ALiBi positions",
    "scale_attn_by_inverse_layer_idx": "attention that is scaled by layer",
    "use_bidirectional_attention": "attention in both directions",
    "add_cross_attention": "layers that read what another model computes",
    "conv_bias": "convolutions with biases",
}
"""Statements that change what is computed, and what they stand for."""
_SWITCHED_OFF_BY_NULL = ("sliding_window", "block_ffn_dim_multiplier", "mamba_d_ssm", "q_lora_rank")
_OF_IMAGES_ONLY = (("use_bidirectional_attention", "vision"),)
"""Those of them that only change what is computed from images."""
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_FIXED = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}
"""Numbers of gpt-oss's experts, which all of its models have."""
_OF_TEXTS = {found.with_images: kind for kind, found in MODEL_TYPES.items() if found.with_images}
"""Model types that read images, too, and the one of their texts where it is not stated."""


def reads_images(config: Config) -> bool:
    """Return whether a model reads images as well as texts."""
    kind = config.get("model_type")
    is_complete = isinstance(config.get("text_config"), dict) or "num_hidden_layers" in config
    return isinstance(kind, str) and kind in _OF_TEXTS and is_complete


def of_texts(config: Config) -> Config:
    """Return the configuration of the part of a model that continues texts. Folders of Qwen2-VL have it beside that of
    the other part, others in an object of its own."""
    if not reads_images(config):
        return config
    if not isinstance(config.get("text_config"), dict):
        return {**config, "model_type": _OF_TEXTS[config["model_type"]]}
    shared = {name: config[name] for name in ("tie_word_embeddings", "quantization_config") if name in config}
    return {"model_type": _OF_TEXTS[config["model_type"]], **shared, **config["text_config"]}


def metadata_of(config: Config, where: str) -> dict[str, MetadataValue]:
    """Return the metadata of a checkpoint. `where` names the file in messages. Raises CheckpointError."""
    kind = config.get("model_type")
    own = MODEL_TYPES.get(kind) if isinstance(kind, str) else None
    if own is None:
        raise CheckpointError(
            f"{where} has the model_type {str(kind)[:80]!r}, which Onward does not compute. It computes "
            f"{', '.join(sorted(MODEL_TYPES))}."
        )
    _require_computable(config, own, where)
    given, defaults = _set(config), {**_COMMON_DEFAULTS, **own.defaults}
    stated = defaults | given
    # What is stated under an older name counts more than the default under a newer one.
    found = {
        name: value
        for name, keys in _KEYS.items()
        if own.experts == "usual" or not name.startswith("expert_")
        if (value := _first(given, keys)) is not None or (value := _first(defaults, keys)) is not None
    }
    sizes = own.sizes(stated, found, where) if own.sizes else {}
    found |= sizes
    found |= rope_metadata(stated, found, where)
    found |= {**_windows(stated, found), **sizes}
    if own.experts == "usual":
        found |= _expert_layers(stated, found)
    found["activation"] = _activation(stated, where)
    biases = {
        "attention.bias": own.attention_bias, "attention.output_bias": own.output_bias,
        "feed_forward.bias": own.feed_forward_bias,
    }  # fmt: skip
    found |= {
        name: switch if isinstance(switch, bool) else bool(stated.get(switch))
        for name, switch in biases.items()
        if switch is not None
    }
    found |= own.statements(stated, found, where) if own.statements else {}
    if (scalar := stated.get("query_pre_attn_scalar")) is not None:
        found["attention.query_scale"] = 1 / math.sqrt(_number(scalar, where))
    architecture = found.pop("general.architecture", ARCHITECTURE_OF[str(kind)])
    return {"general.architecture": architecture, **{f"{architecture}.{name}": value for name, value in found.items()}}


def is_tied(config: Config) -> bool:
    """Return whether the embeddings are the output layer, too."""
    own = MODEL_TYPES.get(str(config.get("model_type")), ModelType())
    stated = config.get(own.tied_by, config.get("tie_word_embeddings"))
    return stated if isinstance(stated, bool) else own.is_tied


def _require_computable(config: Config, own: ModelType, where: str) -> None:
    for name, number in _FIXED.items():
        if config.get(name, number) != number:
            raise CheckpointError(
                f"{where} states {str(config[name])[:40]!r} as {name!r} instead of {number}, which Onward does not "
                "compute."
            )
    if config.get("scale_attn_weights") is False:
        raise CheckpointError(f"{where} has attention without a scale, which Onward does not compute.")
    if config.get("qk_layernorm") and not own.may_have_head_norms:
        raise CheckpointError(
            f"{where} uses norms of queries and keys ('qk_layernorm'), which Onward does not compute."
        )
    changes = _CHANGES
    if own.experts == "none":
        changes = _CHANGES | dict.fromkeys(("num_local_experts", "num_experts"), "a mixture of experts")
    for name, meaning in changes.items():
        if config.get(name) and (name, config[name]) not in _OF_IMAGES_ONLY:
            raise CheckpointError(f"{where} uses {meaning} ({name!r}), which Onward does not compute.")


def _set(config: Config) -> dict[str, Any]:
    """Return what a configuration states. A null counts as absent, except for keys that null switches off."""
    stated = {name: value for name, value in config.items() if value is not None or name in _SWITCHED_OFF_BY_NULL}
    return {**stated, **{name: 0.0 for name in _CAPS if config.get(name, 0.0) is None}}


def _first(stated: Config, names: tuple[str, ...]) -> Any:
    return next((stated[name] for name in names if stated.get(name) is not None), None)


def _activation(stated: Config, where: str) -> str:
    name = _first(stated, ("hidden_activation", "activation_function", "hidden_act"))
    found = _ACTIVATIONS.get(name) if isinstance(name, str) else None
    if found is None:
        raise CheckpointError(f"{where} has the activation {str(name)[:40]!r}, which Onward does not compute.")
    return found


def _windows(stated: Config, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return which layers attend to a window, and which rotate positions."""
    window, count = stated.get("sliding_window"), found.get("block_count")
    if not is_layer_count(count):
        return {}
    result: dict[str, Any] = {}
    if (rotated := stated.get("no_rope_layers")) is not None and isinstance(rotated, list):
        result["rope.layers"] = [bool(each) for each in rotated]
    elif type(interval := stated.get("no_rope_layer_interval")) is int and interval > 0:
        result["rope.layers"] = [bool((layer + 1) % interval) for layer in range(count)]
    if window is None or stated.get("use_sliding_window") is False:
        return result
    return {**result, WINDOW: window, **_window_layers(stated, count)}


def _window_layers(stated: Config, count: int) -> dict[str, list[bool]]:
    types, pattern = stated.get("layer_types"), stated.get("sliding_window_pattern")
    if isinstance(types, list):
        layers = [each == "sliding_attention" for each in types]
    elif type(pattern) is int and pattern > 0:
        layers = [bool((layer + 1) % pattern) for layer in range(count)]
    elif isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:  # local and global, the last one global
        layers = [layer < count - 1 and pattern[layer % len(pattern)] == "L" for layer in range(count)]
    elif stated.get("use_sliding_window") and type(first := stated.get("max_window_layers", 28)) is int:
        layers = [layer >= first for layer in range(count)]
    else:
        layers = [True] * count
    return {"attention.sliding_window_pattern": layers}


def _expert_layers(stated: Config, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return which layers have experts: those that a list names "sparse", or every `decoder_sparse_step`-th one but
    `mlp_only_layers`."""
    count, step = found.get("block_count"), stated.get("decoder_sparse_step", 1)
    dense = stated.get("mlp_only_layers") or []
    if not is_layer_count(count) or type(step) is not int or not isinstance(dense, list):
        return {}
    if isinstance(kinds := stated.get("mlp_layer_types"), list):
        return {"expert.layers": [each == "sparse" for each in kinds]}
    without = listed_layers(dense)
    return {"expert.layers": [step > 0 and (layer + 1) % step == 0 and layer not in without for layer in range(count)]}


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e9:
        raise CheckpointError(f"{where} states {str(value)[:40]!r} where a number is needed.")
    return float(value)
