"""config.json of Hugging Face's libraries as parameters by GGUF's names, with the defaults of transformers' classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from onward.checkpoints import gemma4, latent, nemotron_h, qwen35, state_spaces
from onward.checkpoints.convolutions import convolution_metadata
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.parameters import is_layer_count
from onward.checkpoints.rope_scaling import rope_metadata
from onward.errors import CheckpointError

Config = Mapping[str, Any]
_ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "mimo": "qwen2", "qwen3": "qwen3",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "olmoe": "olmoe", "gpt_oss": "gpt-oss", "mellum": "mellum",
    "granitemoe": "granitemoe", "granitemoeshared": "granitemoe", "granitemoehybrid": "granitehybrid",
    "falcon_h1": "falcon-h1", "nemotron_h": "nemotron_h", **dict.fromkeys(latent.DEFAULTS, latent.NAME),
    "seed_oss": "seed_oss", "glm4": "glm4", "glm4_moe": latent.GLM, "exaone4": "exaone4", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3_text": "gemma3", "gemma4_text": "gemma4", "gemma4_unified_text": "gemma4",
    "phi3": "phi3", "starcoder2": "starcoder2", "granite": "granite", "smollm3": "smollm3", "olmo2": "olmo2",
    "olmo3": "olmo2", "internlm2": "internlm2", "internlm3": "llama", "ministral3": "mistral3", "stablelm": "stablelm",
    "gpt2": "gpt2", "gpt_neox": "gptneox", "cohere2": "cohere2", "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "qwen3_next": "qwen3next",
}  # fmt: skip
"""GGUF's name of each `model_type`."""
_DEFAULTS: dict[str, dict[str, Any]] = {
    **{kind: {"use_sliding_window": False} for kind in ("qwen2", "mimo")},
    "qwen3": {"head_dim": 128, "use_sliding_window": False},
    "qwen3_moe": {
        "use_sliding_window": False, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "norm_topk_prob": False,
    },
    "mellum": {
        "head_dim": 128, "num_key_value_heads": 4, "sliding_window": 1024, "num_experts": 64, "num_experts_per_tok": 8,
        "moe_intermediate_size": 896, "norm_topk_prob": True, "rope_parameters": {
            "full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4},
        },
    },
    "gpt_oss": {
        "rms_norm_eps": 1e-5, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
        "sliding_window": 128, "sliding_window_pattern": 2, "num_local_experts": 128, "num_experts_per_tok": 4,
        "attention_bias": True, "rope_theta": 1.5e5, "max_position_embeddings": 131_072, "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    "olmoe": {"rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False},
    "qwen2_moe": {
        "use_sliding_window": False, "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "norm_topk_prob": False,
        "qkv_bias": True,
    },
    "granitemoe": {"attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2},
    "granitemoeshared": {
        "attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024,
    },
    **state_spaces.DEFAULTS,
    "nemotron_h": nemotron_h.DEFAULTS,
    **latent.DEFAULTS,
    "glm4_moe": latent.GLM_DEFAULTS,
    "granite": {"attention_multiplier": 1.0},
    "internlm2": {"bias": True},
    "ministral3": {
        "head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "sliding_window": None,
        "max_position_embeddings": 262_144, "rope_scaling": {
            "type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16_384,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
        },
    },
    "seed_oss": {
        "head_dim": 128, "num_attention_heads": 80, "num_key_value_heads": 8, "max_position_embeddings": 524_288,
        "attention_bias": True,
    },
    "exaone4": {"num_key_value_heads": 32, "rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4},
    "glm4": {
        "head_dim": 128, "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-7,
        "max_position_embeddings": 131_072, "attention_bias": True,
    },
    "gemma": {
        "head_dim": 256, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 8192,
        "hidden_act": "gelu_pytorch_tanh",
    },
    "gemma2": {
        "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 8192,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "sliding_window_pattern": 2, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {
        "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "rope_theta": 1e6,
        "rope_local_base_freq": 1e4, "num_attention_heads": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131_072, "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window_pattern": 6,
    },
    **qwen35.DEFAULTS,
    "gemma4_text": gemma4.DEFAULTS,
    "gemma4_unified_text": gemma4.UNIFIED_DEFAULTS,
    "mixtral": {
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8,
        "num_experts_per_tok": 2, "sliding_window": None,
    },
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "phi3": {"rms_norm_eps": 1e-5},
    "smollm3": {"rope_theta": 2e6, "num_key_value_heads": 4, "no_rope_layer_interval": 4, "use_sliding_window": False},
    "starcoder2": {"use_bias": True, "num_key_value_heads": 2, "norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh"},
    "olmo2": {"rms_norm_eps": 1e-5},
    "olmo3": {"rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": 4096, "sliding_window_pattern": 4},
    "stablelm": {"partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5},
    "gpt2": {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
    "gpt_neox": {
        "attention_bias": True, "rotary_pct": 0.25, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
        "use_parallel_residual": True,
    },
    "lfm2": {
        "num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 1e6, "max_position_embeddings": 128_000,
        "hidden_size": 2560, "intermediate_size": 12_288, "num_hidden_layers": 32,
    },
    "lfm2_moe": {
        "num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 1e6, "max_position_embeddings": 128_000,
        "hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 32, "num_experts": 32,
        "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "norm_topk_prob": True,
    },
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4, "logit_scale": 0.0625, "layer_norm_eps": 1e-5},
}  # fmt: skip
"""Of the configuration class of a `model_type`, where they differ from those of most."""
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
    "gelu_fast": "gelu_tanh",
}  # fmt: skip
_BIASES: dict[str, tuple[str | bool, str | bool]] = {
    "llama": ("attention_bias", "mlp_bias"), "granite": ("attention_bias", "mlp_bias"),
    "smollm3": ("attention_bias", "mlp_bias"), "mistral": (False, False), "mixtral": (False, False),
    "qwen2": (True, False), "mimo": (True, False),
    "qwen3": ("attention_bias", False), "qwen3_moe": ("attention_bias", False),
    "olmoe": ("attention_bias", False), "mellum": ("attention_bias", False),
    "gpt_oss": ("attention_bias", True), "qwen2_moe": ("qkv_bias", False), "granitemoe": ("attention_bias", False),
    "granitemoeshared": ("attention_bias", False), "granitemoehybrid": ("attention_bias", False),
    "falcon_h1": (False, False), "nemotron_h": ("attention_bias", "mlp_bias"),
    **dict.fromkeys(latent.DEFAULTS, (False, False)),
    "seed_oss": ("attention_bias", "mlp_bias"), "glm4": ("attention_bias", False),
    "glm4_moe": ("attention_bias", False), "exaone4": (False, False),
    "gemma": ("attention_bias", False),
    "gemma2": ("attention_bias", False),
    "gemma3_text": ("attention_bias", False), "gemma4_text": ("attention_bias", False),
    "gemma4_unified_text": ("attention_bias", False), "phi3": (False, False),
    "starcoder2": ("use_bias", "use_bias"), "olmo2": ("attention_bias", False), "olmo3": ("attention_bias", False),
    "ministral3": (False, False), "internlm2": ("bias", False), "internlm3": ("qkv_bias", "bias"),
    "stablelm": ("use_qkv_bias", False),
    "gpt2": (True, True), "gpt_neox": ("attention_bias", True), "cohere2": ("attention_bias", False),
    "lfm2": (False, False), "lfm2_moe": (False, False),
    **dict.fromkeys(qwen35.DEFAULTS, ("attention_bias", False)),
}  # fmt: skip
"""Whether attention and feed-forward layers of a `model_type` have biases: always, never, or as this key says."""
_OUTPUT_BIASES: dict[str, str | bool] = {
    "qwen2": False, "mimo": False, "qwen2_moe": False, "glm4": False, "glm4_moe": False,
    "seed_oss": "attention_out_bias", "internlm3": "bias",
}  # fmt: skip
"""Whether attention's output has one, where that is not as its other biases."""
_TIED = frozenset({
    "gemma", "gemma2", "gemma3_text", "gemma4_text", "gemma4_unified_text", "starcoder2", "smollm3", "gpt2", "cohere2",
    "lfm2", "lfm2_moe",
})  # fmt: skip
"""Model types whose embeddings are the output layer, too, unless `tie_word_embeddings` says otherwise."""
_CHANGES = {
    "clip_qkv": "clamped queries",
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
_QUANTISED = frozenset({("gpt_oss", "mxfp4")})
"""Model types and methods of quantisation whose tensors are read."""
_MIXTURES = frozenset({
    "qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "mellum", "granitemoe", "granitemoeshared", "granitemoehybrid",
    "gpt_oss", "lfm2_moe", "qwen3_5_moe_text", "qwen3_next",
})  # fmt: skip
"""Model types with a mixture of experts."""
_CONVOLVED = frozenset({"lfm2", "lfm2_moe"})
"""Model types with short convolutions."""


_OF_IMAGES_TOO = {
    "gemma3": "gemma3_text", "gemma4": "gemma4_text", "gemma4_unified": "gemma4_unified_text", "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
}  # fmt: skip
"""Model types that read images, too, and the one of their texts where it is not stated."""


def reads_images(config: Config) -> bool:
    """Return whether a model reads images as well as texts."""
    kind = config.get("model_type")
    return isinstance(kind, str) and kind in _OF_IMAGES_TOO and isinstance(config.get("text_config"), dict)


def of_texts(config: Config) -> Config:
    """Return the configuration of the part of a model that continues texts."""
    if not reads_images(config):
        return config
    shared = {name: config[name] for name in ("tie_word_embeddings", "quantization_config") if name in config}
    return {"model_type": _OF_IMAGES_TOO[config["model_type"]], **shared, **config["text_config"]}


def metadata_of(config: Config, where: str) -> dict[str, MetadataValue]:
    """Return the metadata of a checkpoint. `where` names the file in messages. Raises CheckpointError."""
    kind = config.get("model_type")
    architecture = _ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if architecture is None:
        raise CheckpointError(
            f"{where} has the model_type {str(kind)[:80]!r}, which Onward does not compute. It computes "
            f"{', '.join(sorted(_ARCHITECTURES))}."
        )
    _require_computable(config, where)
    own, defaults = _set(config), {**_COMMON_DEFAULTS, **_DEFAULTS.get(str(kind), {})}
    stated = defaults | own
    # What is stated under an older name counts more than the default under a newer one.
    found = {
        name: value
        for name, keys in _KEYS.items()
        if kind in _MIXTURES or not name.startswith("expert_")
        if (value := _first(own, keys)) is not None or (value := _first(defaults, keys)) is not None
    }
    of_layers = gemma4.gemma4_metadata(stated, where) if architecture == "gemma4" else {}
    found |= of_layers
    found |= rope_metadata(stated, found, where)
    found |= _windows(stated, found) | of_layers
    if kind in ("mellum", "olmo3") and "rope.freq_base_swa" in found:  # in GGUF files its graph does not use it
        found["rope.freq_base_local"] = found.pop("rope.freq_base_swa")
    if kind in _MIXTURES:
        found |= _expert_layers(stated, found)
    found["activation"] = _activation(stated, where)
    for part, switch in zip(("attention", "feed_forward"), _BIASES[str(kind)], strict=True):
        found[f"{part}.bias"] = switch if isinstance(switch, bool) else bool(stated.get(switch))
    if (of_output := _OUTPUT_BIASES.get(str(kind))) is not None:
        found["attention.output_bias"] = of_output if isinstance(of_output, bool) else bool(stated.get(of_output))
    if architecture in qwen35.NAMES:
        found |= qwen35.qwen35_metadata(stated, where)
    if kind in _CONVOLVED:
        found |= convolution_metadata(stated, found, where)
    if architecture in state_spaces.METADATA:
        found |= state_spaces.METADATA[architecture](stated, found, where)
    if architecture == latent.NAME:
        found |= latent.latent_metadata(stated, where)
    if architecture == latent.GLM:
        found |= latent.expert_metadata(stated, where) | {"attention.head_norms": bool(stated.get("use_qk_norm"))}
    if kind == "nemotron_h":
        found |= nemotron_h.nemotron_metadata(stated, found, where)
        architecture = nemotron_h.MIXED if "expert_count" in found else nemotron_h.DENSE
    if (scalar := stated.get("query_pre_attn_scalar")) is not None:
        found["attention.query_scale"] = 1 / math.sqrt(_number(scalar, where))
    return {"general.architecture": architecture, **{f"{architecture}.{name}": value for name, value in found.items()}}


def is_tied(config: Config) -> bool:
    """Return whether the embeddings are the output layer, too."""
    stated = config.get("tie_word_embeddings")
    if str(config.get("model_type")) in _CONVOLVED:
        stated = config.get("tie_embedding", stated)
    return stated if isinstance(stated, bool) else config.get("model_type") in _TIED


def _require_computable(config: Config, where: str) -> None:
    quantised = config.get("quantization_config")
    if quantised:
        method = str(quantised.get("quant_method", "unknown")) if isinstance(quantised, dict) else "unknown"
        if (config.get("model_type"), method) not in _QUANTISED:
            raise CheckpointError(
                f"{where}: the weights are quantised by {method[:40]!r}, which Onward does not read. Use the model "
                "as a GGUF file, or in float16 or bfloat16."
            )
    for name, number in _FIXED.items():
        if config.get(name, number) != number:
            raise CheckpointError(
                f"{where} states {str(config[name])[:40]!r} as {name!r} instead of {number}, which Onward does not "
                "compute."
            )
    if config.get("scale_attn_weights") is False:
        raise CheckpointError(f"{where} has attention without a scale, which Onward does not compute.")
    if config.get("qk_layernorm") and config.get("model_type") != "stablelm":
        raise CheckpointError(
            f"{where} uses norms of queries and keys ('qk_layernorm'), which Onward does not compute."
        )
    changes = _CHANGES
    if config.get("model_type") not in (*_MIXTURES, "gemma4_text"):
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
    if stated.get("model_type") == "gemma" and name == "gelu":  # what its first files say, and do not mean
        name = "gelu_pytorch_tanh"
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
        is_default = stated.get("model_type") in ("gemma2", "exaone4")  # which have one if nothing is stated
        return {**result, "attention.sliding_window": 0} if is_default else result
    return {**result, "attention.sliding_window": window, **_window_layers(stated, count)}


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
        layers = [stated.get("model_type") != "mellum"] * count
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
    return {"expert.layers": [step > 0 and (layer + 1) % step == 0 and layer not in dense for layer in range(count)]}


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e9:
        raise CheckpointError(f"{where} states {str(value)[:40]!r} where a number is needed.")
    return float(value)
