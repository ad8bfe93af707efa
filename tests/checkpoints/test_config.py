"""Folders of safetensors files: what transformers reads of config.json is used, refused by name, or cannot matter.

Source: the configuration classes of transformers 5.24 (models/*/configuration_*.py) and `PreTrainedModel.tie_weights`;
for InternLM those that the models' repositories have (configuration_internlm2.py, configuration_internlm3.py).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.checkpoints.config import is_tied, metadata_of
from onward.checkpoints.parameters import MAX_LAYERS
from onward.checkpoints.table import ARCHITECTURES
from onward.errors import CheckpointError
from onward.ipc.worker_end import limited_processor_time
from onward.models.check import problems
from tests.checkpoints.hugging_face import CONFIGS, safetensors_bytes, write_folder
from tests.examples import slow_but
from tests.models.doors import refusal, scores, shown

LATENT = tuple(ARCHITECTURES["deepseek2"].model_types)
_USUAL = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
    "hidden_act", "rope_parameters", "attention_dropout", "initializer_range", "pad_token_id", "bos_token_id",
    "eos_token_id", "use_cache", "tie_word_embeddings", "vocab_size",
)  # fmt: skip
_RMS = (*_USUAL, "rms_norm_eps", "num_key_value_heads")
_WINDOW = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
_EXPERTS = (
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "router_aux_loss_coef",
    "output_router_logits",
)  # fmt: skip
_FALCON = (
    *(key for key in _USUAL if key not in ("intermediate_size", "hidden_act")), "layer_norm_epsilon", "hidden_dropout",
    "alibi", "new_decoder_architecture", "multi_query", "parallel_attn", "bias", "ffn_hidden_size", "activation",
)  # fmt: skip
_DELTA = (
    "attention_bias", "head_dim", "layer_types", "linear_conv_kernel_dim", "linear_key_head_dim",
    "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads", "full_attention_interval",
    "attn_output_gate",
)  # fmt: skip
_LATENT = (
    "first_k_dense_replace", "n_shared_experts", "n_routed_experts", "routed_scaling_factor", "kv_lora_rank",
    "q_lora_rank", "qk_rope_head_dim", "v_head_dim", "qk_nope_head_dim", "n_group", "topk_group",
    "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "attention_bias", "head_dim", "pretraining_tp",
    "topk_method", "scoring_func", "moe_layer_freq", "aux_loss_alpha", "seq_aux", "ep_size",
)  # fmt: skip
"""With what the authors' own classes have (configuration_deepseek.py)."""
_GEMMA4 = (
    *(key for key in _RMS if key != "hidden_act"), "hidden_activation", "attention_bias", "head_dim", "layer_types",
    "final_logit_softcapping", "sliding_window", "use_bidirectional_attention", "attention_k_eq_v",
    "num_kv_shared_layers", "use_double_wide_mlp", "global_head_dim", "num_global_key_value_heads", "per_layer_config",
)  # fmt: skip
READ: dict[str, tuple[str, ...]] = {
    "llama": (*_RMS, "attention_bias", "mlp_bias", "head_dim", "pretraining_tp"),
    "mistral": (*_RMS, "head_dim", "sliding_window"),
    "mixtral": (
        *_RMS, "head_dim", "sliding_window", "num_local_experts", "num_experts_per_tok", "router_aux_loss_coef",
        "output_router_logits", "router_jitter_noise",
    ),
    "qwen2": (*_RMS, *_WINDOW),
    **dict.fromkeys(("mimo", "qwen2_vl_text", "qwen2_5_vl_text"), (*_RMS, *_WINDOW)),
    "qwen3_vl_text": (*_RMS, "attention_bias", "head_dim"),
    "qwen3_vl_moe_text": (
        *_RMS, "attention_bias", "head_dim", *(key for key in _EXPERTS if key != "norm_topk_prob"), "mlp_only_layers",
        "decoder_sparse_step",
    ),
    "qwen3": (*_RMS, *_WINDOW, "attention_bias", "head_dim"),
    "qwen3_moe": (
        *_RMS, *_WINDOW, "attention_bias", "head_dim", *_EXPERTS, "mlp_only_layers", "decoder_sparse_step",
    ),
    "qwen2_moe": (
        *_RMS, *_WINDOW, *_EXPERTS, "mlp_only_layers", "decoder_sparse_step", "shared_expert_intermediate_size",
        "qkv_bias",
    ),
    **dict.fromkeys(("granitemoe", "granitemoeshared"), (
        *_RMS, "attention_bias", "attention_multiplier", "embedding_multiplier", "logits_scaling",
        "residual_multiplier", "num_local_experts", "num_experts_per_tok", "router_aux_loss_coef",
        "output_router_logits",
    )),
    "granitemoehybrid": (
        *_RMS, "attention_bias", "attention_multiplier", "embedding_multiplier", "logits_scaling",
        "residual_multiplier", "num_local_experts", "num_experts_per_tok", "router_aux_loss_coef",
        "output_router_logits", "shared_intermediate_size", "position_embedding_type", "layer_types", "mamba_n_heads",
        "mamba_n_groups", "mamba_d_state", "mamba_d_head", "mamba_d_conv", "mamba_expand", "mamba_chunk_size",
        "mamba_conv_bias", "mamba_proj_bias", "time_step_limit",
    ),
    "falcon_h1": (
        *_RMS, "head_dim", "attention_bias", "mlp_bias", "projectors_bias", "mamba_d_ssm", "mamba_n_heads",
        "mamba_n_groups", "mamba_d_state", "mamba_d_head", "mamba_d_conv", "mamba_expand", "mamba_chunk_size",
        "mamba_conv_bias", "mamba_proj_bias", "mamba_norm_before_gate", "mamba_rms_norm", "time_step_limit",
        "time_step_min", "time_step_max", "num_logits_to_keep", "lm_head_multiplier", "embedding_multiplier",
        "mlp_multipliers", "key_multiplier", "attention_out_multiplier", "attention_in_multiplier", "ssm_multipliers",
        "ssm_in_multiplier", "ssm_out_multiplier",
    ),
    "nemotron_h": (
        *(key for key in _USUAL if key not in ("num_hidden_layers", "hidden_act", "rope_parameters")),
        "num_key_value_heads", "layers_block_type", "num_logits_to_keep", "head_dim", "attention_bias",
        "mlp_hidden_act", "mlp_bias", "use_mamba_kernels", "ssm_state_size", "mamba_num_heads",
        "mamba_head_dim", "mamba_hidden_act", "n_groups", "conv_kernel", "expand", "time_step_min", "time_step_max",
        "time_step_limit", "time_step_floor", "use_conv_bias", "chunk_size", "mamba_proj_bias",
        "mamba_ssm_cache_dtype", "n_routed_experts", "output_router_logits", "n_shared_experts",
        "moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size", "moe_shared_expert_overlap",
        "num_experts_per_tok", "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob",
        "num_nextn_predict_layers", "mtp_layers_block_type", "use_bias", "layer_norm_epsilon", "residual_in_fp32",
        "rescale_prenorm_residual", "mamba_n_groups", "mamba_d_conv", "mamba_conv_bias", "mamba_dt_limit",
        "hybrid_override_pattern",
    ),
    "deepseek_v2": (*_RMS, *_LATENT, "mlp_bias", "output_router_logits"),
    **dict.fromkeys(("deepseek_v3", "kimi_k2"), (*_RMS, *_LATENT, "num_nextn_predict_layers", "rope_interleave")),
    "glm4_moe_lite": (
        *_RMS, *_LATENT, "num_nextn_predict_layers", "rope_interleave", "mlp_layer_types", "partial_rotary_factor",
    ),
    "glm4_moe": (
        *_RMS, *(key for key in _LATENT if "lora" not in key and "head_dim" not in key), "head_dim",
        "num_nextn_predict_layers", "partial_rotary_factor", "use_qk_norm",
    ),
    "bailing_moe_v2": (
        *_RMS, "use_qkv_bias", "use_bias", "head_dim", "num_experts", "num_shared_experts", "num_experts_per_tok",
        "moe_intermediate_size", "first_k_dense_replace", "n_group", "topk_group", "routed_scaling_factor",
        "norm_topk_prob", "score_function", "use_qk_norm", "num_nextn_predict_layers", "partial_rotary_factor",
        "moe_router_enable_expert_bias", "max_window_layers", "mtp_loss_scaling_factor", "embedding_dropout",
        "output_dropout", "output_router_logits",
    ),
    "mellum": (*_RMS, *_EXPERTS, "attention_bias", "head_dim", "layer_types", "sliding_window", "mlp_layer_types"),
    "olmoe": (*_RMS, *(key for key in _EXPERTS if key != "moe_intermediate_size"), "attention_bias", "clip_qkv"),
    "gpt_oss": (
        *_RMS, "attention_bias", "head_dim", "layer_types", "sliding_window", "num_local_experts",
        "num_experts_per_tok", "router_aux_loss_coef", "output_router_logits", "swiglu_alpha", "swiglu_limit",
    ),
    "gemma3_text": (
        *(key for key in _RMS if key != "hidden_act"), "hidden_activation", "attention_bias", "head_dim",
        "attn_logit_softcapping", "final_logit_softcapping", "layer_types", "sliding_window", "query_pre_attn_scalar",
        "use_bidirectional_attention",
    ),
    "gemma3n_text": (
        *(key for key in _RMS if key != "hidden_act"), "hidden_activation", "attention_bias", "head_dim",
        "final_logit_softcapping", "layer_types", "sliding_window", "vocab_size_per_layer_input",
        "hidden_size_per_layer_input", "num_kv_shared_layers", "altup_active_idx", "altup_coef_clip",
        "altup_correct_scale", "altup_num_inputs", "laurel_rank", "activation_sparsity_pattern",
    ),
    "gemma4_text": (
        *_GEMMA4, "vocab_size_per_layer_input", "hidden_size_per_layer_input", "enable_moe_block", "num_experts",
        "top_k_experts", "moe_intermediate_size",
    ),
    "gemma4_unified_text": _GEMMA4,
    "ministral3": (*_RMS, "head_dim", "sliding_window"),
    "llama4_text": (
        *_RMS, "head_dim", "attention_bias", "intermediate_size_mlp", "num_local_experts", "num_experts_per_tok",
        "moe_layers", "interleave_moe_layer_step", "use_qk_norm", "no_rope_layers", "no_rope_layer_interval",
        "attention_chunk_size", "layer_types", "attn_temperature_tuning", "floor_scale", "attn_scale",
        "output_router_logits", "router_aux_loss_coef", "router_jitter_noise",
    ),
    "dots1": (
        *_RMS, "head_dim", "attention_bias", "moe_intermediate_size", "n_shared_experts", "n_routed_experts", "n_group",
        "topk_group", "num_experts_per_tok", "first_k_dense_replace", "norm_topk_prob", "routed_scaling_factor",
        "sliding_window", "max_window_layers", "layer_types", "output_router_logits", "scoring_func",
    ),
    "internlm2": (*_RMS, "bias"),
    "minimax_m2": (
        *_RMS, "head_dim", "num_local_experts", "num_experts_per_tok", "router_aux_loss_coef", "output_router_logits",
        "router_jitter_noise", "rotary_dim", "scoring_func", "use_qk_norm", "qk_norm_type", "use_routing_bias",
        "norm_topk_prob",
    ),
    "ernie4_5": (*_RMS, "use_bias", "head_dim"),
    "ernie4_5_moe": (
        *_RMS, "use_bias", "head_dim", "moe_intermediate_size", "moe_k", "moe_num_experts", "moe_num_shared_experts",
        "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval", "moe_norm_min", "num_experts",
        "num_experts_per_tok", "router_aux_loss_coef", "output_router_logits",
    ),
    "internlm3": (*_RMS, "head_dim", "qkv_bias", "bias"),
    "seed_oss": (
        *_RMS, "attention_bias", "attention_out_bias", "mlp_bias", "head_dim", "pretraining_tp", "residual_dropout",
    ),
    "glm4": (*_RMS, "attention_bias", "head_dim", "partial_rotary_factor"),
    "exaone4": (*_RMS, "sliding_window", "sliding_window_pattern", "layer_types"),
    "gemma": (*_RMS, "attention_bias", "head_dim", "use_bidirectional_attention"),
    "gemma2": (
        *(key for key in _RMS if key != "hidden_act"), "hidden_activation", "attention_bias", "head_dim",
        "attn_logit_softcapping", "final_logit_softcapping", "layer_types", "sliding_window", "query_pre_attn_scalar",
        "use_bidirectional_attention",
    ),
    "phi": (
        *_USUAL, "num_key_value_heads", "layer_norm_eps", "qk_layernorm", "partial_rotary_factor", "embd_pdrop",
        "resid_pdrop",
    ),
    "phi3": (*_RMS, "sliding_window", "original_max_position_embeddings", "embd_pdrop", "resid_pdrop"),
    "starcoder2": (
        *_USUAL, "num_key_value_heads", "norm_epsilon", "sliding_window", "use_bias", "embedding_dropout",
        "residual_dropout",
    ),
    "granite": (
        *_RMS, "attention_bias", "mlp_bias", "attention_multiplier", "embedding_multiplier", "logits_scaling",
        "residual_multiplier",
    ),
    "smollm3": (
        *_RMS, "attention_bias", "mlp_bias", "sliding_window", "use_sliding_window", "layer_types", "no_rope_layers",
        "no_rope_layer_interval",
    ),
    "olmo": (*_USUAL, "num_key_value_heads", "attention_bias", "clip_qkv"),
    "olmo2": (*_RMS, "attention_bias"),
    "olmo3": (*_RMS, "attention_bias", "sliding_window", "layer_types"),
    "stablelm": (
        *_USUAL, "num_key_value_heads", "layer_norm_eps", "hidden_dropout", "qk_layernorm", "use_parallel_residual",
        "use_qkv_bias",
    ),
    "gpt2": (
        "activation_function", "add_cross_attention", "attn_pdrop", "bos_token_id", "embd_pdrop", "eos_token_id",
        "initializer_range", "layer_norm_epsilon", "n_embd", "n_head", "n_inner", "n_layer", "n_positions",
        "pad_token_id", "reorder_and_upcast_attn", "resid_pdrop", "scale_attn_by_inverse_layer_idx",
        "scale_attn_weights", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
        "summary_use_proj", "tie_word_embeddings", "use_cache", "vocab_size",
    ),
    "gpt_bigcode": (
        "activation_function", "add_cross_attention", "attention_softmax_in_fp32", "attn_pdrop", "bos_token_id",
        "embd_pdrop", "eos_token_id", "initializer_range", "layer_norm_epsilon", "multi_query", "n_embd", "n_head",
        "n_inner", "n_layer", "n_positions", "pad_token_id", "resid_pdrop", "scale_attention_softmax_in_fp32",
        "scale_attn_weights", "tie_word_embeddings", "use_cache", "vocab_size",
    ),
    **{
        kind: (
            "activation_function", "attn_pdrop", "bos_token_id", "embd_pdrop", "eos_token_id", "initializer_range",
            "layer_norm_epsilon", "n_embd", "n_head", "n_inner", "n_layer", "n_positions", *more, "resid_pdrop",
            "rotary_dim", "tie_word_embeddings", "use_cache", "vocab_size",
        )
        for kind, more in {"gptj": ("pad_token_id",), "codegen": ("n_ctx",)}.items()
    },
    "falcon": (*_FALCON, "num_kv_heads", "num_ln_in_parallel_attn"),
    "RefinedWebModel": (*_FALCON, "apply_residual_connection_post_layernorm"),
    "RefinedWeb": (
        *(key for key in _FALCON if key not in ("new_decoder_architecture", "multi_query", "parallel_attn")),
        "n_head_kv", "apply_residual_connection_post_layernorm",
    ),
    "opt": (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_dim", "max_position_embeddings",
        "do_layer_norm_before", "_remove_final_layer_norm", "word_embed_proj_dim", "dropout", "attention_dropout",
        "activation_function", "layerdrop", "init_std", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id",
        "enable_bias", "layer_norm_elementwise_affine", "tie_word_embeddings", "vocab_size",
    ),
    "gpt_neox": (
        *_USUAL, "layer_norm_eps", "attention_bias", "hidden_dropout", "classifier_dropout", "is_decoder",
        "use_parallel_residual", "rotary_pct", "rotary_emb_base",
    ),
    "lfm2_moe": (
        *(key for key in _USUAL if key not in ("hidden_act", "attention_dropout")), "num_key_value_heads", "norm_eps",
        "conv_bias", "conv_L_cache", "num_dense_layers", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
        "use_expert_bias", "routed_scaling_factor", "norm_topk_prob", "output_router_logits", "layer_types",
        "tie_embedding",
    ),
    "qwen3_5_text": (*_RMS, *_DELTA),
    "qwen3_5_moe_text": (
        *(key for key in _RMS if key != "intermediate_size"), *_DELTA, "shared_expert_intermediate_size",
        *(key for key in _EXPERTS if key != "norm_topk_prob"),
    ),
    "qwen3_next": (
        *_RMS, *(key for key in _DELTA if key != "attn_output_gate"), *_EXPERTS, "shared_expert_intermediate_size",
        "mlp_only_layers", "decoder_sparse_step",
    ),
    "lfm2": (
        *(key for key in _USUAL if key not in ("hidden_act", "attention_dropout")), "num_key_value_heads", "norm_eps",
        "conv_bias", "conv_L_cache", "block_multiple_of", "block_ffn_dim_multiplier", "block_auto_adjust_ff_dim",
        "full_attn_idxs", "layer_types", "tie_embedding", "block_ff_dim",
    ),
    "hunyuan_v1_dense": (
        *_RMS, "attention_bias", "head_dim", "pretraining_tp", "eod_token_id", "num_experts", "use_qk_norm", "use_cla",
    ),
    "hunyuan_v1_moe": (
        *_RMS, "attention_bias", "head_dim", "pretraining_tp", "eod_token_id", "sep_token_id", "num_experts",
        "moe_topk", "output_router_logits", "use_qk_norm", "use_cla",
    ),
    "apertus": (*_RMS, "attention_bias", "head_dim"),
    "minicpm": (
        *_RMS, "attention_bias", "pretraining_tp", "scale_emb", "dim_model_base", "scale_depth", "sparse_config",
    ),
    "arcee": (*_RMS, "attention_bias", "mlp_bias", "head_dim", "pretraining_tp"),
    "afmoe": (
        *_RMS, "head_dim", "attention_bias", "layer_types", "sliding_window", "num_experts", "num_experts_per_tok",
        "moe_intermediate_size", "num_dense_layers", "num_shared_experts", "route_norm", "route_scale", "score_func",
        "n_group", "topk_group", "num_expert_groups", "num_limited_groups", "global_attn_every_n_layers",
        "mup_enabled", "load_balance_coeff", "use_grouped_mm", "output_router_logits",
    ),
    "cohere": (
        *_USUAL, "num_key_value_heads", "layer_norm_eps", "attention_bias", "use_qk_norm", "logit_scale",
        "model_max_length",
    ),
    "cohere2_moe": (
        *_USUAL, "num_key_value_heads", "head_dim", "layer_norm_eps", "rms_norm_eps", "attention_bias", "layer_types",
        "sliding_window", "sliding_window_pattern", "logit_scale", "num_experts", "num_experts_per_tok",
        "num_shared_experts", "shared_expert_combination_strategy", "expert_selection_fn", "mlp_layer_types",
        "prefix_dense_sliding_window_pattern", "prefix_dense_intermediate_size", "first_k_dense_replace",
        "norm_topk_prob", "num_nextn_predict_layers", "output_router_logits",
    ),
    "cohere2": (
        *_USUAL, "num_key_value_heads", "layer_norm_eps", "attention_bias", "layer_types", "sliding_window",
        "logit_scale",
    ),
}  # fmt: skip
OTHERS: dict[str, Any] = {
    "hidden_size": 96, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 8,
    "max_position_embeddings": 77, "hidden_act": "gelu", "hidden_activation": "silu", "activation_function": "silu",
    "rope_parameters": {"rope_theta": 77.0, "rope_type": "default"}, "rms_norm_eps": 0.5, "layer_norm_eps": 0.5,
    "norm_epsilon": 0.5, "layer_norm_epsilon": 0.5, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True,
    "use_bias": False, "bias": True, "use_qkv_bias": True, "attention_out_bias": True,
    "head_dim": 8, "sliding_window": 5, "use_sliding_window": True,
    "max_window_layers": 1, "layer_types": ["sliding_attention", "full_attention"], "attn_logit_softcapping": 30.0,
    "final_logit_softcapping": 20.0, "query_pre_attn_scalar": 77, "use_bidirectional_attention": True,
    "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "logits_scaling": 3.0, "residual_multiplier": 0.3,
    "no_rope_layers": [0, 1], "no_rope_layer_interval": 2, "qk_layernorm": True, "add_cross_attention": True,
    "n_embd": 96, "n_head": 8, "n_inner": 48, "n_layer": 3, "n_positions": 77, "scale_attn_by_inverse_layer_idx": True,
    "scale_attn_weights": False, "logit_scale": 0.3, "rotary_pct": 0.75, "rotary_emb_base": 77, "vocab_size": 99,
    "mlp_layer_types": ["sparse", "dense"], "clip_qkv": 8.0, "num_experts": 6, "num_local_experts": 6,
    "num_experts_per_tok": 3, "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48, "qkv_bias": False, "norm_topk_prob": True,
    "sliding_window_pattern": 2, "mlp_only_layers": [0], "decoder_sparse_step": 2, "tie_word_embeddings": None,
    "original_max_position_embeddings": 64, "norm_eps": 0.5, "conv_bias": True, "conv_L_cache": 5,
    "block_multiple_of": 64, "block_ffn_dim_multiplier": 9.0, "block_auto_adjust_ff_dim": False,
    "full_attn_idxs": [1], "num_dense_layers": 1, "use_expert_bias": False, "routed_scaling_factor": 2.0,
    "tie_embedding": False, "block_ff_dim": 4096,
    "linear_conv_kernel_dim": 3, "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_num_key_heads": 8,
    "linear_num_value_heads": 16, "full_attention_interval": 2, "attn_output_gate": False,
    "hidden_size_per_layer_input": 64, "enable_moe_block": True,
    "top_k_experts": 3, "attention_k_eq_v": True, "num_kv_shared_layers": 1, "use_double_wide_mlp": True,
    "shared_intermediate_size": 48, "position_embedding_type": "rope", "mamba_n_heads": 4, "mamba_n_groups": 2,
    "mamba_d_state": 32, "mamba_d_head": 3, "mamba_d_conv": 3, "mamba_expand": 3, "mamba_conv_bias": False,
    "mamba_proj_bias": True, "time_step_limit": [0.1, 2.0], "projectors_bias": True, "mamba_d_ssm": 256,
    "mamba_norm_before_gate": False, "mamba_rms_norm": True, "mlp_multipliers": [0.5, 1.0],
    "ssm_multipliers": [1.0, 1.0, 0.5, 1.0, 1.0], "layers_block_type": ["mamba", "moe"], "mlp_hidden_act": "silu",
    "ssm_state_size": 32, "mamba_num_heads": 4, "mamba_head_dim": 16, "mamba_hidden_act": "gelu", "n_groups": 2,
    "conv_kernel": 3, "use_conv_bias": False, "mamba_dt_limit": [0.1, 2.0], "n_routed_experts": 6,
    "moe_shared_expert_intermediate_size": 48, "moe_latent_size": 16, "n_group": 2, "num_nextn_predict_layers": 2,
    "hybrid_override_pattern": "M*E", "first_k_dense_replace": 2, "n_shared_experts": 3, "kv_lora_rank": 48,
    "q_lora_rank": 40, "qk_rope_head_dim": 8, "v_head_dim": 24, "qk_nope_head_dim": 24, "topk_method": "noaux",
    "scoring_func": "tanh", "moe_layer_freq": 2, "rope_interleave": False, "num_shared_experts": 2,
    "moe_k": 3, "moe_layers": [0], "moe_num_experts": 48, "moe_num_shared_experts": 1, "moe_layer_start_index": 0,
    "moe_layer_end_index": 0, "moe_layer_interval": 3, "global_head_dim": 8,
    "num_global_key_value_heads": 1, "per_layer_config": {"1": {"head_dim": 8}},
    "altup_active_idx": 1, "altup_correct_scale": False, "altup_num_inputs": 3, "laurel_rank": 32,
    "activation_sparsity_pattern": [0.5, 0.0], "sparse_config": {"kernel_size": 32},
}  # fmt: skip
_WINDOWED = (
    "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text", "cohere2", "gpt_oss", "exaone4",
    "olmo3",
)  # fmt: skip
_SWITCHED_OFF = (
    ("mellum", "norm_topk_prob"), ("lfm2_moe", "norm_topk_prob"), ("qwen3_next", "norm_topk_prob"),
    ("gpt_oss", "attention_bias"), ("glm4", "attention_bias"),
    ("seed_oss", "attention_bias"), ("internlm2", "bias"), ("nemotron_h", "norm_topk_prob"),
    ("deepseek_v3", "norm_topk_prob"), ("kimi_k2", "norm_topk_prob"), ("glm4_moe_lite", "norm_topk_prob"),
    ("minimax_m2", "norm_topk_prob"), ("glm4_moe", "norm_topk_prob"), ("bailing_moe_v2", "norm_topk_prob"),
    *(("opt", key) for key in ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine")),
    *((kind, key) for kind in ("falcon", "RefinedWebModel") for key in ("multi_query", "parallel_attn")),
    ("cohere2_moe", "norm_topk_prob"), ("llama4_text", "use_qk_norm"), ("llama4_text", "attn_temperature_tuning"),
)  # fmt: skip
"""Keys whose default is true."""
_OF_GEMMA4 = {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32}
NEEDS: dict[str, dict[str, Any]] = {
    **{key: _OF_GEMMA4 | {"enable_moe_block": True} for key in _OF_GEMMA4},
    "enable_moe_block": _OF_GEMMA4,
    **{key: {"new_decoder_architecture": True} for key in ("num_kv_heads", "num_ln_in_parallel_attn")},
    "num_global_key_value_heads": {"attention_k_eq_v": True},
    "use_double_wide_mlp": {"num_kv_shared_layers": 1},
    "mamba_norm_before_gate": {"mamba_rms_norm": True},
    "mamba_expand": {"mamba_d_ssm": None},
    "sliding_window": {"use_sliding_window": True, "sliding_window": 9},
    "use_sliding_window": {"sliding_window": 9},
    "max_window_layers": {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 0},
    "layer_types": {"sliding_window": 9, "use_sliding_window": True},
    "max_position_embeddings": {"rope_parameters": {"rope_type": "default"}},
    "original_max_position_embeddings": {
        "original_max_position_embeddings": 128,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8},
    },
}
"""What has to be stated, too, so that a key can matter."""
CANNOT_MATTER: dict[str, str] = {
    **dict.fromkeys(
        ("attention_dropout", "dropout", "layerdrop", "init_std",
         "hidden_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop", "embedding_dropout",
         "residual_dropout", "classifier_dropout", "output_dropout", "mtp_loss_scaling_factor",
         "initializer_range", "router_aux_loss_coef", "output_router_logits", "altup_coef_clip",
         "router_jitter_noise"), "for training"),
    "mamba_chunk_size": "the same sums in other parts",
    **dict.fromkeys(("time_step_min", "time_step_max"), "for the first weights of a training"),
    "num_logits_to_keep": "a choice of whoever calls",
    "time_step_floor": "for the first weights of a training",
    "rescale_prenorm_residual": "for the first weights of a training",
    "expand": "the heads and their size are stated",
    **dict.fromkeys(("aux_loss_alpha", "load_balance_coeff"), "for training"),
    "num_limited_groups": "there is one group",
    "use_grouped_mm": "how the same is computed",
    "seq_aux": "for training",
    "ep_size": "the same experts on several machines",
    "chunk_size": "the same sums in other parts",
    "mtp_layers_block_type": "of layers that predict several tokens, which are refused",
    **dict.fromkeys(
        ("use_mamba_kernels", "moe_shared_expert_overlap", "residual_in_fp32", "mamba_ssm_cache_dtype",
         "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
        "how and in which precision the same is computed"),
    "use_cache": "a choice of whoever calls",
    "pad_token_id": "for batches of texts of several lengths",
    **dict.fromkeys(("bos_token_id", "eod_token_id", "sep_token_id"), "read with the tokenizer"),
    "eos_token_id": "read with the tokenizer",
    "pretraining_tp": "the same sums in parts; gone from transformers 5",
    "reorder_and_upcast_attn": "the same numbers in another precision",
    "is_decoder": "whether keys are kept",
    **dict.fromkeys(
        ("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
        "for GPT2DoubleHeadsModel"),
}  # fmt: skip
_CANNOT_MATTER_HERE = {
    ("nemotron_h", "n_shared_experts"): "their size together is stated",
    ("nemotron_h", "topk_group"): "there is one group",
    ("bailing_moe_v2", "max_window_layers"): "there is no window",
    ("afmoe", "topk_group"): "there is one group",
    ("codegen", "n_ctx"): "the class has no use for it",
    ("gemma4_text", "vocab_size_per_layer_input"): "the rows of a table, which are counted",
    ("bailing_moe_v2", "moe_router_enable_expert_bias"): "the tensors say it",
    **{(kind, "head_dim"): "the size of a part of heads, which is stated" for kind in LATENT},
}  # fmt: skip


def config(kind: str, **stated: Any) -> dict[str, Any]:
    sizes: dict[str, Any] = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_inner": 96, "n_positions": 512}
    if kind not in ("gpt2", "gpt_bigcode", "gptj", "codegen"):
        sizes = {
            "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96,
            "max_position_embeddings": 512, "num_key_value_heads": 2,
        }  # fmt: skip
    if kind == "granitemoehybrid":
        sizes["layer_types"] = ["mamba", "attention"]
    if kind == "nemotron_h":
        del sizes["num_hidden_layers"]
        sizes |= {"hybrid_override_pattern": "ME*-", "mamba_num_heads": 2, "num_key_value_heads": 2}
    if kind in (*LATENT, "glm4_moe"):
        sizes |= {"num_key_value_heads": 4, "n_group": 1, "num_experts_per_tok": 2}
    if kind == "deepseek_v2":
        sizes["topk_method"] = "group_limited_greedy"
    if kind == "falcon_h1":
        sizes |= {"mamba_n_heads": 2, "mamba_d_ssm": 128}
    return {"model_type": kind, **sizes, **stated}


def read(stated: dict[str, Any]) -> Any:
    """What is made of a configuration: parameters, and what decides about the output layer; or that it is refused."""
    try:
        return metadata_of(stated, "config.json"), is_tied(stated), stated.get("vocab_size")
    except CheckpointError:
        return "refused"


@pytest.mark.parametrize("kind", READ)
def test_each_key_of_the_configuration_is_used_or_refused_or_cannot_matter(kind: str) -> None:
    for key in READ[kind]:
        has_own_experts = kind.startswith("hunyuan") or kind in (
            "nemotron_h", "glm4_moe", "bailing_moe_v2", "afmoe", "ernie4_5_moe", "dots1", "llama4_text", "cohere2_moe",
            *LATENT,
        )  # fmt: skip
        common = config(kind, **({} if has_own_experts else NEEDS.get(key, {})))
        other = not is_tied(common) if key == "tie_word_embeddings" else OTHERS.get(key, 0.123)
        if kind in _WINDOWED and key == "layer_types":
            other = ["full_attention"] * 2
        if kind == "gemma" and key == "hidden_act":
            other = "silu"
        if kind in ("bailing_moe_v2", "ernie4_5", "ernie4_5_moe") and key == "use_bias":
            other = True
        if kind == "gpt_neox":
            other = {"hidden_act": "silu", "attention_bias": False}.get(key, other)
        if key == "layer_types" and "full_attention_interval" in READ[kind]:
            other = ["full_attention", "linear_attention"]
        if kind in ("lfm2", "lfm2_moe"):  # whose inner size is a multiple of 256
            other = {"intermediate_size": 4096, "layer_types": ["conv", "full_attention"]}.get(key, other)
        if (kind, key) == ("granitemoehybrid", "layer_types"):
            other = ["attention", "mamba"]
        if kind == "cohere2_moe":
            other = {"first_k_dense_replace": 1, "prefix_dense_intermediate_size": 77}.get(key, other)
        if kind == "afmoe":
            other = {"num_dense_layers": 0, "num_shared_experts": 3}.get(key, other)
        if (kind, key) in _SWITCHED_OFF:
            other = False
        if (kind, key) in (("internlm3", "qkv_bias"), ("nemotron_h", "use_bias")):
            other = True
        is_read = read({**common, key: other}) != read(common)
        assert is_read != (key in CANNOT_MATTER or (kind, key) in _CANNOT_MATTER_HERE), f"{kind}: {key}"


def test_every_model_type_has_its_keys_here_and_a_folder_that_is_computed() -> None:
    with pytest.raises(CheckpointError) as refused:
        metadata_of({}, "config.json")
    known = set(str(refused.value).partition("It computes ")[2].removesuffix(".").split(", "))
    assert READ.keys() == known
    assert {stated["model_type"] for stated in CONFIGS.values()} == known


def test_positions_of_apertus_are_scaled_as_those_of_llama_3_unless_something_else_is_stated() -> None:
    scaled: dict[str, Any] = metadata_of(config("apertus"), "config.json")
    assert scaled["apertus.rope.freq_base"] == 12e6 and max(scaled["apertus.rope.scaling.factors"]) == 8.0
    usual = metadata_of(config("apertus", rope_parameters={"rope_type": "default", "rope_theta": 1e4}), "config.json")
    assert usual["apertus.rope.freq_base"] == 1e4 and "apertus.rope.scaling.factors" not in usual


OTHER_TYPES: tuple[Any, ...] = (
    None, True, [], {}, "x", -1, 0, 1.5, 1 << 17, 1 << 40, 1e308, 10**400, [[]], [None], {"a": []}, {"rope_type": []},
    {"full_attention": {}, "sliding_attention": {"rope_theta": []}},
)  # fmt: skip
EVERYWHERE = (
    "model_type", "text_config", "quantization_config", "rope_parameters", "rope_scaling", "partial_rotary_factor",
    "layer_types", "sliding_window", "sliding_window_pattern", "mlp_only_layers", "decoder_sparse_step", "head_dim",
    "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "vocab_size", "tie_word_embeddings",
    "query_pre_attn_scalar", "no_rope_layers", "swiglu_limit", "hidden_act", "max_position_embeddings",
)  # fmt: skip
HAVING_RULES = (
    "qwen2, yarn", "qwen2moe", "gpt-oss", "mistral3", "exaone4, window", "gemma3", "gemma3n", "gemma4, experts",
    "qwen35moe",
    "granitehybrid", "falcon-h1", "nemotron_h_moe", "deepseek2, joined", "phi3", "gptneox", "cohere2", "lfm2moe",
    "llama4, dense",
)  # fmt: skip
"""Models whose settings are read by rules that no other one has."""


@pytest.mark.parametrize("first", slow_but([0], range(3)))
@pytest.mark.parametrize("name", slow_but(["llama, yarn"], CONFIGS, HAVING_RULES))
@pytest.mark.filterwarnings("error")
def test_values_of_other_types_cause_no_traceback(name: str, first: int, tmp_path: Path) -> None:
    """Of every third key, from `first` on."""
    write_folder(tmp_path, name)
    whole = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    rules = {f"rope_scaling.{key}" for key in whole.get("rope_scaling") or {}}
    for key in sorted({*whole, *EVERYWHERE, *rules})[first::3]:
        for value in OTHER_TYPES:
            inner = {key.removeprefix("rope_scaling."): value}
            change = {"rope_scaling": whole["rope_scaling"] | inner} if key in rules else inner
            (tmp_path / "config.json").write_text(json.dumps(whole | change), encoding="utf-8")
            assert all(isinstance(problem, str) for problem in problems(tmp_path)), (key, value)


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (["full_attention"] * 3, "as 'layer_types', but has 2 layers"),
        ("full_attention", "as 'layer_types', but has 2 layers"),
        (["chunked_attention", "full_attention"], "layers of the kind 'chunked_attention'"),
    ],
)
def test_kinds_of_layers_that_gemma4_does_not_have_are_refused(kinds: object, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        metadata_of(config("gemma4_text", layer_types=kinds), "config.json")


def test_an_inner_size_that_is_a_multiple_of_nearly_nothing_is_refused() -> None:
    assert read(config("lfm2", block_multiple_of=5e-324)) == "refused"


def test_impossible_numbers_of_layers_are_not_expanded_into_lists() -> None:
    """Their number itself is refused where it is read."""
    more = {"num_experts": 8, "mlp_only_layers": [0], "sliding_window": 9, "use_sliding_window": True}
    for count, is_listed in ((MAX_LAYERS, True), (MAX_LAYERS + 1, False)):
        found = metadata_of(config("qwen3_moe", num_hidden_layers=count, **more), "config.json")
        lists = {"qwen3moe.expert.layers", "qwen3moe.attention.sliding_window_pattern"}
        assert (lists <= found.keys(), lists.isdisjoint(found)) == (is_listed, not is_listed)


def changed(folder: Path, **stated: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | stated), encoding="utf-8")
    return folder


def test_an_untied_model_without_an_output_layer_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, "llama")
    assert "has no output layer" in refusal(changed(tmp_path, tie_word_embeddings=False))
    stated = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    del stated["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(stated), encoding="utf-8")
    assert "has no output layer" in refusal(tmp_path)  # Llama's default


def test_a_tied_model_with_another_output_layer_gets_a_note(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama, untied")
    prompt = [token * 7 % 25 for token in range(20)]
    expected = scores(tmp_path / "m", prompt, tmp_path)
    assert shown(tmp_path / "m")["notes"] == []
    [note] = shown(changed(tmp_path / "m", tie_word_embeddings=True))["notes"]
    assert "'tie_word_embeddings'" in note and "another output layer, which is used" in note
    assert scores(tmp_path / "m", prompt, tmp_path) == expected


def test_an_output_layer_that_repeats_the_embeddings_gets_no_note(tmp_path: Path) -> None:
    _, tensors = write_folder(tmp_path, "llama")
    (tmp_path / "model.safetensors").unlink()
    embeddings = tensors["token_embd.weight"]
    _rewritten(tmp_path, {"lm_head.weight": embeddings})
    assert shown(tmp_path)["notes"] == []


def _rewritten(folder: Path, more: dict[str, Any]) -> Path:
    """The folder with further tensors."""
    write_folder(folder, "llama")
    content = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    stored = {
        name: np.frombuffer(content[8 + length :], "<f4")[entry["data_offsets"][0] // 4 : entry["data_offsets"][1] // 4]
        .reshape(entry["shape"])
        for name, entry in json.loads(content[8 : 8 + length]).items() if name != "__metadata__"
    }  # fmt: skip
    (folder / "model.safetensors").write_bytes(safetensors_bytes(stored | more))
    return folder


def test_biases_that_the_configuration_does_not_have_are_refused(tmp_path: Path) -> None:
    """transformers ignores them."""
    _rewritten(tmp_path, {"model.layers.0.self_attn.q_proj.bias": np.ones(64, np.float32)})
    assert "has a tensor 'blk.0.attn_q.bias'" in refusal(tmp_path)
    assert shown(changed(tmp_path, attention_bias=True))["notes"] == []


def test_scalars_and_empty_tensors_are_valid(tmp_path: Path) -> None:
    nothing = {"marker": np.zeros((3, 0), np.float32), "another": np.zeros(0, np.float32)}
    assert shown(_rewritten(tmp_path, nothing))["notes"] == []
    _rewritten(tmp_path, {"model.layers.0.self_attn.k_scale": np.float32(1).reshape(())})
    assert "has a tensor 'model.layers.0.self_attn.k_scale', which Onward does not compute" in refusal(tmp_path)


LEFT_OVER: dict[str, tuple[str, Any, str]] = {
    "numbers of positions": ("model.layers.0.self_attn.position_ids", np.zeros(4, np.float32), ""),
    "frequencies of a layer": ("model.layers.0.self_attn.rotary_emb.inv_freq", np.ones(8, np.float32), ""),
    "frequencies of all layers": ("model.rotary_emb.inv_freq", np.ones(8, np.float32), ""),
    "a mask": (
        "model.layers.0.self_attn.bias",
        np.zeros(4, np.float32),
        "has a tensor 'model.layers.0.self_attn.bias'",
    ),
    "a head for values": (
        "v_head.summary.weight",
        np.ones((1, 64), np.float32),
        "has a tensor 'v_head.summary.weight'",
    ),
}
"""Tensors that older files have besides the weights: those that follow from the configuration are left out."""


@pytest.mark.parametrize("name", LEFT_OVER)
def test_tensors_that_follow_from_the_configuration_are_left_out_and_others_named(name: str, tmp_path: Path) -> None:
    tensor, array, words = LEFT_OVER[name]
    folder = _rewritten(tmp_path, {tensor: array})
    if words:
        assert words in refusal(folder)
    else:
        assert shown(folder)["notes"] == []


def test_tokens_without_a_row_are_refused_with_both_numbers(tmp_path: Path) -> None:
    write_folder(tmp_path, "llama")
    assert "has 99 tokens, but 'token_embd.weight' has 30 rows" in refusal(changed(tmp_path, vocab_size=99))
    changed(tmp_path, vocab_size=30)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer.setdefault("added_tokens", []).append({"id": 30, "content": "<|tool|>", **flags})
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    assert "the token '<|tool|>' with the id 30, but the model has 30 rows" in refusal(tmp_path)
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(tokenizer).replace("<|tool|>", "<image_soft_token>"), encoding="utf-8"
    )
    assert shown(tmp_path)["notes"] == []


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"layer_types": ["linear_attention"]}, "'layer_types', but has 2 layers"),
        ({"layer_types": ["linear_attention", "sliding_attention"]}, "of the kind 'sliding_attention'"),
        ({"linear_value_head_dim": "128"}, "as heads of values and their size"),
        ({"attn_output_gate": False}, "attention without a gate"),
        ({"hidden_act": "gelu"}, "delta rules with the activation 'gelu'"),
    ],
)
def test_layers_that_qwen_3_5_does_not_have_are_refused(stated: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        metadata_of(config("qwen3_5_text", **stated), "config.json")


def test_no_configuration_changes_the_experts_of_qwen_3_5() -> None:
    """transformers' class reads none of these keys."""
    unread: dict[str, Any] = {"norm_topk_prob": False, "mlp_only_layers": [0], "decoder_sparse_step": 2}
    plain = metadata_of(config("qwen3_5_moe_text"), "config.json")
    assert metadata_of(config("qwen3_5_moe_text", **unread), "config.json") == plain
    assert plain["qwen35moe.expert_weights_norm"] is True


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"mamba_rms_norm": True}, "before its gate"),
        ({"mamba_proj_bias": True}, "biases .'mamba_proj_bias'."),
        ({"projectors_bias": True}, "biases .'projectors_bias'."),
        ({"hidden_act": "gelu"}, "the activation 'gelu' .'hidden_act'."),
        ({"time_step_limit": [0.0, 2.0]}, "limits time steps"),
        ({"time_step_limit": [0.001, float("inf")]}, "limits time steps"),
        ({"time_step_limit": [0.0]}, "limits time steps"),
        ({"mamba_d_head": 32}, "2 heads .'mamba_n_heads'. of 32 numbers .* but 128 together"),
        ({"ssm_multipliers": [1.0] * 4}, "as 'ssm_multipliers' instead of 5 numbers"),
        ({"mlp_multipliers": 2.0}, "as 'mlp_multipliers' instead of 2 numbers"),
    ],
)
def test_settings_with_which_falcon_h1_is_not_computed_are_refused(stated: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        metadata_of(config("falcon_h1", **stated), "config.json")


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"hybrid_override_pattern": "MX"}, "layers of the kind 'X'"),
        ({"hybrid_override_pattern": None}, "does not state what its layers are"),
        ({"layers_block_type": ["mamba", 3]}, "layers of the kind '3'"),
        ({"use_bias": True}, "biases .'use_bias'."),
        ({"mlp_hidden_act": "silu"}, "the activation 'silu' .'mlp_hidden_act'."),
        ({"time_step_limit": [0.001, 0.1]}, "limits time steps"),
        ({"moe_latent_size": 32}, "'32' as 'moe_latent_size'"),
        ({"n_group": 4}, "'4' as 'n_group'"),
        ({"sliding_window": 64}, "'64' as 'sliding_window'"),
        ({"num_nextn_predict_layers": 1}, "'1' as 'num_nextn_predict_layers'"),
    ],
)
def test_settings_with_which_nemotron_h_is_not_computed_are_refused(stated: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        metadata_of(config("nemotron_h", **stated), "config.json")


@pytest.mark.parametrize(
    ("kind", "stated", "words"),
    [
        ("bailing_moe_v2", {"use_qk_norm": False}, "'False' as 'use_qk_norm'"),
        ("bailing_moe_v2", {"score_function": "softmax"}, "'softmax' as 'score_function'"),
        ("bailing_moe_v2", {"norm_topk_prob": False}, "'False' as 'norm_topk_prob'"),
        ("ernie4_5", {"use_bias": True}, "'True' as 'use_bias'"),
        ("ernie4_5_moe", {"use_bias": True}, "'True' as 'use_bias'"),
        ("ernie4_5_moe", {"moe_norm_min": 0.1}, "'0.1' as 'moe_norm_min'"),
        ("ernie4_5_moe", {"moe_gate_act": "sigmoid"}, "'sigmoid' as 'moe_gate_act'"),
        ("ernie4_5_moe", {"moe_num_shared_experts": "two"}, "as size and number of experts for all tokens"),
        ("ernie4_5_moe", {"moe_layer_interval": 0}, r"states \(1, -1, 0\) as layers with experts"),
        ("ernie4_5_moe", {"moe_layer_start_index": [1]}, "as layers with experts"),
        ("llama4_text", {"no_rope_layer_interval": 0}, "'0' as 'no_rope_layer_interval'"),
        ("llama4_text", {"interleave_moe_layer_step": 0}, "'0' as 'interleave_moe_layer_step'"),
        ("llama4_text", {"layer_types": ["sliding_attention", "full_attention"]}, "of the kind 'sliding_attention'"),
        ("llama4_text", {"partial_rotary_factor": 0.5}, "'0.5' as 'partial_rotary_factor'"),
        ("llama4_text", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "'0.5' as 'partial_rotary_factor'"),
        ("cohere2_moe", {"expert_selection_fn": "tanh"}, "'tanh' as 'expert_selection_fn'"),
        ("cohere2_moe", {"shared_expert_combination_strategy": "max"}, "'max' as 'shared_expert_combination_st"),
        ("cohere2_moe", {"first_k_dense_replace": "1"}, r"states \('1', 1, 4\) as layers without experts"),
        ("cohere2_moe", {"layer_types": ["chunked_attention"] * 2}, "kind 'chunked_attention' .'layer_types'."),
        ("cohere2_moe", {"mlp_layer_types": ["moe", "dense"]}, "kind 'moe' .'mlp_layer_types'."),
        ("dots1", {"scoring_func": "softmax"}, "'softmax' as 'scoring_func'"),
        ("dots1", {"topk_method": "greedy_group"}, "'greedy_group' as 'topk_method'"),
        ("dots1", {"num_experts": 8}, "a mixture of experts .'num_experts'."),
        ("gpt_bigcode", {"multi_query": False}, "'False' as 'multi_query'"),
        ("hunyuan_v1_dense", {"num_experts": 8}, "'8' as 'num_experts'"),
        ("hunyuan_v1_moe", {"use_cla": True}, "'True' as 'use_cla'"),
        ("afmoe", {"score_func": "softmax"}, "'softmax' as 'score_func'"),
        ("afmoe", {"route_norm": False}, "'False' as 'route_norm'"),
        ("afmoe", {"n_group": 2}, "'2' as 'n_group'"),
        ("afmoe", {"global_attn_every_n_layers": 0}, "'0' as 'global_attn_every_n_layers'"),
        ("minimax_m2", {"scoring_func": "softmax"}, "'softmax' as 'scoring_func'"),
        ("minimax_m2", {"use_qk_norm": False}, "'False' as 'use_qk_norm'"),
        ("minimax_m2", {"use_routing_bias": False}, "'False' as 'use_routing_bias'"),
        ("minimax_m2", {"qk_norm_type": "per_head"}, "'per_head' as 'qk_norm_type'"),
        ("minicpm", {"sparse_config": {"dense_len": 8192}}, "as 'sparse_config'"),
        ("minicpm", {"scale_depth": 0}, "need to be numbers above 0"),
        ("minicpm", {"hidden_act": "fatrelu"}, "the activation 'fatrelu'"),
        ("minicpm", {"num_experts": 8}, "a mixture of experts"),
        ("gemma3n_text", {"altup_active_idx": 1}, "'1' as 'altup_active_idx'"),
        ("gemma3n_text", {"altup_correct_scale": False}, "'False' as 'altup_correct_scale'"),
        ("gemma3n_text", {"activation_sparsity_pattern": [0.5, 1.0]}, "needs a share for each of 2 layers"),
        ("gemma3n_text", {"activation_sparsity_pattern": [0.5]}, "needs a share for each of 2 layers"),
        ("gemma3n_text", {"activation_sparsity_pattern": [0.5, 1e-300]}, "needs a share for each of 2 layers"),
        ("gemma3n_text", {"activation_sparsity_pattern": 0.95}, "'0.95' as 'activation_sparsity_pattern'"),
        ("gemma3n_text", {"layer_types": ["full_attention"]}, "as 'layer_types', but has 2 layers"),
    ],
)
def test_statements_that_a_model_type_is_not_computed_with_are_refused(
    kind: str, stated: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        metadata_of(config(kind, **stated), "config.json")


@pytest.mark.parametrize(
    ("stated", "rotated"),
    [
        ({"rotary_dim": 8}, 8),
        ({"rotary_dim": 8, "partial_rotary_factor": 0.25}, 4),
        ({"rotary_dim": 8, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}}, 4),
        ({}, 16),
    ],
)
def test_a_share_of_rotated_dimensions_counts_more_than_their_number(stated: dict[str, Any], rotated: int) -> None:
    found = metadata_of(config("minimax_m2", head_dim=16, **stated), "config.json")
    assert found.get("minimax-m2.rope.dimension_count", 16) == rotated


@pytest.mark.parametrize("kind", LATENT)
@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"topk_method": "random"}, "'random' as 'topk_method'"),
        ({"scoring_func": "tanh"}, "'tanh' as 'scoring_func'"),
        ({"moe_layer_freq": 2}, "'2' as 'moe_layer_freq'"),
        ({"attention_bias": True}, "'True' as 'attention_bias'"),
        ({"num_key_value_heads": 2}, "'2' as 'num_key_value_heads'"),
        ({"partial_rotary_factor": 0.5}, "'0.5' as 'partial_rotary_factor'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rotates 0.5 of a part of keys"),
        ({"mlp_layer_types": ["dense", "full"]}, "kinds of layers .'mlp_layer_types'. other than"),
        ({"qk_rope_head_dim": "16"}, "as sizes of parts of keys"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale_all_dim": "1"}}, "'1' as 'mscale_all_dim'"),
    ],
)
def test_what_latent_attention_is_not_computed_with_is_refused(kind: str, stated: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        metadata_of(config(kind, **stated), "config.json")


def test_weights_of_experts_that_two_sources_read_differently_are_refused() -> None:
    with pytest.raises(CheckpointError, match="'True' as 'norm_topk_prob'"):
        metadata_of(config("deepseek_v2", norm_topk_prob=True), "config.json")


NO_LIMITS = ["[0.0, Infinity]", '[0.0, "Infinity"]', '[0, {"__float__": "Infinity"}]', "[0.0, null]", "null"]
"""As transformers has written at one time or another that time steps have none."""


@pytest.mark.parametrize("limits", NO_LIMITS)
def test_infinity_is_read_in_each_of_its_spellings(limits: str, tmp_path: Path) -> None:
    write_folder(tmp_path, "falcon-h1")
    path = tmp_path / "config.json"
    assert '"time_step_limit": [0.0, Infinity]' in path.read_text(encoding="utf-8")
    path.write_text(
        path.read_text(encoding="utf-8").replace("[0.0, Infinity]", limits + ', "said": "to -Infinity \\" Infinity"'),
        encoding="utf-8",
    )
    assert problems(tmp_path) == []
    path.write_text(path.read_text(encoding="utf-8").replace(limits, "[0.0, -Infinity]", 1), encoding="utf-8")
    assert "limits time steps" in refusal(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="processor time is not limited there")
@pytest.mark.parametrize(
    ("kind", "key"),
    [("qwen3_moe", "mlp_only_layers"), ("llama4_text", "moe_layers"), ("lfm2", "full_attn_idxs")],
)
def test_a_list_of_layers_takes_a_time_that_grows_as_it_does(kind: str, key: str) -> None:
    """A process whose time is over ends. To look each layer up in such a list takes a hundred times as long."""
    [config] = [each for each in CONFIGS.values() if each.get("model_type") == kind][:1]
    listed = [number + 1000 for number in range(400_000)]
    stated = {**config, "num_hidden_layers": MAX_LAYERS, "num_attention_heads": 4}
    with limited_processor_time(2.0):
        found = metadata_of({**stated, key: [*listed, 1, True, 2.0, [], "3"]}, "m")
    assert found == metadata_of({**stated, key: [1, 2]}, "m")
