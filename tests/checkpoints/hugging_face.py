"""Writes a tiny checkpoint as a folder of Hugging Face's libraries: with their names and order of rows."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.checkpoints import float8, gemma3n, gemma4, latent, ling, mamba2, qwen35
from tests.checkpoints.reference import COHERE, PAIRS
from tests.checkpoints.tiny import CONTEXT, FEED_FORWARD, HEADS, HIDDEN, INNER, XIELU, tiny

Arrays = dict[str, NDArray[np.float32]]
_DOTS: dict[str, Any] = {
    "model_type": "dots1", "rope_theta": 1e4, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": INNER, "n_shared_experts": 2, "first_k_dense_replace": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_theta": 5000.0},
    "llama, untied": {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": None},
    "llama, experts": {
        "model_type": "mixtral", "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
        "rope_theta": 1e4,
    },
    "llama, biases": {
        "model_type": "internlm3", "qkv_bias": True, "bias": True,
        "rope_scaling": {"rope_type": "dynamic", "factor": 6.0},
    },
    "llama, biases of queries": {"model_type": "internlm3", "qkv_bias": True},
    "llama, linear rope": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama, yarn": {
        "model_type": "llama",
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    },
    "qwen2, yarn": {
        "model_type": "qwen2", "max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 1e4,
            "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.3,
        },
    },
    "qwen2": {"model_type": "qwen2", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "qwen2, mimo": {
        "model_type": "mimo", "rope_theta": 640_000, "head_dim": 16, "attention_bias": True,
        "num_nextn_predict_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "qwen2vl": {
        "model_type": "qwen2_5_vl_text", "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "use_sliding_window": False, "sliding_window": 9, "max_window_layers": 0,
    },
    "qwen2vl, first": {
        "model_type": "qwen2_vl_text", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "qwen3vl": {
        "model_type": "qwen3_vl_text", "head_dim": 32, "rope_theta": 1e4,
        "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]},
    },
    "qwen3vlmoe": {
        "model_type": "qwen3_vl_moe_text", "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 96, "rope_theta": 1e4, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
    "qwen3moe": {
        "model_type": "qwen3_moe", "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": INNER, "norm_topk_prob": True,
    },
    "qwen2moe": {
        "model_type": "qwen2_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": INNER,
        "shared_expert_intermediate_size": 128,
    },
    "granitemoe": {
        "model_type": "granitemoe", "embedding_multiplier": 6.0, "residual_multiplier": 0.4, "logits_scaling": 0.5,
        "attention_multiplier": 0.1, "num_local_experts": 5, "num_experts_per_tok": 2,
    },
    "granitemoe, shared": {
        "model_type": "granitemoeshared", "embedding_multiplier": 6.0, "residual_multiplier": 0.4,
        "logits_scaling": 0.5, "attention_multiplier": 0.1, "num_local_experts": 5, "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
    },
    "mellum": {
        "model_type": "mellum", "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": INNER, "sliding_window": 16,
        "layer_types": [*["sliding_attention"] * 3, "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 1e4,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "gpt-oss": {
        "model_type": "gpt_oss", "head_dim": 32, "intermediate_size": INNER, "num_local_experts": 8,
        "num_experts_per_tok": 3, "sliding_window": 16, "rope_theta": 150_000, "swiglu_limit": 7.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": True,
        },
    },
    "olmoe": {"model_type": "olmoe", "num_experts": 8, "num_experts_per_tok": 3},
    "seed_oss": {"model_type": "seed_oss", "head_dim": 32},
    "ernie4_5": {"model_type": "ernie4_5", "head_dim": 32},
    "ernie4_5-moe": {
        "model_type": "ernie4_5_moe", "head_dim": 32, "moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": INNER,
        "moe_num_shared_experts": 2, "moe_layer_end_index": 2,
    },
    "ernie4_5-moe, every second": {
        "model_type": "ernie4_5_moe", "head_dim": 32, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": INNER,
        "moe_num_shared_experts": 0, "moe_layer_start_index": 0, "moe_layer_interval": 2,
    },
    "llama4": {
        "model_type": "llama4_text", "head_dim": 32, "intermediate_size": INNER, "intermediate_size_mlp": FEED_FORWARD,
        "rope_theta": 500_000.0, "num_local_experts": 8, "num_experts_per_tok": 1, "no_rope_layers": [],
        "attn_temperature_tuning": 4,
    },
    "llama4, chunks": {
        "model_type": "llama4_text", "head_dim": 32, "intermediate_size": INNER, "intermediate_size_mlp": FEED_FORWARD,
        "rope_theta": 1e4, "num_local_experts": 6, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2,
        "attention_chunk_size": 24, "attn_scale": 0.4, "floor_scale": 16,
    },
    "llama4, many experts": {
        "model_type": "llama4_text", "head_dim": 16, "intermediate_size": INNER, "intermediate_size_mlp": FEED_FORWARD,
        "rope_theta": 1e4, "num_local_experts": 128, "moe_layers": [1, 3], "use_qk_norm": False,
    },
    "llama4, dense": {
        "model_type": "llama4_text", "head_dim": 16, "intermediate_size_mlp": FEED_FORWARD, "rope_theta": 1e4,
        "interleave_moe_layer_step": 0, "moe_layers": [], "no_rope_layers": [1, 0, 1, 1, 1], "attention_chunk_size": 24,
        "layer_types": [
            "full_attention", *["chunked_attention"] * 2, *["full_attention"] * 2,
        ],
        "attn_temperature_tuning": False,
    },
    "dots1": {**_DOTS, "sliding_window": None, "scoring_func": "noaux_tc"},
    "dots1, window": {**_DOTS, "sliding_window": 16, "max_window_layers": 2},
    "minimax-m2": {
        "model_type": "minimax_m2", "head_dim": 32, "rotary_dim": 16, "intermediate_size": INNER,
        "num_local_experts": 8, "num_experts_per_tok": 3, "scoring_func": "sigmoid", "use_qk_norm": True,
        "qk_norm_type": "per_layer", "use_routing_bias": True, "rope_theta": 10_000,
    },
    "internlm2": {"model_type": "internlm2", "bias": False, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "mistral3": {
        "model_type": "ministral3", "head_dim": 32, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
            "beta_fast": 16.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
        },
    },
    "glm4": {"model_type": "glm4", "head_dim": 16},
    **{
        name: {
            "model_type": "glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": INNER,
            "routed_scaling_factor": 1.5, "attention_bias": True, "use_qk_norm": name.endswith("norms"),
            "num_nextn_predict_layers": 1,
        }
        for name in ("glm4moe", "glm4moe, head norms")
    },
    "exaone4": {"model_type": "exaone4", "sliding_window": None},
    "exaone4, window": {
        "model_type": "exaone4", "sliding_window": 16, "sliding_window_pattern": "LLLG",
        "layer_types": [*["sliding_attention"] * 3, "full_attention", "sliding_attention"],
    },
    "gemma": {"model_type": "gemma", "head_dim": 32, "hidden_act": "gelu"},
    "gemma2": {
        "model_type": "gemma2", "head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32,
        "attn_logit_softcapping": 4.0, "final_logit_softcapping": 12.0,
    },
    "gemma3": {"model_type": "gemma3_text", "head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32},
    **gemma3n.CONFIGS,
    **gemma4.CONFIGS,
    **qwen35.CONFIGS,
    **mamba2.CONFIGS,
    **latent.CONFIGS,
    **ling.CONFIGS,
    "phi2": {"model_type": "phi"},
    "phi3": {"model_type": "phi3", "sliding_window": 24},
    "starcoder2": {"model_type": "starcoder2", "rope_theta": 1e5, "norm_epsilon": 1e-5},
    "granite": {
        "model_type": "granite", "embedding_multiplier": 6.0, "residual_multiplier": 0.4, "logits_scaling": 0.5,
        "attention_multiplier": 0.1,
    },
    "minicpm": {
        "model_type": "minicpm", "scale_emb": 6, "scale_depth": 0.75 * 2**0.5, "dim_model_base": 128, "rope_theta": 1e4,
    },
    "smollm3": {"model_type": "smollm3", "no_rope_layers": [1, 1, 1, 0]},
    "olmo": {"model_type": "olmo", "clip_qkv": 1.5},
    "olmo, untied": {"model_type": "olmo", "clip_qkv": None},
    "olmo2": {"model_type": "olmo2", "rope_theta": 5e5},
    "olmo2, window": {
        "model_type": "olmo3", "sliding_window": 16, "rope_theta": 1e4,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    },
    "stablelm": {"model_type": "stablelm", "use_qkv_bias": True},
    "stablelm, head norms": {"model_type": "stablelm", "qk_layernorm": True, "use_parallel_residual": True},
    "gpt2": {"model_type": "gpt2"},
    "starcoder": {"model_type": "gpt_bigcode", "multi_query": True},
    "opt": {"model_type": "opt", "ffn_dim": FEED_FORWARD},
    "opt, norms after": {
        "model_type": "opt", "ffn_dim": FEED_FORWARD, "do_layer_norm_before": False, "word_embed_proj_dim": INNER,
    },
    "gptj": {"model_type": "gptj", "rotary_dim": 8},
    "gptj, codegen": {"model_type": "codegen", "rotary_dim": 4},
    "gptneox": {"model_type": "gpt_neox"},
    "gptneox, sequential": {"model_type": "gpt_neox", "use_parallel_residual": False, "rotary_pct": 1.0},
    "cohere2": {"model_type": "cohere2", "sliding_window": 16, "logit_scale": 0.5},
    **{
        name: {
            "model_type": "cohere2_moe", "intermediate_size": INNER, "prefix_dense_intermediate_size": FEED_FORWARD,
            "sliding_window": 16, "logit_scale": 0.5, "rope_theta": 1e4, "layer_norm_eps": 1e-5, "rms_norm_eps": None,
            "head_dim": 16, **more,
        }
        for name, more in {
            "cohere2moe, rms": {
                "num_experts": 6, "num_shared_experts": 2, "rms_norm_eps": 1e-5, "first_k_dense_replace": 2,
                "layer_types": [
                    "full_attention", *["sliding_attention"] * 2, "full_attention", *["sliding_attention"] * 2,
                ],
                "num_nextn_predict_layers": 1,
            },
            "cohere2moe, sum": {
                "num_experts": 6, "num_shared_experts": 1, "shared_expert_combination_strategy": "sum",
                "prefix_dense_sliding_window_pattern": 3, "layer_types": [
                    "full_attention", *["sliding_attention"] * 2, "full_attention", *["sliding_attention"] * 2,
                ],
                "mlp_layer_types": ["dense", "sparse", "dense", *["sparse"] * 3],
            },
        }.items()
    },
    "cohere2moe": {
        "model_type": "cohere2_moe", "head_dim": 32, "intermediate_size": INNER, "rms_norm_eps": None,
        "prefix_dense_intermediate_size": FEED_FORWARD, "sliding_window": 16, "logit_scale": 0.5, "rope_theta": 1e4,
        "num_experts": 8, "num_experts_per_tok": 3, "num_shared_experts": 2, "first_k_dense_replace": 1,
        "expert_selection_fn": "sigmoid",
    },
    "falcon": {"model_type": "RefinedWebModel", "ffn_hidden_size": FEED_FORWARD},
    "falcon, two norms": {"model_type": "RefinedWeb", "n_head_kv": 2, "ffn_hidden_size": FEED_FORWARD},
    "falcon, groups": {
        "model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1,
        "rope_theta": 500_042.0, "ffn_hidden_size": FEED_FORWARD,
    },
    "hunyuan-dense": {
        "model_type": "hunyuan_v1_dense", "head_dim": 32, "rope_theta": 1e4, "num_experts": 1, "use_qk_norm": True,
        "use_cla": False,
    },
    "hunyuan-dense, alpha": {
        "model_type": "hunyuan_v1_dense", "head_dim": 32, "rope_theta": 1e4,
        "rope_scaling": {"alpha": 50.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "type": "dynamic"},
    },
    "hunyuan-moe": {
        "model_type": "hunyuan_v1_moe", "head_dim": 32, "rope_theta": 1e4, "num_experts": 8, "moe_topk": [3, 3],
    },
    "apertus": {
        "model_type": "apertus", "hidden_act": "xielu", "qk_norm": True, "post_norm": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 12e6},
    },
    "arcee": {"model_type": "arcee", "hidden_act": "relu2", "rope_theta": 1e4},
    "afmoe": {
        "model_type": "afmoe", "head_dim": 32, "num_dense_layers": 1, "num_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": INNER, "num_shared_experts": 2, "route_norm": True, "route_scale": 2.8,
        "score_func": "sigmoid", "n_group": 1, "topk_group": 1, "global_attn_every_n_layers": 4, "sliding_window": 16,
        "mup_enabled": True, "rope_theta": 1e4,
    },
    "command-r": {
        "model_type": "cohere", "logit_scale": 0.5, "rope_theta": 1e4, "max_position_embeddings": 64,
        "model_max_length": CONTEXT,
    },
    "command-r, head norms": {"model_type": "cohere", "logit_scale": 0.5, "rope_theta": 1e4, "use_qk_norm": True},
    "lfm2moe": {
        "model_type": "lfm2_moe", "num_key_value_heads": 2, "norm_eps": 1e-5, "rms_norm_eps": None, "rope_theta": 1e4,
        "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1, "num_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": INNER, "use_expert_bias": True,
        "routed_scaling_factor": 1.0,
    },
    "lfm2": {
        "model_type": "lfm2", "num_key_value_heads": 2, "norm_eps": 1e-5, "full_attn_idxs": [1, 3],
        "block_ff_dim": 130, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0, "intermediate_size": None,
        "rope_theta": 1e6, "rms_norm_eps": None, "tie_embedding": True, "conv_L_cache": 3, "conv_bias": False,
    },
}  # fmt: skip
"""What config.json states besides the common sizes, for the checkpoint of the same name."""
_LLAMA = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
_SANDWICHED = {
    **_LLAMA, "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_LFM2 = {
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"}, "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm", "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm", "ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2", "ffn_gate_inp": "feed_forward.gate",
    **{f"shortconv.{part}": f"conv.{part}" for part in ("in_proj", "conv", "out_proj")},
}  # fmt: skip
_GRANITE = {
    **_LLAMA, "ffn_gate_inp": "block_sparse_moe.router.layer", "ffn_gate_up_exps": "block_sparse_moe.input_linear",
    "ffn_down_exps": "block_sparse_moe.output_linear", "ffn_gate_up_shexp": "shared_mlp.input_linear",
    "ffn_down_shexp": "shared_mlp.output_linear",
}  # fmt: skip
_QWEN35 = {**_LLAMA, **qwen35.NAMES}
_GPT2 = {
    "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip
_GPTJ = {
    "attn_norm": "ln_1", **{f"attn_{part}": f"attn.{part}_proj" for part in ("q", "k", "v", "qkv")},
    "attn_output": "attn.out_proj", "ffn_up": "mlp.fc_in", "ffn_down": "mlp.fc_out",
}  # fmt: skip
_GPT2_WHOLE = {
    "token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f",
    "output": "lm_head",
}  # fmt: skip
_NAMES = {
    **{key: {**_LLAMA, "ffn_gate_inp": "block_sparse_moe.gate"} for key in ("llama", "minimax-m2")},
    "qwen2moe": {
        **_LLAMA, "ffn_gate_inp": "mlp.gate", "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        **{f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
    },
    "granitemoe": _GRANITE,
    **{key: {**_LLAMA, "ffn_gate_inp": "mlp.gate"} for key in ("qwen3moe", "qwen3vlmoe", "mellum", "olmoe")},
    "ernie4_5-moe": {**_LLAMA, **{name: part for name, part in latent.NAMES.items() if name.startswith("ffn_")}},
    "gpt-oss": {
        **_LLAMA, "ffn_gate_inp": "mlp.router", "post_attention_norm": "post_attention_layernorm",
    },
    "internlm2": {
        "attn_qkv": "attention.wqkv", "attn_output": "attention.wo", "attn_norm": "attention_norm",
        "ffn_norm": "ffn_norm", "ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
    },
    "seed_oss": {**_LLAMA, "post_attention_norm": "post_attention_layernorm"},
    "glm4": {
        **_LLAMA, "post_attention_norm": "post_self_attn_layernorm", "ffn_up": "mlp.gate_up_proj",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    "gemma2": _SANDWICHED,
    "gemma3": _SANDWICHED,
    gemma3n.KIND: {**_SANDWICHED, **gemma3n.NAMES},
    "gemma4": {**_SANDWICHED, **gemma4.NAMES},
    **dict.fromkeys(qwen35.KINDS, _QWEN35),
    "granitehybrid": {**_GRANITE, **mamba2.NAMES},
    "falcon-h1": {**mamba2.FALCON_NAMES, **mamba2.NAMES},
    **dict.fromkeys(mamba2.NEMOTRON, mamba2.NEMOTRON_NAMES),
    latent.KIND: latent.NAMES,
    "llama4": {
        **_LLAMA, "ffn_gate_inp": "feed_forward.router",
        **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
        **{f"ffn_{part}_shexp": f"feed_forward.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
    },
    **{
        key: {**_LLAMA, **{name: part for name, part in latent.NAMES.items() if name.startswith("ffn_")}}
        for key in ("dots1", "cohere2moe")
    },
    ling.KIND: ling.NAMES,
    "olmo2": _SANDWICHED,
    "exaone4": _SANDWICHED,
    "glm4moe": {
        **_LLAMA, "post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate",
        **{name: part for name, part in latent.NAMES.items() if name.endswith("shexp")},
    },
    "hunyuan-dense": {
        **_LLAMA, "attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm",
    },
    "hunyuan-moe": {
        **_LLAMA, "attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm",
        "ffn_gate_inp": "mlp.gate.wg",
        **{f"ffn_{part}_shexp": f"mlp.shared_mlp.{part}_proj" for part in ("gate", "up", "down")},
    },
    "apertus": {**_LLAMA, "attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"},
    "afmoe": {
        **_SANDWICHED, "attn_gate": "self_attn.gate_proj", "ffn_norm": "pre_mlp_layernorm",
        "post_ffw_norm": "post_mlp_layernorm", "ffn_gate_inp": "mlp.router.gate",
        **{name: part for name, part in latent.NAMES.items() if name.endswith("shexp")},
    },
    "phi2": {**_LLAMA, "attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
    "phi3": {**_LLAMA, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "starcoder2": {**_LLAMA, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    "lfm2": _LFM2,
    "lfm2moe": _LFM2,
    "gpt2": _GPT2,
    "gptj": _GPTJ,
    "opt": {
        **_LLAMA, "attn_norm": "self_attn_layer_norm", "attn_output": "self_attn.out_proj", "ffn_up": "fc1",
        "ffn_down": "fc2", "ffn_norm": "final_layer_norm", "post_attention_norm": "self_attn_layer_norm",
        "post_ffw_norm": "final_layer_norm",
    },
    "starcoder": _GPT2,
    "falcon": {
        "attn_norm": "input_layernorm", "attn_qkv": "self_attention.query_key_value",
        "attn_output": "self_attention.dense", "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h",
    },
    "gptneox": {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_qkv": "attention.query_key_value",
        "attn_output": "attention.dense", "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h",
    },
}  # fmt: skip
_EXPERT = {f"ffn_{part}": f"mlp.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")}
_EXPERT_NAMES = {
    "lfm2moe": {
        f"ffn_{part}": f"feed_forward.experts.{{}}.{name}"
        for part, name in {"gate": "w1", "up": "w3", "down": "w2"}.items()
    },
    **{
        key: {
            f"ffn_{part}": f"block_sparse_moe.experts.{{}}.{name}"
            for part, name in {"gate": "w1", "up": "w3", "down": "w2"}.items()
        }
        for key in ("llama", "minimax-m2")
    },
}
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_WHOLE_OF = {
    "lfm2": {"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm", "output": "lm_head"},
    "lfm2moe": {"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm", "output": "lm_head"},
    gemma3n.KIND: {**_WHOLE, **gemma3n.WHOLE},
    "gemma4": {**_WHOLE, **gemma4.WHOLE},
    ling.KIND: ling.WHOLE,
    **{key: {**_WHOLE, "output_norm": "model.final_layernorm"} for key in ("falcon-h1", "phi2")},
    **dict.fromkeys(mamba2.NEMOTRON, mamba2.NEMOTRON_WHOLE),
    "internlm2": {"token_embd": "model.tok_embeddings", "output_norm": "model.norm", "output": "output"},
    **dict.fromkeys(("gpt2", "gptj"), _GPT2_WHOLE),
    "starcoder": _GPT2_WHOLE,
    "opt": {
        "token_embd": "model.decoder.embed_tokens", "position_embd": "model.decoder.embed_positions",
        "output_norm": "model.decoder.final_layer_norm", "embd_in": "model.decoder.project_in",
        "embd_out": "model.decoder.project_out",
    },
    "falcon": {**_GPT2_WHOLE, "token_embd": "transformer.word_embeddings"},
    "gptneox": {
        "token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out",
    },
}  # fmt: skip
_BIAS_OF_CHOICE = {
    "minimax-m2": "block_sparse_moe.e_score_correction_bias",
    "afmoe": "mlp.expert_bias",
    "ernie4_5-moe": "mlp.moe_statics.e_score_correction_bias",
}
_LAYERS = {
    **dict.fromkeys(("gpt2", "gptj", "starcoder", "falcon"), "transformer.h"), "gptneox": "gpt_neox.layers",
    "opt": "model.decoder.layers", **dict.fromkeys(mamba2.NEMOTRON, "backbone.layers"),
}  # fmt: skip


def write_folder(folder: Path, name: str, *, dtype: str = "F32", num_files: int = 1) -> tuple[dict[str, Any], Arrays]:
    """Write a folder, and return the checkpoint by GGUF's names, with the weights as they were stored."""
    metadata, tensors = tiny(name)
    tensors = {key: _rounded(array, dtype) for key, array in tensors.items()}
    if metadata["general.architecture"] == gemma3n.KIND:
        gemma3n.of_folder(metadata, tensors, name)
    folder.mkdir(parents=True, exist_ok=True)
    kind, layers = metadata["general.architecture"], metadata[f"{metadata['general.architecture']}.block_count"]
    config = {
        "num_hidden_layers": layers, "hidden_size": HIDDEN, "intermediate_size": FEED_FORWARD,
        "num_attention_heads": HEADS, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
        "num_key_value_heads": metadata[f"{kind}.attention.head_count_kv"], **CONFIGS[name],
    }  # fmt: skip
    if kind == latent.KIND:
        metadata[f"{kind}.attention.latent_epsilon"] = 1e-6
    if kind in ("gpt2", "gptj", "starcoder"):
        config = {
            "n_layer": layers, "n_embd": HIDDEN, "n_inner": FEED_FORWARD, "n_head": HEADS, "n_positions": CONTEXT,
            **CONFIGS[name],
        }  # fmt: skip
    config["tie_word_embeddings"] = "output.weight" not in tensors
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(metadata["tokenizer.ggml.tokens"])), encoding="utf-8")
    joining: dict[str, Callable[[Arrays], Arrays]] = {
        "apertus": partial(with_activations, metadata),
        "granitemoe": halves_joined,
        "gpt-oss": gates_between,
        "qwen3vlmoe": inputs_first,
        "llama4": partial(inputs_first, module="feed_forward"),
        "internlm2": queries_with_keys,
        "falcon": _as_falcon_stores,
        "gptj": codegen_parts if name == "gptj, codegen" else one_by_one,
        gemma3n.KIND: gemma3n.as_stored,
        "gemma4": gemma4.as_stored,
        "qwen35": qwen35.as_stored,
        "qwen35moe": qwen35.as_stored,
        "qwen3next": _as_qwen3next_stores,
        "granitehybrid": _as_granite_stores,
        **dict.fromkeys(mamba2.NEMOTRON, mamba2.as_nemotron_stores),
        **dict.fromkeys((latent.KIND, "glm4moe", "dots1"), latent.as_stored),
        ling.KIND: ling.as_stored,
        "falcon-h1": partial(mamba2.as_falcon_stores, config=CONFIGS[name]),
    }
    usual = joining.get(kind, one_by_one)(tensors)
    stored = {hugging_face_name(key, kind): _habits(key, array, kind, metadata) for key, array in usual.items()}
    norms = [key for key, array in stored.items() if key.endswith("_norm.weight") and array.ndim == 2]
    for key in norms if kind == "stablelm" else ():
        parts = enumerate(stored.pop(key))  # a norm for each head
        stored |= {key.replace("_norm.", f"_layernorm.norms.{head}."): part for head, part in parts}
    _write_weights(folder, stored, "F32" if dtype == "F8" else dtype, num_files)
    return metadata, tensors


def one_by_one(tensors: Arrays) -> Arrays:
    """The tensors with one for each expert, named as in old GGUF files."""
    found: Arrays = {}
    for name, array in tensors.items():
        if "_exps." in name:
            found |= {name.replace("_exps.", f".{expert}."): each for expert, each in enumerate(array)}
        else:
            found[name] = array
    return found


def with_activations(metadata: Mapping[str, Any], tensors: Arrays) -> Arrays:
    """Apertus's tensors, with the numbers of each layer's activation: both alphas as vectors, the others not."""
    found = {**tensors}
    for key in XIELU:
        for layer, number in enumerate(metadata[key]):
            found[f"model.layers.{layer}.mlp.act_fn.{key.partition('.')[2]}"] = np.array(
                [number] if "alpha" in key else number, np.float32
            )
    return found


def halves_joined(tensors: Arrays) -> Arrays:
    """The tensors with experts' gate and up projections in one."""
    found: Arrays = {}
    for name, array in tensors.items():
        if "ffn_gate_exps" in name or "ffn_gate_shexp" in name:
            both = array, tensors[name.replace("gate", "up")]
            found[name.replace("gate", "gate_up")] = np.concatenate(both, axis=-2)
        elif "ffn_up_exps" not in name and "ffn_up_shexp" not in name:
            found[name] = array
    return found


def inputs_first(tensors: Arrays, module: str = "mlp") -> Arrays:
    """Qwen3-VL's tensors, and Llama 4's: all experts in one, with inputs first, and gate and up projection in one."""
    found = {name: array for name, array in tensors.items() if "_shexp." in name}
    for name, array in halves_joined({name: each for name, each in tensors.items() if name not in found}).items():
        if "_exps." not in name:
            found[name] = array
            continue
        part = "down_proj" if "_down_" in name else "gate_up_proj"
        found[f"model.layers.{name.split('.')[1]}.{module}.experts.{part}"] = np.ascontiguousarray(array.swapaxes(1, 2))
    return found


def _as_qwen3next_stores(tensors: Arrays) -> Arrays:
    return qwen35.as_stored(one_by_one(tensors))


def _as_granite_stores(tensors: Arrays) -> Arrays:
    return halves_joined(mamba2.as_stored(tensors))


def queries_with_keys(tensors: Arrays) -> Arrays:
    """The tensors with queries, keys and values in one: for each key head its queries, then the key and the value.
    Pairs of rotated dimensions are half a head apart."""
    found: Arrays = {}
    for name, array in tensors.items():
        prefix, _, part = name.partition(".attn_")
        if part == "q.weight":
            size, width = HIDDEN // HEADS, array.shape[-1]
            heads = [tensors[f"{prefix}.attn_{each}.weight"].reshape(-1, size, width) for each in "qkv"]
            halves = [each.reshape(len(each), -1, 2, width).swapaxes(1, 2).reshape(each.shape) for each in heads[:2]]
            groups = [halves[0].reshape(len(halves[1]), -1, size, width), halves[1][:, None], heads[2][:, None]]
            found[f"{prefix}.attn_qkv.weight"] = np.concatenate(groups, axis=1).reshape(-1, width)
        elif part not in ("k.weight", "v.weight"):
            found[name] = array
    return found


def _as_falcon_stores(tensors: Arrays) -> Arrays:
    """Falcon's tensors, with norms of blocks that have two by the names of folders."""
    found: Arrays = {}
    for name, array in tensors.items():
        prefix, _, part = name.partition(".attn_norm")
        if part and f"{prefix}.attn_norm_2.weight" in tensors:
            own = "ln_attn" if part.startswith("_2") else "ln_mlp"
            found[f"{prefix.replace('blk', 'transformer.h')}.{own}.{part.rpartition('.')[2]}"] = array
        else:
            found[name] = array
    return found


def codegen_parts(tensors: Arrays, parts: int = 4) -> Arrays:
    """CodeGen's tensors: queries, values and keys of each fourth of the heads, in one tensor; CodeGen 2: of each
    eighth."""
    found: Arrays = {}
    for name, array in tensors.items():
        prefix, _, part = name.partition(".attn_")
        if part == "q.weight":
            kinds = [tensors[f"{prefix}.attn_{kind}.weight"].reshape(parts, -1, array.shape[-1]) for kind in "qvk"]
            found[f"{prefix}.attn_qkv.weight"] = np.concatenate(kinds, axis=1).reshape(-1, array.shape[-1])
        elif part not in ("k.weight", "v.weight"):
            found[name] = array
    return found


def gates_between(tensors: Arrays) -> Arrays:
    """gpt-oss's tensors: experts' gate and up projections interleaved row by row, matrices of experts with inputs
    first, and sinks whose name has no suffix."""
    found: Arrays = {}
    for name, array in tensors.items():
        prefix, _, part = name.partition(".ffn_")
        if "_gate_exps" in name:
            both = np.stack((array, tensors[name.replace("gate", "up")]), axis=2)
            array, part = both.reshape(len(array), -1, *array.shape[2:]), part.replace("gate", "gate_up")
        if "_exps" in name:
            if "_up_exps" not in name:
                end = "_proj" if part.endswith("weight") else "_proj_bias"
                own = f"{prefix.replace('blk', 'model.layers')}.mlp.experts.{part.partition('_exps')[0]}{end}"
                found[own] = np.ascontiguousarray(array.swapaxes(1, 2)) if array.ndim == 3 else array
        elif name.endswith("attn_sinks.weight"):
            found[f"model.layers.{name.split('.')[1]}.self_attn.sinks"] = array
        else:
            found[name] = array
    return found


def _write_weights(folder: Path, stored: Arrays, dtype: str, num_files: int) -> None:
    if num_files == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(stored, dtype))
        return
    names, files = list(stored), dict[str, str]()
    for number in range(num_files):
        part = {name: stored[name] for name in names[number::num_files]}
        file = f"model-{number + 1:05}-of-{num_files:05}.safetensors"
        (folder / file).write_bytes(safetensors_bytes(part, dtype))
        files |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}), encoding="utf-8")


def safetensors_bytes(tensors: Mapping[str, NDArray[Any]], dtype: str = "F32") -> bytes:
    """The bytes of a file: floats as `dtype`, bytes as they are."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    content = b""
    for name, array in tensors.items():
        kind = "U8" if array.dtype == np.uint8 else dtype
        data = array.tobytes() if kind == "U8" else _encoded(array, dtype)
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [len(content), len(content) + len(data)]}
        content += data
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + content


def _encoded(array: NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "BF16":
        return (np.ascontiguousarray(array, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return np.ascontiguousarray(array, {"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def _rounded(array: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """The numbers that the type can hold. Rounds to zero for bfloat16; "F8": those that `float8.convert` keeps."""
    if dtype == "F8":
        return float8.rounded(array) if array.ndim > 1 else array
    if dtype == "BF16":
        return (np.ascontiguousarray(array).view(np.uint32) & 0xFFFF0000).view(np.float32)
    return array.astype(np.float16).astype(np.float32) if dtype == "F16" else array


def hugging_face_name(name: str, kind: str) -> str:
    """The name of a tensor in a folder."""
    if name.startswith(("model.", "backbone.", "transformer.")):
        return name
    part, _, end = name.rpartition(".")
    if not part.startswith("blk."):
        return f"{_WHOLE_OF.get(kind, _WHOLE)[part]}.{end}"
    if part.split(".")[-1].isdigit():
        _, layer, part, expert = part.split(".")
        return f"model.layers.{layer}.{_EXPERT_NAMES.get(kind, _EXPERT)[part].format(expert)}.{end}"
    _, layer, part = part.split(".", 2)
    if part == "exp_probs_b":
        return f"model.layers.{layer}.{_BIAS_OF_CHOICE.get(kind, 'feed_forward.expert_bias')}"
    return f"{_LAYERS.get(kind, 'model.layers')}.{layer}.{_NAMES.get(kind, _LLAMA)[part]}.{end}"


def _habits(name: str, array: NDArray[np.float32], kind: str, metadata: dict[str, Any]) -> NDArray[np.float32]:
    if kind in ("gemma", "gemma2", "gemma3") and name.endswith("norm.weight"):
        return array - 1
    if "ffn_gate_inp_shexp" in name or (kind == "ernie4_5-moe" and "exp_probs_b" in name):
        return array[None]
    if name.endswith("shortconv.conv.weight"):
        return array[:, None]
    if kind == "opt" and name == "position_embd.weight":  # two for tokens that fill batches
        return np.concatenate((np.full((2, HIDDEN), 9.0, np.float32), array))
    if kind == "gpt2" and array.ndim == 2 and name.startswith("blk."):
        return array.T
    return hugging_face_rows(name, array, kind, metadata)


def hugging_face_rows(
    name: str, array: NDArray[np.float32], kind: str, metadata: dict[str, Any]
) -> NDArray[np.float32]:
    """The rows of a tensor, or of an adapter's second matrix, in the folder's order."""
    if kind in ("qwen35", "qwen35moe") and name.startswith("blk.") and metadata.get("is_adapter"):
        return qwen35.of_folder(name, array, metadata[f"{kind}.ssm.time_step_rank"])
    if kind == "gptneox" and "attn_qkv" in name:
        size = HIDDEN // HEADS
        return array.reshape(3, HEADS, size, -1).swapaxes(0, 1).reshape(array.shape)
    if kind == "falcon" and "attn_qkv" in name:
        keys = metadata["falcon.attention.head_count_kv"]
        rows = array.reshape(HEADS + 2 * keys, HIDDEN // HEADS, -1)
        queries = rows[:HEADS].reshape(keys, HEADS // keys, *rows.shape[1:])
        groups = [queries, rows[HEADS:-keys][:, None], rows[-keys:][:, None]]
        return np.concatenate(groups, axis=1).reshape(array.shape)
    layer = name.split(".")[-2]
    if (
        kind in PAIRS
        and layer in ("attn_q", "attn_k")
        and kind not in (*COHERE, "glm4", "gptj", "ernie4_5", "ernie4_5-moe", "llama4")
    ):  # theirs are half a head apart
        keys = metadata[f"{kind}.attention.head_count_kv"]
        heads = HEADS if layer == "attn_q" else max(keys) if isinstance(keys, list) else keys
        return array.reshape(heads, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
    return array


def _tokenizer(tokens: list[str]) -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {text: token for token, text in enumerate(tokens)}, "merges": []}
    return {"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": model}
