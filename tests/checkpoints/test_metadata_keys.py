"""Every key that llama.cpp reads of a GGUF file is used, refused by name, or listed with the reason why it cannot
matter.

The right values are llama.cpp's (llama_cpp_python 0.3.36): `load_hparams` in src/llama-model.cpp, `load_arch_hparams`
and the graphs in src/models/.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.checkpoints import metadata_keys
from onward.checkpoints.architectures import architecture_of
from onward.checkpoints.parameters import WINDOW
from onward.checkpoints.read import read_checkpoint
from onward.checkpoints.table import ARCHITECTURES as DECLARED
from onward.errors import ModelFolderError
from tests.checkpoints.making import floats, write_gguf
from tests.checkpoints.test_architectures import OF_FOLDERS
from tests.checkpoints.tiny import ARCHITECTURES, CONTEXT, FEED_FORWARD, HEADS, HIDDEN, KV_HEADS, tiny
from tests.examples import slow_but
from tests.models.doors import refusal, scores, shown
from tests.models.tokenizer_files import byte_level, model_with
from tests.tables import each_row

COMMON = (
    "context_length", "embedding_length", "embedding_length_out", "attention.causal", "pooling_type",
    "classifier.pooling_type", "block_count", "nextn_predict_layers", "expert_count", "expert_used_count",
    "expert_group_count", "expert_group_used_count", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "rope.scaling.finetuned", "rope.scaling.original_context_length", "rope.freq_base",
    "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor", "rope.scaling.alpha",
    "attention.key_length", "attention.value_length", "rope.dimension_count", "attention.key_length_swa",
    "attention.value_length_swa", "rope.dimension_count_swa", "classifier.output_labels",
)  # fmt: skip
"""What llama.cpp reads of every model (`llama_model_base::load_hparams`)."""
_RMS, _LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
_WINDOW = ("attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa")
_STATE_SPACE = (
    "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count",
)  # fmt: skip
_DELTA = (*_STATE_SPACE, "nextn_predict_layers", "attention.recurrent_layers", "full_attention_interval")
_LATENT = ("moe_latent_size",)
RULES = ("expert_gating_func", "expert_weights_norm", "expert_weights_scale")
"""How experts are chosen, where llama.cpp reads it of other architectures only. Onward computes what they state."""
CONSTANTS = (
    "final_logit_softcapping", "attention.shared_kv_layers", "embedding_length_per_layer_input", "altup.num_inputs",
    "altup.active_idx", "activation_sparsity_scale",
)  # fmt: skip
"""What Gemma 3n's files state, and llama.cpp has as constants. Onward computes what they state."""
_GROWTH = ("attention.temperature_scale", "attention.temperature_length")
"""How queries grow, likewise."""
READ: dict[str, tuple[str, ...]] = {
    "llama": ("vocab_size", _RMS, *RULES),
    "qwen2": (_RMS,),
    "qwen3": (_RMS,),
    "qwen2vl": (_RMS, "rope.dimension_sections"),
    "qwen3vl": (_RMS, "rope.dimension_sections", "n_deepstack_layers"),
    "qwen3vlmoe": (
        _RMS, "rope.dimension_sections", "n_deepstack_layers", "expert_feed_forward_length", *RULES,
    ),
    "qwen3moe": (_RMS, "expert_feed_forward_length", *RULES),
    "qwen2moe": (_RMS, "expert_feed_forward_length", "expert_shared_feed_forward_length", *RULES),
    "granitemoe": (
        _RMS, "logit_scale", "residual_scale", "embedding_scale", "attention.scale",
        "expert_shared_feed_forward_length", *RULES,
    ),
    "granitehybrid": (
        _RMS, "logit_scale", "residual_scale", "embedding_scale", "attention.scale",
        "expert_shared_feed_forward_length", "rope.scaling.finetuned", *_STATE_SPACE, *RULES,
    ),
    "falcon-h1": (_RMS, *_STATE_SPACE),
    "nemotron_h": (_RMS, _LAYER, *_STATE_SPACE, *_LATENT),
    "nemotron_h_moe": (
        _RMS, _LAYER, *_STATE_SPACE, "expert_feed_forward_length", "expert_shared_feed_forward_length",
        "expert_shared_count", *_LATENT, *RULES,
    ),
    "mellum": (_RMS, "expert_feed_forward_length", *_WINDOW, *RULES),
    "olmoe": (_RMS, *RULES),
    "gpt-oss": (_RMS, "expert_feed_forward_length", *_WINDOW, *RULES),
    "seed_oss": (_RMS,),
    "lfm2moe": (
        _RMS, "shortconv.l_cache", "leading_dense_block_count", "expert_feed_forward_length", *RULES,
    ),
    "lfm2": (_RMS, "shortconv.l_cache", "attention.sliding_window"),
    "qwen35": (_RMS, "rope.dimension_sections", *_DELTA),
    "qwen35moe": (
        _RMS, "rope.dimension_sections", *_DELTA, "expert_feed_forward_length", "expert_shared_feed_forward_length",
        *RULES,
    ),
    "qwen3next": (_RMS, *_DELTA, "expert_feed_forward_length", "expert_shared_feed_forward_length", *RULES),
    "mistral3": (
        _RMS, "attention.temperature_scale", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
        "rope.scaling.yarn_log_multiplier",
    ),
    "deepseek2": (
        _RMS, "leading_dense_block_count", "attention.q_lora_rank", "attention.kv_lora_rank",
        "attention.key_length_mla", "attention.value_length_mla", "expert_feed_forward_length", "expert_shared_count",
        "rope.scaling.yarn_log_multiplier", "attention.temperature_scale", "attention.temperature_length", *RULES,
    ),
    "glm4moe": (
        _RMS, "rope.dimension_sections", "expert_feed_forward_length", "expert_shared_count",
        "leading_dense_block_count", *RULES,
    ),
    "bailingmoe2": (
        _RMS, "expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_shared_count",
        "leading_dense_block_count", *RULES,
    ),
    "llama4": (_RMS, "expert_feed_forward_length", "interleave_moe_layer_step", *_WINDOW, *_GROWTH),
    "dots1": (
        _RMS, "leading_dense_block_count", "expert_feed_forward_length", "expert_shared_count", *RULES,
    ),
    "internlm2": (_RMS,),
    "minimax-m2": (_RMS, "expert_feed_forward_length", *RULES),
    "ernie4_5": (_RMS, "rope.dimension_sections"),
    "ernie4_5-moe": (
        _RMS, "rope.dimension_sections", "expert_feed_forward_length", "expert_shared_feed_forward_length",
        "interleave_moe_layer_step", "leading_dense_block_count", *RULES,
    ),
    "glm4": (_RMS, "rope.dimension_sections"),
    "exaone4": (_RMS, *_WINDOW),
    "gemma": (_RMS,),
    "gemma2": (*_WINDOW, "attn_logit_softcapping", "final_logit_softcapping", _RMS),
    "gemma3": (*_WINDOW, "final_logit_softcapping", _RMS),
    "gemma3n": (*_WINDOW, _RMS, *CONSTANTS),
    "gemma4": (
        *_WINDOW, _RMS, "final_logit_softcapping", "attention.shared_kv_layers", "embedding_length_per_layer_input",
        "expert_feed_forward_length",
    ),
    "phi2": (_LAYER,),
    "phi3": (_RMS, "attention.sliding_window"),
    "starcoder2": (_LAYER,),
    "granite": (
        _RMS, "logit_scale", "residual_scale", "embedding_scale", "attention.scale", "deepstack_mapping",
        "rope.scaling.finetuned", "expert_shared_feed_forward_length",
    ),
    "smollm3": (_RMS,),
    "olmo": (_LAYER, "attention.clamp_kqv"),
    "olmo2": (_RMS, *_WINDOW),
    "stablelm": (_LAYER,),
    "gpt2": (_LAYER,),
    "starcoder": (_LAYER,),
    "gptj": (_LAYER,),
    "opt": (_LAYER,),
    "falcon": (_LAYER,),
    "gptneox": (_LAYER, "use_parallel_residual"),
    "cohere2": (*_WINDOW, "logit_scale", _LAYER),
    "command-r": ("logit_scale", _LAYER),
    "apertus": (_RMS,),
    "minicpm": (_RMS, "embedding_scale", "residual_scale", "logit_scale"),
    "cohere2moe": (
        *_WINDOW, "logit_scale", _LAYER, _RMS, "leading_dense_block_count", "expert_feed_forward_length",
        "expert_shared_feed_forward_length", "expert_shared_count", *RULES,
    ),
    "arcee": (_RMS,),
    "hunyuan-dense": (_RMS, "rope.dimension_sections"),
    "hunyuan-moe": (_RMS, "expert_feed_forward_length", "expert_shared_feed_forward_length", *RULES),
    "afmoe": (
        _RMS, *_WINDOW, "leading_dense_block_count", "expert_feed_forward_length", "expert_shared_count", *RULES,
    ),
}  # fmt: skip
"""What it reads in addition to that (`load_arch_hparams` of each architecture)."""


def model(folder: Path, name: str = "llama", **changed: Any) -> Path:
    """A tiny file with changed metadata (keys without the architecture's prefix) and `tensors`; None removes one."""
    metadata, tensors = tiny(name)
    kind = metadata["general.architecture"]
    for key, array in changed.pop("tensors", {}).items():
        tensors[key] = array
    metadata |= {f"{kind}.{key}": value for key, value in changed.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    kept = {key: array for key, array in tensors.items() if array is not None}
    return write_gguf(folder / "m.gguf", metadata, kept)


@each_row("architecture", READ)
def test_each_key_that_llama_cpp_reads_has_exactly_one_role(architecture: str) -> None:
    for key in (*COMMON, *READ[architecture]):
        used = key in metadata_keys.USED | DECLARED[architecture].keys
        other = [key in metadata_keys.REFUSED, key in metadata_keys.SAME_AS, key in metadata_keys.CANNOT_MATTER]
        assert used or sum(other) == 1 or key == WINDOW, f"{architecture}.{key}"
    assert DECLARED[architecture].keys <= {*COMMON, *READ[architecture]}
    assert DECLARED.keys() == READ.keys()


TOKENIZER = (
    "model", "pre", "tokens", "token_type", "token_type_count", "scores", "merges", "bos_token_id", "eos_token_id",
    "eot_token_id", "eom_token_id", "unknown_token_id", "seperator_token_id", "padding_token_id", "cls_token_id",
    "mask_token_id", "add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces",
    "precompiled_charsmap", "normalizer.lowercase", "normalizer.strip_accents", "fim_pre_token_id", "fim_suf_token_id",
    "fim_mid_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id", "suppress_tokens",
    "prefix_token_id", "suffix_token_id", "middle_token_id",
)  # fmt: skip
"""What llama.cpp reads of a tokenizer (`LLM_KV_TOKENIZER_…` of src/llama-arch.cpp that begin with tokenizer.ggml)."""


def test_each_key_of_a_tokenizer_has_exactly_one_role() -> None:
    used, others = metadata_keys.TOKENIZER_USED, metadata_keys.TOKENIZER_CANNOT_MATTER.keys()
    assert used | others == {*TOKENIZER} and not used & others


OTHERS: dict[str, Any] = {
    "embedding_length": HIDDEN * 2, "block_count": 1, "context_length": CONTEXT // 2,
    "feed_forward_length": FEED_FORWARD * 2, "attention.head_count": HEADS * 2, "attention.head_count_kv": HEADS * 2,
    "attention.key_length": 8, "attention.value_length": 8, "attention.causal": False, "rope.dimension_count": 2,
    "rope.freq_base": 77.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 3.0, "rope.scale_linear": 3.0,
    "rope.scaling.attn_factor": 1.7, "rope.scaling.original_context_length": 32, _RMS: 0.5, _LAYER: 0.5,
    "attention.sliding_window": 5, "attention.sliding_window_pattern": 2, "rope.freq_base_swa": 77.0,
    "logit_scale": 3.0, "residual_scale": 0.7, "embedding_scale": 3.0, "attention.scale": 0.3,
    "rope.scaling.finetuned": False, "use_parallel_residual": False, "expert_count": 9, "expert_used_count": 4,
    "expert_feed_forward_length": 64, "expert_shared_feed_forward_length": 32, "expert_gating_func": 4,
    "expert_weights_norm": False, "expert_weights_scale": 3.0, "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0, "attention.temperature_scale": 0.9, "attention.temperature_length": 8,
    "rope.scaling.yarn_beta_fast": 4.0,
    "rope.scaling.yarn_beta_slow": 2.0, "rope.scaling.yarn_log_multiplier": 0.5, "attention.shared_kv_layers": 2,
    "attention.key_length_swa": 8, "attention.value_length_swa": 8, "rope.dimension_count_swa": 8,
    "embedding_length_per_layer_input": 64, "shortconv.l_cache": 5,
    "leading_dense_block_count": 2, "ssm.conv_kernel": 5, "ssm.inner_size": 64, "ssm.state_size": 16,
    "ssm.time_step_rank": 2, "ssm.group_count": 4, "nextn_predict_layers": 1, "full_attention_interval": 3,
    "attention.q_lora_rank": 48, "attention.kv_lora_rank": 48, "attention.key_length_mla": 32,
    "attention.value_length_mla": 32, "expert_shared_count": 3, "attention.recurrent_layers": [True] * 5,
    "rope.dimension_sections": [4, 2, 2, 0], "expert_group_count": 4, "expert_group_used_count": 2,
    "rope.scaling.alpha": 9.0, "interleave_moe_layer_step": 3, "altup.num_inputs": 5, "altup.active_idx": 1,
    "activation_sparsity_scale": [0.5] * 8, "attention.clamp_kqv": 0.7,
}  # fmt: skip
"""Values that tiny models do not have."""
NEEDS: dict[str, dict[str, Any]] = {
    "rope.scaling.original_context_length": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
    "rope.scaling.type": {"rope.scaling.factor": 4.0},
    "attention.sliding_window_pattern": {"attention.sliding_window": 16},
    "attention.sliding_window": {"attention.sliding_window": 16},
    "attention.temperature_scale": {"attention.temperature_length": 16},
    "expert_group_count": {"expert_group_used_count": 2},
    "expert_group_used_count": {"expert_group_count": 4, "expert_group_used_count": 4},
}
"""What has to be stated, too, so that a key can matter."""
_ORIGINAL = {"rope.scaling.original_context_length", "context_length"}
_OF_MIXTRAL = {key for key in OTHERS if key.startswith("expert_")}
UNMOVED = {name: {"context_length"} for name in READ} | {
    "llama": {"context_length", *_OF_MIXTRAL},
    **{key: {"context_length", "rope.dimension_sections"} for key in ("qwen2vl", "qwen3vl")},
    "qwen3vlmoe": {"context_length", "feed_forward_length", "rope.dimension_sections"},
    "qwen3moe": {"context_length", "feed_forward_length"},
    "hunyuan-moe": {"context_length", "feed_forward_length"},
    "mellum": {"context_length", "feed_forward_length", "rope.scale_linear", "rope.scaling.type"},
    "olmoe": {"context_length", "expert_weights_norm"},
    "minimax-m2": {"context_length", "feed_forward_length"},
    "gpt-oss": {
        "context_length",
        "feed_forward_length",
        "rope.scale_linear",
        "rope.scaling.type",
        "attention.sliding_window_pattern",
    },
    "qwen2moe": {"context_length", "expert_weights_norm", "feed_forward_length"},
    "exaone4": {"context_length", *_WINDOW},
    "mistral3": {
        "context_length",
        "rope.scale_linear",
        "rope.scaling.type",
        "rope.scaling.yarn_beta_fast",
    },
    "deepseek2": {
        "attention.key_length",
        "attention.value_length",
        "context_length",
        "expert_weights_norm",
        "rope.scale_linear",
        "rope.scaling.type",
    },
    "cohere2moe": {"context_length", "expert_shared_count"},
    "llama4": {"context_length", "feed_forward_length"},
    "qwen35": {"context_length", "rope.dimension_sections"},
    "qwen35moe": {"context_length", "feed_forward_length", "rope.dimension_sections"},
    "qwen3next": {"context_length", "feed_forward_length"},
    "gemma2": {"context_length", "attention.sliding_window_pattern"},
    "gemma4": {"context_length", "expert_feed_forward_length"},
    **{name: {key for key in OTHERS if key.startswith("rope.")} for name in ("gpt2", "opt", "starcoder")},
    "granitehybrid": {"context_length", *_OF_MIXTRAL, *(key for key in OTHERS if key.startswith("rope."))},
    "nemotron_h": {"context_length", _LAYER, *(key for key in OTHERS if key.startswith("rope."))},
    "nemotron_h_moe": {"context_length", _LAYER, *(key for key in OTHERS if key.startswith("rope."))},
    "stablelm": _ORIGINAL,
    "gptneox": _ORIGINAL,
}
"""What changes no number of these models: GPT-2 rotates nothing, and others only two pairs of dimensions; DeepSeek's
heads have other names, and the size of all experts of North that tokens share is stated, too."""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", READ)
def test_a_key_that_is_used_changes_the_numbers_or_is_refused(architecture: str, tmp_path: Path) -> None:
    prompt = [token * 7 % 25 for token in range(60)]
    used = metadata_keys.USED | DECLARED[architecture].keys
    expected: dict[str, list[float]] = {}
    for key in sorted(used - UNMOVED.get(architecture, set())):
        common = NEEDS.get(key, {})
        if str(common) not in expected:
            expected[str(common)] = scores(model(tmp_path, architecture, **common), prompt, tmp_path)
        try:
            found = scores(model(tmp_path, architecture, **{**common, key: OTHERS[key]}), prompt, tmp_path)
        except ModelFolderError:
            continue
        assert found != expected[str(common)], f"{architecture}.{key} changes nothing"


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "several experts": ("llama", {"expert_count": 8}, "expert_used_count"),
    "experts that are not there": (
        "llama", {"expert_count": 8, "expert_used_count": 2}, "no tensor 'blk.0.ffn_gate_inp.weight'",
    ),
    "experts per layer": ("llama", {"expert_used_count": [2, 2]}, "a mixture of experts"),
    "experts of Qwen 2": ("qwen2", {"expert_count": 8}, "a mixture of experts"),
    "experts that are not stated": ("llama, experts", {"expert_count": None}, "'expert_used_count'"),
    "more experts than Mixtral has": ("llama, experts", {"expert_used_count": [2, 5]}, "layers of different sizes"),
    "an unknown rule": ("qwen3moe", {"expert_gating_func": 2}, "chooses experts by rule 2 .'expert_gating_func'"),
    "more experts than there are": ("qwen3moe", {"expert_used_count": 9}, "uses 9 of 8 experts"),
    "experts of another number": ("qwen3moe", {"expert_count": 6}, r"ffn_gate_inp.weight' has the shape \[8, 64\]"),
    "no experts": ("qwen3moe", {"expert_count": 0}, "'expert_count'"),
    "experts in groups": ("qwen3moe", {"expert_group_count": 2}, "uses groups of experts"),
    "a shared expert": ("qwen3moe", {"expert_shared_feed_forward_length": 32}, "uses a shared expert"),
    "gpt-oss's experts of another number": ("gpt-oss", {"expert_count": 6}, r"ffn_gate_inp.weight' has the shape \[8,"),
    "layers for several tokens": ("qwen3", {"nextn_predict_layers": 1}, "predict several tokens"),
    "an image's layers": ("granite", {"deepstack_mapping": [-1, 0]}, "read an image"),
    "other heads with a window": ("gemma3", {"attention.key_length_swa": 8}, "layers of different sizes"),
    "other heads by layer": ("llama", {"attention.key_length": 16, "attention.key_length_swa": [16, 8]}, "_swa"),
    "a window that is not used": ("llama", {"attention.sliding_window": 64}, "attends to 64 tokens at a time"),
    "a window of unknown layers": ("exaone4", {"attention.sliding_window": 64}, "attends to 64 tokens at a time"),
    "a window of nothing": ("cohere2", {"attention.sliding_window": 0}, "sliding_window"),
    "a list of the wrong length": (
        "gemma3", {"attention.sliding_window_pattern": [True, False]}, "states 2 values as.*but has 7 layers",
    ),
    "windows that are not stated": ("gemma4", {"attention.sliding_window_pattern": None}, "which layers have a window"),
    "no size of heads with a window": ("gemma4", {"attention.key_length_swa": None}, "'attention.key_length_swa'"),
    "values of another size": ("gemma4", {"attention.value_length_swa": 8}, "keys and values of different sizes"),
    "heads of no layer": ("gemma4", {"attention.head_count_kv": [2, 2, 2, 2, 1, 2, 2]}, "layers of different sizes"),
    "no keys at all": ("gemma4", {"attention.head_count_kv": [0] * 7}, "cannot compute"),
    "layers without keys after others": ("gemma4", {"attention.shared_kv_layers": 2}, "2 layers without keys"),
    "no keys in any layer": ("gemma4", {"attention.shared_kv_layers": 7}, "7 layers without keys"),
    "inputs of another size": ("gemma4", {"embedding_length_per_layer_input": 40}, "only for multiples of 32"),
    "inputs that are not there": (
        "gemma4, values from keys", {"embedding_length_per_layer_input": 32}, "no tensor 'per_layer_token_embd.weight'",
    ),
    "one hidden state": ("gemma3n", {"altup.num_inputs": 1}, "has 1 hidden states"),
    "another hidden state": ("gemma3n", {"altup.active_idx": 1}, "of which layers compute number 1"),
    "hidden states that are not there": ("gemma3n", {"altup.num_inputs": 5}, "no tensor 'altup_proj.3.weight'"),
    "no inputs of layers": ("gemma3n", {"embedding_length_per_layer_input": 0}, "has no embeddings for each layer"),
    "gates of other layers": ("gemma3n", {"activation_sparsity_scale": [0.5] * 3}, "3 entries of 'gemma3n.activation"),
    "no gates at all": ("gemma3n", {"activation_sparsity_scale": [math.inf] * 8}, "inf in 'activation_sparsity_scale'"),
    "keys of no layer of the kind": ("gemma3n", {"attention.shared_kv_layers": 3}, "3 layers without keys"),
    "a window that is not stated": ("gemma3n", {"attention.sliding_window": None}, "'attention.sliding_window'"),
    "wide layers": ("gemma4", {"feed_forward_length": 96}, r"blk.4.ffn_up.weight' has the shape \[192, 64\]"),
    "soft caps of attention": ("gemma4", {"attn_logit_softcapping": 5.0}, "soft-capped attention"),
    "positions that are stretched": ("llama", {"rope.scaling.alpha": 9.0}, "'dynamic' with an 'alpha'"),
    "positions in an image": ("glm4", {"rope.dimension_sections": [4, 2, 2, 0]}, "uses positions in an image"),
    "heads of the wrong number": ("llama", {"attention.head_count_kv": [2] * 3}, "3 values.*2 layers"),
    "heads that differ": ("llama", {"attention.head_count_kv": [2, 4]}, "layers of different sizes"),
    "inner sizes that differ": ("llama", {"feed_forward_length": [96, 64]}, "layers of different sizes"),
    "heads as numbers with a point": ("llama", {"attention.head_count": [4.0, 4.0]}, "cannot compute"),
    "countless dimensions": (
        "qwen3, yarn", {"attention.key_length": 1 << 17, "attention.value_length": 1 << 17}, "numbers are impossible",
    ),
    "countless layers": ("llama", {"block_count": 1 << 30}, "cannot compute"),
    "scaled by an unknown rule": ("llama", {"rope.scaling.type": "dynamic"}, "'dynamic'"),
    "a start of positions below zero": ("llama", {"rope.scaling.factor": -4.0}, "no model can have"),
    "a state of other heads": ("granitehybrid", {"ssm.time_step_rank": 3}, "3 heads .'ssm.time_step_rank'. in 1"),
    "a state of small heads": ("granitehybrid", {"ssm.time_step_rank": 16}, "heads of 8 numbers .*multiples of 16, 32"),
    "a state of other sizes": (
        "granitehybrid", {"ssm.state_size": 32}, r"ssm_in.weight' has the shape \[276, 64\] instead of \[324, 64\]",
    ),
    "a state over a text": ("granitehybrid", {"ssm.conv_kernel": 65}, "over 65 positions .*2 to 64 are computed"),
    "states that are not stated": ("granitehybrid", {"ssm.group_count": None}, "does not state 'ssm.group_count'"),
    "attention where a state is": (
        "granitehybrid", {"attention.head_count_kv": [0, 2, 2]}, "no tensor 'blk.2.attn_q.weight'",
    ),
    "layers of two parts": (
        "nemotron_h", {"attention.head_count_kv": [0, 2, 0, 2, 0]}, "attention .* and a feed-forward layer .* layer 1",
    ),
    "no epsilon": ("nemotron_h", {"attention.layer_norm_epsilon": None}, "'attention.layer_norm_epsilon'"),
    "a feed-forward layer where a state is": (
        "nemotron_h", {"feed_forward_length": [96, 96, 0, 0, 96]}, "no tensor 'blk.0.ffn_up.weight'",
    ),
    "experts of a smaller space": ("nemotron_h_moe", {"moe_latent_size": 16}, "experts of a smaller space"),
    "experts in two groups": ("nemotron_h_moe", {"expert_group_count": 2}, "uses groups of experts"),
    "no experts with states": ("nemotron_h", {"expert_count": 8}, "a mixture of experts"),
    "no layers for experts": ("nemotron_h_moe", {"feed_forward_length": [0] * 4}, "'feed_forward_length'"),
    "experts of softmax": ("nemotron_h_moe", {"expert_gating_func": 1}, "chooses experts by rule 1"),
    "a convolution of one position": ("lfm2", {"shortconv.l_cache": 1}, "'shortconv.l_cache'"),
    "a convolution without a length": ("lfm2", {"shortconv.l_cache": None}, "does not state 'shortconv.l_cache'"),
    "a convolution over a text": ("lfm2", {"shortconv.l_cache": 65}, "over 65 positions .*at most 64 are computed"),
    "attention in another layer": (
        "lfm2", {"attention.head_count_kv": [2, 0, 0, 2, 0]}, "no tensor 'blk.0.attn_q.weight'",
    ),
    "experts by another rule": ("lfm2moe", {"expert_gating_func": 1}, "chooses experts by rule 1"),
    "a window with experts": ("lfm2moe", {"attention.sliding_window": 64}, "attends to 64 tokens at a time"),
    "no layer with experts": ("lfm2moe", {"leading_dense_block_count": 3}, "no layer with experts"),
    "no attention at all": ("lfm2", {"attention.head_count_kv": [0] * 5}, "'attention.head_count_kv'"),
    "attention of other heads": ("lfm2", {"attention.head_count_kv": [0, 2, 0, 1, 0]}, "layers of different sizes"),
    "kinds of fewer layers": ("lfm2", {"attention.head_count_kv": [0, 2]}, "states 2 values as .*but has 5 layers"),
    "states of heads that share nothing": ("qwen35", {"ssm.group_count": 3}, "sizes of states .* 3 of keys"),
    "states of narrow heads": ("qwen35", {"ssm.state_size": 24}, "have to be multiples of 16"),
    "states of another size": ("qwen35", {"ssm.state_size": 16}, r"qkv.weight' has the shape \[256, 64\] instead of"),
    "states without a size": ("qwen35", {"ssm.state_size": None}, "does not state 'ssm.state_size'"),
    "states without convolutions": ("qwen35", {"ssm.conv_kernel": 1}, "'ssm.conv_kernel'"),
    "states in another layer": ("qwen35", {"full_attention_interval": 3}, "no tensor 'blk.2.attn_q.weight'"),
    "kinds of few layers": ("qwen35", {"attention.recurrent_layers": [True]}, "states 1 values as .*but has 5 layers"),
    "layers that all predict": ("qwen35", {"nextn_predict_layers": 5}, "has 5 layers .*of which 5 predict several"),
    "states of groups of other heads": ("qwen3next", {"ssm.group_count": 3}, "sizes of states .* 3 of keys"),
    "states of groups of another size": (
        "qwen3next, joined", {"ssm.state_size": 16}, "no tensor 'blk.0.ssm_qkv.weight'",
    ),
    "experts by another rule, with states": ("qwen35moe", {"expert_gating_func": 2}, "chooses experts by rule 2"),
    "a wider expert for all": (
        "qwen35moe", {"expert_shared_feed_forward_length": 32}, r"_shexp.weight' has the shape \[64, 64\] instead of",
    ),
    "more experts than there are, with states": ("qwen3next", {"expert_used_count": 9}, "uses 9 of 8 experts"),
    "positions in an image with states": (
        "qwen3next", {"rope.dimension_sections": [2, 1, 1, 0]}, "uses positions in an image",
    ),
    "states of another architecture": ("qwen3", {"ssm.state_size": 16}, "uses state-space layers"),
    "layers without attention": ("llama", {"attention.head_count_kv": [2, 0]}, "cannot compute"),
    "latents of another size": (
        "deepseek2", {"attention.kv_lora_rank": 48}, r"kv_a_mqa.weight' has the shape \[56, 64\], which contradicts",
    ),
    "keys and values of another size": (
        "deepseek2, joined", {"attention.value_length": 24}, r"attn_kv_b.weight' has the shape .* contradicts",
    ),
    "latents of more numbers than any model's": (
        "deepseek2", {"attention.kv_lora_rank": 16_385}, "makes keys and values of 16385 numbers .*at most 16384 are",
    ),
    "latents without a size": (
        "deepseek2", {"attention.kv_lora_rank": None}, "does not state 'attention.kv_lora_rank'",
    ),
    "latent queries that are not there": (
        "deepseek2", {"attention.q_lora_rank": 48}, "no tensor 'blk.0.attn_q_a.weight'",
    ),
    "queries that are not latent": (
        "deepseek2, latent queries", {"attention.q_lora_rank": 0}, "no tensor 'blk.0.attn_q.weight'",
    ),
    "keys that rotate as a whole": (
        "deepseek2, joined", {"rope.dimension_count": 40}, "keys of 40 dimensions, of which 40 are rotated",
    ),
    "half of what older files state": (
        "deepseek2", {"attention.value_length_mla": None}, "does not state 'attention.value_length_mla'",
    ),
    "latents in two forms": (
        "deepseek2", {"tensors": {"blk.0.attn_kv_b.weight": np.zeros((176, 40), np.float32)}}, "is there in two forms",
    ),
    "keys without their matrix": (
        "deepseek2", {"tensors": {"blk.1.attn_k_b.weight": None}}, "no tensor 'blk.1.attn_k_b.weight'",
    ),
    "latents without their norm": (
        "deepseek2", {"tensors": {"blk.2.attn_kv_a_norm.weight": None}}, "no tensor 'blk.2.attn_kv_a_norm.weight'",
    ),
    "positions of latent attention by another rule": (
        "deepseek2", {"rope.scaling.type": "linear"}, "scales its positions by 'linear'",
    ),
    "groups of experts without a number": (
        "deepseek2", {"expert_group_count": 4}, "does not state 'expert_group_used_count'",
    ),
    "more groups than there are": (
        "deepseek2, groups", {"expert_group_used_count": 5}, "3 of 8 experts, from 5 .'expert_group_used_count'. of 4",
    ),
    "groups of unequal sizes": ("deepseek2, groups", {"expert_group_count": 3}, "from 2 .* of 3 groups"),
    "groups of too few experts": ("deepseek2, groups", {"expert_group_used_count": 1}, "from 1 .* of 4 groups"),
    "groups of single experts, in pairs": (
        "deepseek2, groups of sigmoids", {"expert_group_count": 12, "expert_group_used_count": 6}, "of 12 groups",
    ),
    "no layer but those that predict": ("deepseek2", {"nextn_predict_layers": 3}, "3 layers .*of which 3 predict"),
    "experts of latent attention by another rule": (
        "deepseek2", {"expert_gating_func": 3}, "chooses experts by rule 3",
    ),
    "experts that a bias chooses by a softmax": (
        "deepseek2, latent queries", {"expert_gating_func": 1}, "a tensor 'blk.1.exp_probs_b.bias'",
    ),
    "a layer whose experts no bias chooses": (
        "deepseek2, latent queries", {"tensors": {"blk.2.exp_probs_b.bias": None}},
        "no tensor 'blk.2.exp_probs_b.bias'",
    ),
    "experts of latent attention of another number": (
        "deepseek2", {"expert_count": 6}, r"ffn_gate_inp.weight' has the shape \[8, 64\]",
    ),
    "a narrower expert for all": (
        "deepseek2", {"expert_shared_count": 1}, r"_shexp.weight' has the shape \[64, 64\] instead of",
    ),
    "no layer with latent attention and experts": (
        "deepseek2", {"leading_dense_block_count": 3}, "no layer with experts",
    ),
    "experts of Ling by a softmax": ("bailingmoe2", {"expert_gating_func": 1}, "chooses experts by rule 1"),
    "Ling without experts": ("bailingmoe2", {"leading_dense_block_count": 3}, "no layer with experts"),
    "a bias in some layers of Ling": (
        "bailingmoe2", {"tensors": {"blk.2.exp_probs_b.bias": None}}, "no tensor 'blk.2.exp_probs_b.bias'",
    ),
    "an expert for all of Ling of another size": (
        "bailingmoe2", {"expert_shared_count": 2}, r"_shexp.weight' has the shape \[64, 48\] instead of",
    ),
    "experts of MiniMax that no bias chooses": (
        "minimax-m2", {"tensors": {"blk.1.exp_probs_b.bias": None}}, "no tensor 'blk.1.exp_probs_b.bias'",
    ),
    "small heads of Hunyuan": (
        "hunyuan-dense", {"attention.key_length": 24, "attention.value_length": 24}, "heads of 24 dimensions, which",
    ),
    "positions of Hunyuan that no number stretches": ("hunyuan-dense", {"rope.scaling.alpha": 1e20}, "as 'rope.scalin"),
    "parts of Hunyuan's keys that are multiplied": (
        "hunyuan-dense", {"rope.scaling.attn_factor": 2.0, "rope.dimension_count": 16},
        r"multiplies 16 rotated of 32 dimensions by 2 \(YaRN, or",
    ),
    "keys of Hunyuan that are nothing": ("hunyuan-moe", {"rope.scaling.attn_factor": 0.0}, "dimensions by 0 "),
    "Hunyuan with positions in an image": (
        "hunyuan-dense", {"rope.dimension_sections": [4, 4, 4, 4]}, "uses positions in an image",
    ),
    "experts of Trinity by a softmax": ("afmoe", {"expert_gating_func": 1}, "chooses experts by rule 1"),
    "Trinity without experts": ("afmoe", {"leading_dense_block_count": 5}, "no layer with experts"),
    "experts of Trinity that no bias chooses": (
        "afmoe", {"tensors": {"blk.3.exp_probs_b.bias": None}}, "no tensor 'blk.3.exp_probs_b.bias'",
    ),
    "attention of Trinity without a gate": (
        "afmoe", {"tensors": {"blk.2.attn_gate.weight": None}}, "no tensor 'blk.2.attn_q_gate.weight'",
    ),
    "a gate of AFM": (
        "arcee", {"tensors": {"blk.0.ffn_gate.weight": np.zeros((96, 64), np.float32)}}, "'blk.0.ffn_gate.weight', wh",
    ),
    "chunks without tokens": ("llama4", {"attention.sliding_window": 0}, "states '0' as 'attention.sliding_window'"),
    "chunks of other layers": ("llama4", {"attention.sliding_window_pattern": [True] * 3}, "3 values.*has 5 layers"),
    "Llama 4 without experts": ("llama4", {"interleave_moe_layer_step": 9}, "has no layer with experts"),
    "Llama 4 that does not say which layers have experts": (
        "llama4", {"interleave_moe_layer_step": None}, "does not state 'interleave_moe_layer_step'",
    ),
    "Llama 4 without an expert for all tokens": (
        "llama4", {"tensors": {"blk.3.ffn_up_shexp.weight": None}}, "no tensor 'blk.3.ffn_up_shexp.weight'",
    ),
    "Llama 4 with fewer experts than it uses": ("llama4", {"expert_used_count": 9}, "uses 9 of 8 experts"),
    "Llama 4 with norms that have weights": (
        "llama4", {"tensors": {"blk.0.attn_q_norm.weight": np.ones(32, np.float32)}}, "a tensor 'blk.0.attn_q_norm.we",
    ),
    "queries of Llama 4 that grow at no position": (
        "llama4", {"attention.temperature_length": 0}, "states '0' as 'attention.temperature_length'",
    ),
    "queries of Llama 4 that grow without end": (
        "llama4", {"attention.temperature_scale": 1e20}, r"multiplies scores, queries, .* by more than 1e\+18",
    ),
    "positions of Llama 4 that change a part of heads": (
        "llama4", {"rope.dimension_count": 16, "rope.scaling.attn_factor": 2.0}, "multiplies 16 rotated of 32",
    ),
    "North without a window": ("cohere2moe", {"attention.sliding_window": None}, "does not state 'attention.sliding_w"),
    "North without experts": ("cohere2moe", {"leading_dense_block_count": 6}, "has no layer with experts"),
    "windows of other layers of North": (
        "cohere2moe", {"attention.sliding_window_pattern": [True] * 5}, "5 values.*has 6 layers",
    ),
    "North with a second norm": (
        "cohere2moe", {"tensors": {"blk.1.ffn_norm.weight": np.ones(64, np.float32)}}, "a tensor 'blk.1.ffn_norm.weig",
    ),
    "experts of dots.llm1 by a softmax": ("dots1", {"expert_gating_func": 1}, "chooses experts by rule 1"),
    "dots.llm1 without experts": ("dots1", {"leading_dense_block_count": 3}, "has no layer with experts"),
    "a bias in some layers of dots.llm1": (
        "dots1", {"tensors": {"blk.2.exp_probs_b.bias": None}}, "no tensor 'blk.2.exp_probs_b.bias'",
    ),
    "dots.llm1 without norms of queries": (
        "dots1", {"tensors": {"blk.1.attn_q_norm.weight": None}}, "no tensor 'blk.1.attn_q_norm.weight'",
    ),
    "a window of dots.llm1": ("dots1", {"attention.sliding_window": 16}, "attends to 16 tokens at a time"),
    "experts of MiniMax by a softmax": ("minimax-m2", {"expert_gating_func": 1}, "chooses experts by rule 1"),
    "experts of ERNIE by sigmoids": ("ernie4_5-moe", {"expert_gating_func": 2}, "chooses experts by rule 2"),
    "ERNIE without experts": ("ernie4_5-moe", {"interleave_moe_layer_step": 4}, "has no layer with experts"),
    "experts of ERNIE in every zeroth layer": (
        "ernie4_5-moe", {"interleave_moe_layer_step": 0}, "states '0' as 'interleave_moe_layer_step'",
    ),
    "a bias in some layers of ERNIE": (
        "ernie4_5-moe", {"tensors": {"blk.2.exp_probs_b.bias": None}}, "no tensor 'blk.2.exp_probs_b.bias'",
    ),
    "biases of ERNIE": (
        "ernie4_5", {"tensors": {"blk.0.attn_output.bias": np.zeros(64, np.float32)}},
        "a tensor 'blk.0.attn_output.bias', which",
    ),
    "heads that share keys, of latents": ("deepseek2", {"attention.head_count_kv": 2}, "states 2 heads of keys"),
    "scores that float32 does not have": (
        "deepseek2, yarn", {"rope.scaling.attn_factor": 1e20}, r"multiplies scores, .* by more than 1e\+18",
    ),
    "logits that it does not have": ("granite", {"logit_scale": 1e-25}, r"by more than 1e\+18"),
    "positions that nothing divides": (
        "mistral3", {"rope.scaling.factor": 2.0, "rope.scaling.yarn_log_multiplier": -14.426950408889635},
        "'rope.scaling.yarn_log_multiplier', which no model can have",
    ),
    "values larger than those of any head": (
        "deepseek2", {"attention.value_length_mla": 5000}, "larger heads than any model has",
    ),
    "more heads than share keys anywhere": (
        "llama", {"attention.head_count": 2048, "attention.head_count_kv": 1, "attention.key_length": 16,
                  "attention.value_length": 16}, "more of them for each head of keys",
    ),
    "queries that grow, of latents": ("deepseek2", {"attention.temperature_scale": 0.1}, "queries that grow"),
    "clamped queries": ("olmo2", {"attention.clamp_kqv": 8.0}, "uses clamped queries"),
    "a limit below zero": ("olmo", {"attention.clamp_kqv": -8.0}, "states -8 as 'attention.clamp_kqv', which no"),
    "a switch as a number": ("gptneox", {"use_parallel_residual": 1}, "'use_parallel_residual'"),
    "a negative epsilon": ("llama", {"attention.layer_norm_rms_epsilon": -1.0}, "states -1 as the epsilon"),
    "heads that do not divide": ("llama", {"attention.head_count": 3}, r"3 heads \('attention.head_count'\)"),
    "a base of nothing": ("llama", {"rope.freq_base": 0.0}, r"a base of positions \('rope.freq_base'\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused_by_name(name: str, tmp_path: Path) -> None:
    kind, changed, words = REFUSED[name]
    assert re.search(words, refusal(model(tmp_path, kind, **changed)))


FOUR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
SAME: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "the older name of the factor": ("llama", {"rope.scale_linear": 4.0}, FOUR),
    "a factor without a rule": ("llama", {"rope.scaling.factor": 4.0}, FOUR),
    "the older name with the rule": ("llama", {"rope.scaling.type": "linear", "rope.scale_linear": 4.0}, FOUR),
    "the newer name wins": ("llama", {"rope.scaling.factor": 4.0, "rope.scale_linear": 9.0}, FOUR),
    "no rule": ("llama", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
    "LongRoPE without its factors": ("llama", {"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}, FOUR),
    "Gemma's period": ("gemma3", {"attention.sliding_window_pattern": 6}, {}),
    "Gemma's list": ("gemma3", {"attention.sliding_window_pattern": [True] * 5 + [False, True]}, {}),
    "a list of whole numbers": ("gemma3", {"attention.sliding_window_pattern": [1, 1, 1, 1, 1, 0, 1]}, {}),
    "Cohere's period": ("cohere2", {"attention.sliding_window_pattern": 4}, {}),
    "heads by layer": (
        "llama",
        {
            "attention.head_count": [HEADS] * 2,
            "attention.head_count_kv": [KV_HEADS] * 2,
            "feed_forward_length": [FEED_FORWARD] * 2,
        },
        {},
    ),
    "what only other architectures read": (
        "qwen2",
        {"rope.scaling.yarn_beta_fast": 9.0, "rope.freq_base_swa": 9.0, "activation": "gelu", "anything": [1, 2]},
        {},
    ),
    "what cannot matter": ("llama", {"vocab_size": 7, "pooling_type": 2, "rope.scaling.finetuned": False}, {}),
    "the older name of YaRN's factor": ("deepseek2", {"rope.scaling.factor": None, "rope.scale_linear": 8.0}, {}),
    "a window as long as the context": ("llama", {"attention.sliding_window": CONTEXT}, {}),
    "one group of experts": ("deepseek2", {"expert_group_count": 1, "expert_group_used_count": 1}, {}),
    "no groups of experts": ("llama", {"expert_group_count": 0, "expert_group_used_count": 0}, {}),
}


@pytest.fixture(scope="module")
def computed() -> dict[str, list[float]]:
    """The scores of what several cases are compared with."""
    return {}


@pytest.mark.parametrize("name", slow_but([*SAME][::2], SAME))
def test_two_ways_to_state_the_same_compute_the_same(
    name: str, tmp_path: Path, computed: dict[str, list[float]]
) -> None:
    kind, one, other = SAME[name]
    prompt = [token * 7 % 25 for token in range(50)]
    known = repr((kind, other))
    if known not in computed:
        computed[known] = scores(model(tmp_path, kind, **other), prompt, tmp_path)
    assert scores(model(tmp_path, kind, **one), prompt, tmp_path) == computed[known]


def test_what_a_state_reads_has_the_same_bits_from_one_matrix_and_from_two(tmp_path: Path) -> None:
    prompt = [token * 7 % 25 for token in range(50)]
    two, one = (scores(model(tmp_path, name), prompt, tmp_path) for name in ("qwen3next", "qwen3next, joined"))
    assert one == two


def test_what_is_left_out_is_noted(tmp_path: Path) -> None:
    path = model(tmp_path, "qwen2", **{"rope.scaling.yarn_beta_fast": 9.0, "vocab_size": 7})
    [note] = shown(path)["notes"]
    assert (
        "states 'qwen2.rope.scaling.yarn_beta_fast', which is not used for this architecture, as in llama.cpp" in note
    )
    made = byte_level(lowercase=True, padding_token_id=3)
    [note] = shown(model_with(tmp_path, made))["notes"]
    assert "states 'tokenizer.ggml.lowercase', which is not used" in note
    assert shown(model(tmp_path))["notes"] == []


@pytest.mark.parametrize("first", slow_but([0], range(4)))
def test_every_tiny_model_of_the_table_is_accepted_without_a_note(first: int, tmp_path: Path) -> None:
    """Every fourth one, from `first` on."""
    for name in [*ARCHITECTURES][first::4]:
        if name not in OF_FOLDERS:
            assert shown(model(tmp_path, name))["notes"] == [], name


def _zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


SHAPES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a bias of another length": ("llama", {"blk.0.attn_q.bias": _zeros(7)}, r"attn_q.bias' has the shape \[7\]"),
    "an inner size": ("llama", {"blk.0.ffn_down.weight": _zeros(HIDDEN, 32)}, r"\[64, 32\] instead of \[64, 96\]"),
    "the last norm": ("llama", {"output_norm.weight": _zeros(8)}, r"output_norm.weight' has the shape \[8\]"),
    "no norm of queries": ("exaone4", {"blk.3.attn_q_norm.weight": None}, "no tensor 'blk.3.attn_q_norm.weight'"),
    "what joins heads": ("llama", {"blk.1.attn_output.weight": _zeros(HIDDEN, 32)}, "attn_output.weight' has the"),
    "wide embeddings": ("llama", {"token_embd.weight": _zeros(30, 32)}, "token_embd.weight' has the shape"),
    "a norm of queries": ("qwen3", {"blk.0.attn_q_norm.weight": _zeros(5)}, "attn_q_norm.weight' has the shape"),
    "a norm that nothing uses": ("llama", {"blk.0.attn_q_norm.weight": _zeros(16)}, "does not compute for 'llama'"),
    "norms of some heads": (
        "stablelm, head norms", {"blk.1.attn_k_norm.weight": None}, "no tensor 'blk.1.attn_k_norm.weight'",
    ),
    "norms of some layers": (
        "glm4moe, head norms", {"blk.2.attn_q_norm.weight": None}, "no tensor 'blk.2.attn_q_norm.weight'",
    ),
    "norms of all heads together": (
        "command-r, head norms", {"blk.0.attn_q_norm.weight": _zeros(16)}, r"\[16\] instead of \[4, 16\]",
    ),
    "norms per head": ("stablelm", {"blk.0.attn_q_norm.weight": _zeros(2, 16)}, r"\[2, 16\] instead of \[4, 16\]"),
    "a norm with a bias": ("llama", {"output_norm.bias": _zeros(HIDDEN)}, "does not compute for 'llama'"),
    "no gate": ("llama", {"blk.0.ffn_gate.weight": None}, "no tensor 'blk.0.ffn_gate.weight'"),
    "no shared expert": ("qwen2moe", {"blk.1.ffn_up_shexp.weight": None}, "no tensor 'blk.1.ffn_up_shexp.weight'"),
    "no gate of it": ("qwen2moe", {"blk.1.ffn_gate_inp_shexp.weight": None}, "no tensor 'blk.1.ffn_gate_inp_shexp"),
    "a shared expert that is not stated": (
        "granitemoe", {"blk.0.ffn_up_shexp.weight": _zeros(64, 64)}, "does not compute for 'granitemoe'",
    ),
    "no router": ("qwen3moe", {"blk.1.ffn_gate_inp.weight": None}, "no tensor 'blk.1.ffn_gate_inp.weight'"),
    "no experts in a layer": ("qwen3moe", {"blk.1.ffn_up_exps.weight": None}, "no tensor 'blk.1.ffn_up_exps.weight'"),
    "too few experts": ("qwen3moe", {"blk.0.ffn_up_exps.weight": _zeros(7, 32, 64)}, r"\[7, 32, 64\] instead of \[8,"),
    "a usual layer's": ("qwen3moe", {"blk.0.ffn_gate.weight": _zeros(96, 64)}, "does not compute for 'qwen3moe'"),
    "no bias of an expert": ("gpt-oss", {"blk.2.ffn_up_exps.bias": None}, "no tensor 'blk.2.ffn_up_exps.bias'"),
    "biases of too few experts": (
        "gpt-oss", {"blk.0.ffn_down_exps.bias": _zeros(7, 64)}, r"bias' has the shape \[7, 64\] instead of \[8, 64\]",
    ),
    "no sinks": ("gpt-oss", {"blk.1.attn_sinks.weight": None}, "no tensor 'blk.1.attn_sinks.weight'"),
    "sinks of other heads": ("gpt-oss", {"blk.0.attn_sinks.weight": _zeros(2)}, "attn_sinks.weight' has the shape"),
    "sinks that nothing uses": ("llama", {"blk.0.attn_sinks.weight": _zeros(4)}, "does not compute for 'llama'"),
    "two norms between": ("gpt-oss", {"blk.0.ffn_norm.weight": _zeros(64)}, "post_attention_norm.weight', which"),
    "no factors": ("gemma4", {"rope_freqs.weight": None}, "no tensor 'rope_freqs.weight'"),
    "no keys": ("gemma4", {"blk.3.attn_k.weight": None}, "no tensor 'blk.3.attn_k.weight'"),
    "unused keys of another size": ("gemma4", {"blk.6.attn_k.weight": _zeros(32, 64)}, "attn_k.weight' has the shape"),
    "embeddings of other layers": (
        "gemma4", {"per_layer_token_embd.weight": _zeros(30, 192)}, r"\[30, 192\] instead of \[30, 224\]",
    ),
    "no gate of an input": ("gemma4", {"blk.5.inp_gate.weight": None}, "no tensor 'blk.5.inp_gate.weight'"),
    "an output's scale": ("gemma4", {"blk.5.layer_output_scale.weight": _zeros(2)}, "scale.weight' has the shape"),
    "no matrices of hidden states": ("gemma3n", {"altup_proj.weight": None}, "no tensor 'altup_proj.0.weight'"),
    "fewer matrices of hidden states": (
        "gemma3n", {"altup_unembd_proj.weight": _zeros(2, 64, 64)}, "no tensor 'altup_unembd_proj.2.weight'",
    ),
    "more matrices of hidden states": (
        "gemma3n", {"altup_proj.weight": _zeros(4, 64, 64)}, "'altup_proj.3.weight', which Onward does not compute",
    ),
    "no product beside attention": ("gemma3n", {"blk.3.laurel_r.weight": None}, "no tensor 'blk.3.laurel_r.weight'"),
    "a product of another rank": (
        "gemma3n", {"blk.2.laurel_l.weight": _zeros(32, 64)}, r"\[32, 64\] instead of \[64, 64\]",
    ),
    "coefficients of other states": (
        "gemma3n", {"blk.2.altup_predict_coef.weight": _zeros(4, 4)}, r"\[4, 4\] instead of \[16, 4\]",
    ),
    "no scale of corrections": ("gemma3n", {"blk.1.altup_correct_scale.weight": None}, "altup_correct_scale.weight'"),
    "no keys in a layer that has some": ("gemma3n", {"blk.3.attn_k.weight": None}, "no tensor 'blk.3.attn_k.weight'"),
    "no values in a layer": ("gemma3n", {"blk.0.attn_v.weight": None}, "no tensor 'blk.0.attn_v.weight'"),
    "an output's scale of another": (
        "gemma3n", {"blk.0.layer_output_scale.weight": _zeros(1)}, "does not compute for 'gemma3n'",
    ),
    "no norm of experts": ("gemma4, experts", {"blk.1.pre_ffw_norm_2.weight": None}, "no tensor 'blk.1.pre_ffw_norm"),
    "no scale of a router": ("gemma4, experts", {"blk.1.ffn_gate_inp.scale": None}, "no tensor 'blk.1.ffn_gate_inp.sc"),
    "scales of other experts": ("gemma4, experts", {"blk.0.ffn_down_exps.scale": _zeros(7)}, r"shape \[7\] instead of"),
    "no bias": ("gpt2", {"blk.0.ffn_up.bias": None}, "no tensor 'blk.0.ffn_up.bias'"),
    "joined heads": ("gpt2", {"blk.0.attn_qkv.weight": _zeros(64, HIDDEN)}, "attn_qkv.weight"),
    "positions": ("gpt2", {"position_embd.weight": _zeros(9, HIDDEN)}, "position_embd.weight' has the shape"),
    "factors": ("llama", {"rope_freqs.weight": _zeros(3)}, r"rope_freqs.weight' has the shape \[3\] instead of \[8\]"),
    "factors of latent attention": (
        "deepseek2, dense", {"rope_freqs.weight": np.ones(8, np.float32)}, "frequencies of positions by factors",
    ),
    "a bias of no values": ("gemma4, values from keys", {"blk.2.attn_v.bias": _zeros(32)}, "attn_v.bias', which"),
    "a bias of no output layer": ("llama", {"output.bias": _zeros(30)}, "'output.bias', which Onward does not compute"),
    "factors of nothing": ("llama", {"rope_freqs.weight": _zeros(8)}, "divides frequencies of positions by numbers"),
    "a convolution of another length": (
        "lfm2", {"blk.2.shortconv.conv.weight": _zeros(64, 4)}, r"the shape \[64, 4\] instead of \[64, 3\]",
    ),
    "no convolution": ("lfm2", {"blk.0.shortconv.conv.weight": None}, "no tensor 'blk.0.shortconv.conv.weight'"),
    "what a convolution reads": (
        "lfm2", {"blk.0.shortconv.in_proj.weight": _zeros(128, 64)}, r"\[128, 64\] instead of \[192, 64\]",
    ),
    "a bias of a convolution": ("lfm2", {"blk.0.shortconv.conv.bias": _zeros(64)}, "does not compute for 'lfm2'"),
    "a bias before it": ("lfm2", {"blk.0.shortconv.in_proj.bias": _zeros(192)}, "does not compute for 'lfm2'"),
    "attention with a convolution": ("lfm2", {"blk.0.attn_q.weight": _zeros(64, 64)}, "attn_q.weight', which"),
    "norms of no keys": ("lfm2", {"blk.0.attn_k_norm.weight": _zeros(16)}, "attn_k_norm.weight', which"),
    "no bias of the choice": ("lfm2moe", {"blk.1.exp_probs_b.bias": None}, "no tensor 'blk.1.exp_probs_b.bias'"),
    "a bias of other experts": ("lfm2moe", {"blk.1.exp_probs_b.bias": _zeros(7)}, r"\[7\] instead of \[8\]"),
    "two last norms": ("lfm2", {"output_norm.weight": _zeros(64)}, "'token_embd_norm.weight', which"),
    "no decay": ("qwen35", {"blk.0.ssm_a": None}, "no tensor 'blk.0.ssm_a'"),
    "a decay of other heads": ("qwen35", {"blk.1.ssm_a": _zeros(3)}, r"ssm_a' has the shape \[3\] instead of \[4\]"),
    "no bias of a decay": ("qwen35", {"blk.0.ssm_dt.bias": None}, "no tensor 'blk.0.ssm_dt.bias'"),
    "queries without gates": ("qwen35", {"blk.3.attn_q.weight": _zeros(128, 64)}, "no tensor 'blk.3.attn_q_gate.weig"),
    "attention with a state": ("qwen35", {"blk.0.attn_k.weight": _zeros(64, 64)}, "attn_k.weight', which"),
    "a layer after the last": ("qwen35", {"blk.5.attn_k.weight": _zeros(64, 64)}, "blk.5.attn_k.weight', which Onward"),
    "a layer of no number": ("qwen35", {f"blk.{5000 * '9'}.ssm_a": _zeros(4)}, "blk.9999.*which Onward does not"),
    "a convolution of other numbers": ("qwen35", {"blk.0.ssm_conv1d.weight": _zeros(255, 4)}, r"shape \[255, 4\] inst"),
    "no gate of an expert with states": (
        "qwen35moe", {"blk.0.ffn_gate_inp_shexp.weight": None}, "no tensor 'blk.0.ffn_gate_inp_shexp",
    ),
    "no experts with a state": ("qwen3next", {"blk.2.ffn_up_exps.weight": None}, "no tensor 'blk.2.ffn_up_exps.we"),
    "a usual layer with a state": ("qwen35moe", {"blk.0.ffn_up.weight": _zeros(96, 64)}, "compute for 'qwen35moe'"),
    "decays of other heads": ("qwen3next", {"blk.0.ssm_ba.weight": _zeros(6, 64)}, "no tensor 'blk.0.ssm_alpha.we"),
    "inputs of a state in two forms": (
        "qwen3next", {"blk.0.ssm_in.weight": _zeros(384, 64)}, "'blk.0.ssm_in.weight', which Onward does not compute",
    ),
    "inputs of a state of Qwen 3.5 in one": (
        "qwen35moe", {"blk.0.ssm_in.weight": _zeros(384, 64)}, "compute for 'qwen35moe'",
    ),
    "no bias of the output layer": ("phi2", {"output.bias": None}, "no tensor 'output.bias'"),
    "a bias of other tokens": ("phi2", {"output.bias": _zeros(29)}, r"output.bias' has the shape \[29\]"),
    "a second norm of Phi": ("phi2", {"blk.0.ffn_norm.weight": _zeros(HIDDEN)}, "does not compute for 'phi2'"),
    "no bias of a feed-forward layer": ("gptj", {"blk.1.ffn_up.bias": None}, "no tensor 'blk.1.ffn_up.bias'"),
    "a bias of queries": ("gptj", {"blk.0.attn_q.bias": _zeros(HIDDEN)}, "does not compute for 'gptj'"),
    "no bias of GPT-J's logits": ("gptj", {"output.bias": None}, "no tensor 'output.bias'"),
    "no norm beside that of attention": (
        "falcon, two norms", {"blk.0.attn_norm.weight": None}, "no tensor 'blk.0.attn_norm.weight'",
    ),
    "a norm of one layer's attention": ("falcon, two norms", {"blk.1.attn_norm_2.weight": None}, "blk.1.ffn_norm.we"),
    "a norm of some attention": ("falcon", {"blk.1.attn_norm_2.weight": _zeros(HIDDEN)}, "blk.1.ffn_norm.weight', wh"),
    "a norm with weights": ("olmo", {"output_norm.weight": _zeros(HIDDEN)}, "does not compute for 'olmo'"),
    "no matrix after embeddings": ("opt, norms after", {"embd_in.weight": None}, "token_embd.weight' has the shape"),
    "no matrix before logits": ("opt, norms after", {"embd_out.weight": None}, "no tensor 'embd_out.weight'"),
    "no norm of a sum": ("opt, norms after", {"blk.1.post_ffw_norm.weight": None}, "no tensor 'blk.1.post_ffw_norm"),
    "no output layer": ("olmo2", {"output.weight": None}, "no output layer"),
    "fewer rows than tokens": ("llama", {"token_embd.weight": _zeros(28, HIDDEN)}, "has 30 tokens, but.*has 28 rows"),
    "more rows than tokens": ("llama", {"token_embd.weight": _zeros(40, HIDDEN)}, "has 30 tokens, but.*has 40 rows"),
    "fewer rows of output": ("llama, untied", {"output.weight": _zeros(26, HIDDEN)}, "30 tokens, but 'output.*26 rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_each_tensor_is_checked_before_anything_is_computed(name: str, tmp_path: Path) -> None:
    kind, tensors, words = SHAPES[name]
    assert re.search(words, refusal(model(tmp_path, kind, tensors=tensors)))


def test_a_norm_with_an_axis_of_one_and_an_empty_tensor_are_valid(tmp_path: Path) -> None:
    metadata, tensors = tiny("qwen3")
    prompt = [token * 7 % 25 for token in range(20)]
    plain = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    expected = scores(plain, prompt, tmp_path)
    changed = {name: array.reshape(1, -1) if "norm" in name else array for name, array in tensors.items()}
    empty = {"marker": ("F32", (0,), b""), "rows": ("F16", (0, 4), b"")}
    assert scores(write_gguf(tmp_path / "n.gguf", metadata, {**changed, **empty}), prompt, tmp_path) == expected


FILES = [name for name in ARCHITECTURES if name not in OF_FOLDERS - {"qwen2, yarn", "qwen2, mimo"}]
"""Files of the others lack what says which tensors they have."""


@pytest.mark.parametrize("name", slow_but(FILES[::5], FILES))
def test_leading_axes_of_one_change_no_order_of_rows(name: str, tmp_path: Path) -> None:
    """ggml does not count them. Rows that a file has in another order, or several matrices in one, are found."""
    metadata, tensors = tiny(name)
    plain, wide = (
        read_checkpoint(
            write_gguf(
                tmp_path / f"{axes}.gguf",
                metadata,
                {key: floats(array[(None,) * axes]) for key, array in tensors.items()},
            )
        )
        for axes in (0, 1)
    )
    architecture_of(wide)
    assert wide.tensors.keys() == plain.tensors.keys()
    for key, tensor in plain.tensors.items():
        assert np.array_equal(wide.tensors[key].floats().reshape(-1), tensor.floats().reshape(-1)), key


def test_norms_of_nemotron_h_have_either_epsilon(tmp_path: Path) -> None:
    """llama.cpp needs that of layer norms, and uses it where the other one is missing."""
    prompt = [token * 7 % 25 for token in range(20)]
    expected = scores(model(tmp_path, "nemotron_h"), prompt, tmp_path)
    alone = {"attention.layer_norm_rms_epsilon": None}
    assert scores(model(tmp_path, "nemotron_h", **alone), prompt, tmp_path) == expected
    other = {**alone, "attention.layer_norm_epsilon": 0.5}
    assert scores(model(tmp_path, "nemotron_h", **other), prompt, tmp_path) != expected


XIELU: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"xielu.beta": None}, "has neither 'xielu.beta' nor a tensor 'blk.0.ffn_act.beta'"),
    "of other layers": ({"xielu.alpha_p": [0.5] * 3}, "has 3 entries of 'xielu.alpha_p' instead of 2"),
    "a text": ({"xielu.eps": "small"}, "'small' as 'xielu.eps', which no model can have"),
    "whole numbers": ({"xielu.alpha_n": [1, 2]}, "'a list of something else' as 'xielu.alpha_n'"),
    "no numbers": ({"xielu.alpha_n": [math.nan, 1.0]}, "'nan' as 'xielu.alpha_n', which no model can have"),
}


@pytest.mark.parametrize("name", XIELU)
def test_numbers_of_activations_that_no_model_has_are_refused(name: str, tmp_path: Path) -> None:
    changed, words = XIELU[name]
    metadata, tensors = tiny("apertus")
    stated = {key: value for key, value in (metadata | changed).items() if value is not None}
    assert re.search(words, refusal(write_gguf(tmp_path / "m.gguf", stated, tensors)))


def test_numbers_of_activations_may_be_stated_once(tmp_path: Path) -> None:
    metadata, tensors = tiny("apertus")
    prompt = [token * 7 % 25 for token in range(20)]
    once, twice = (
        scores(write_gguf(tmp_path / f"{name}.gguf", metadata | {"xielu.beta": value}, tensors), prompt, tmp_path)
        for name, value in (("once", 0.25), ("twice", [0.25, 0.25]))
    )
    assert once == twice
    assert once != scores(write_gguf(tmp_path / "other.gguf", metadata, tensors), prompt, tmp_path)


def test_numbers_of_activations_are_not_tensors_of_a_file(tmp_path: Path) -> None:
    path = model(tmp_path, "apertus", tensors={"blk.0.ffn_act.beta": np.ones(1, np.float32)})
    assert "'blk.0.ffn_act.beta', which Onward does not compute" in refusal(path)
