"""Tiny random checkpoints, one for each architecture that can be computed, with everything that it may have."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.checkpoints import gemma3n, gemma4, latent, ling, mamba2, qwen35
from tests.checkpoints.making import letters_tokenizer, write_gguf

HIDDEN, HEADS, KV_HEADS, FEED_FORWARD, INNER, CONTEXT = 64, 4, 2, 96, 32, 512
_DOTS: dict[str, Any] = {
    "attention.head_count_kv": HEADS, "expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": INNER,
    "expert_shared_count": 2, "leading_dense_block_count": 1, "expert_gating_func": 2, "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
}  # fmt: skip
Checkpoint = tuple[dict[str, Any], dict[str, NDArray[np.float32]]]
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"rope.freq_base": 5_000.0},
    "llama, untied": {},
    "llama, biases": {},
    "llama, biases of queries": {},
    "llama, partial rope": {"rope.dimension_count": 8},
    "llama, linear rope": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    "llama, rope factors": {},
    "llama, experts": {"expert_count": 4, "expert_used_count": 2},
    "llama, yarn": {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128,
    },
    "qwen2, yarn": {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64,
        "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0, "rope.scaling.yarn_attn_factor": 1.3,
    },
    "qwen3, yarn": {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128,
        "rope.scaling.attn_factor": 1.2,
    },
    "qwen2": {"rope.freq_base": 1_000_000.0},
    "qwen2, mimo": {"rope.freq_base": 640_000.0},
    "qwen3": {"attention.key_length": 32, "attention.value_length": 32},
    **{
        name: {"rope.freq_base": 1_000_000.0, "rope.dimension_sections": [2, 3, 3, 0]}
        for name in ("qwen2vl", "qwen2vl, first")
    },
    "qwen3vl": {
        "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_sections": [6, 5, 5, 0],
        "n_deepstack_layers": 1,
    },
    "qwen3vlmoe": {
        "attention.key_length": 32, "attention.value_length": 32, "expert_count": 8, "expert_used_count": 3,
        "expert_feed_forward_length": 96, "rope.dimension_sections": [6, 5, 5, 0],
    },
    "qwen3moe": {
        "attention.key_length": 32, "attention.value_length": 32, "expert_count": 8, "expert_used_count": 3,
        "expert_feed_forward_length": INNER,
    },
    "qwen2moe": {
        "expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": INNER,
        "expert_shared_feed_forward_length": 128,
    },
    "granitemoe": {
        "embedding_scale": 6.0, "residual_scale": 0.4, "logit_scale": 0.5, "attention.scale": 0.1, "expert_count": 5,
        "expert_used_count": 2,
    },
    "granitemoe, shared": {
        "embedding_scale": 6.0, "residual_scale": 0.4, "logit_scale": 0.5, "attention.scale": 0.1, "expert_count": 5,
        "expert_used_count": 2, "expert_shared_feed_forward_length": 64,
    },
    "mellum": {
        "attention.key_length": 32, "attention.value_length": 32, "expert_count": 8, "expert_used_count": 3,
        "expert_feed_forward_length": INNER, "attention.sliding_window": 16, "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128,
    },
    "olmoe": {"expert_count": 8, "expert_used_count": 3, "attention.head_count_kv": HEADS},
    "gpt-oss": {
        "attention.key_length": 32, "attention.value_length": 32, "expert_count": 8, "expert_used_count": 3,
        "expert_feed_forward_length": INNER, "attention.sliding_window": 16, "rope.freq_base": 150_000.0,
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128,
    },
    "seed_oss": {"attention.key_length": 32, "attention.value_length": 32},
    "internlm2": {},
    "minimax-m2": {
        "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 16, "expert_count": 8,
        "expert_used_count": 3, "feed_forward_length": INNER, "expert_feed_forward_length": INNER,
        "expert_gating_func": 2,
    },
    "llama4": {
        "attention.key_length": 32, "attention.value_length": 32, "rope.freq_base": 500_000.0, "expert_count": 8,
        "expert_used_count": 1, "expert_feed_forward_length": INNER, "interleave_moe_layer_step": 1,
    },
    "llama4, chunks": {
        "attention.key_length": 32, "attention.value_length": 32, "expert_count": 6, "expert_used_count": 2,
        "expert_feed_forward_length": INNER, "interleave_moe_layer_step": 2, "attention.sliding_window": 24,
        "attention.temperature_scale": 0.4, "attention.temperature_length": 16,
    },
    "llama4, many experts": {
        "expert_count": 128, "expert_used_count": 1, "expert_feed_forward_length": INNER,
        "interleave_moe_layer_step": 2,
    },
    "llama4, dense": {
        "rope.layers": [True, False, True, True, True], "attention.sliding_window": 24,
        "attention.sliding_window_pattern": [False, True, True, False, False], "attention.temperature_scale": 0.0,
    },
    "ernie4_5": {"attention.key_length": 32, "attention.value_length": 32, "rope.freq_base": 500_000.0},
    "ernie4_5-moe": {
        "attention.key_length": 32, "attention.value_length": 32, "rope.freq_base": 500_000.0, "expert_count": 8,
        "expert_used_count": 3, "expert_feed_forward_length": INNER, "expert_shared_feed_forward_length": 64,
        "leading_dense_block_count": 1, "interleave_moe_layer_step": 1,
    },
    "ernie4_5-moe, every second": {
        "attention.key_length": 32, "attention.value_length": 32, "rope.freq_base": 500_000.0, "expert_count": 6,
        "expert_used_count": 2, "expert_feed_forward_length": INNER, "leading_dense_block_count": 0,
        "interleave_moe_layer_step": 2,
    },
    "mistral3": {
        "attention.key_length": 32, "attention.value_length": 32, "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16,
        "rope.scaling.yarn_log_multiplier": 1.0, "rope.scaling.yarn_beta_fast": 16.0,
        "attention.temperature_scale": 0.3,
    },
    "glm4": {"rope.dimension_count": 8},
    "exaone4": {},
    "exaone4, window": {
        "attention.sliding_window": 16, "attention.sliding_window_pattern": [True, True, True, False, True],
    },
    "gemma": {"attention.key_length": 32, "attention.value_length": 32},
    "gemma2": {
        "attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": 16,
        "attn_logit_softcapping": 4.0, "final_logit_softcapping": 12.0,
    },
    "gemma3": {
        "attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": 16,
        "rope.freq_base": 1_000_000.0,
    },
    "gemma3, cap": {
        "attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": 16,
        "final_logit_softcapping": 12.0,
    },
    **gemma3n.VARIANTS,
    **gemma4.VARIANTS,
    **qwen35.VARIANTS,
    **mamba2.VARIANTS,
    **latent.VARIANTS,
    **ling.VARIANTS,
    "dots1": _DOTS,
    "dots1, no bias": {
        **_DOTS, "expert_group_count": 4, "expert_group_used_count": 2, "expert_weights_norm": False,
    },
    "dots1, window": {
        **_DOTS, "attention.sliding_window": 16, "attention.sliding_window_pattern": [False, False, True],
        "attention.head_count_kv": KV_HEADS,
    },
    **{
        name: {
            "rope.dimension_count": 8, "expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": INNER,
            "expert_shared_count": 1, "leading_dense_block_count": 1, "expert_gating_func": 2,
            "expert_weights_norm": True, "expert_weights_scale": 1.5,
        }
        for name in ("glm4moe", "glm4moe, head norms")
    },
    "phi2": {"rope.dimension_count": 8},
    "phi2, joined": {"rope.dimension_count": 4, "attention.head_count_kv": HEADS},
    "phi3": {"attention.sliding_window": 24},
    "phi3, long": {"rope.dimension_count": 12, "rope.scaling.attn_factor": 1.19},
    "starcoder2": {"rope.freq_base": 100_000.0},
    "granite": {"embedding_scale": 6.0, "residual_scale": 0.4, "logit_scale": 0.5, "attention.scale": 0.1},
    "smollm3": {"rope.freq_base": 2_000_000.0},
    "olmo": {"attention.clamp_kqv": 1.5},
    "olmo, untied": {},
    "olmo2": {"rope.freq_base": 500_000.0},
    "olmo2, window": {
        "attention.sliding_window": 16, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 128,
    },
    "minicpm": {"embedding_scale": 6.0, "residual_scale": 0.75, "logit_scale": 0.5},
    "minicpm, older": {"attention.head_count_kv": HEADS},
    "granite, no positions": {
        "embedding_scale": 6.0, "residual_scale": 0.4, "logit_scale": 0.5, "attention.scale": 0.1,
        "rope.scaling.finetuned": False,
    },
    "llama, factor alone": {"rope.scaling.factor": 4.0},
    "llama, old name of a factor": {"rope.scale_linear": 4.0, "rope.scaling.attn_factor": 1.3},
    "gemma3, period": {
        "attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": 16,
        "rope.freq_base": 1_000_000.0, "attention.sliding_window_pattern": 3, "rope.freq_base_swa": 5_000.0,
    },
    "qwen2, per layer": {
        "rope.freq_base": 1_000_000.0, "attention.head_count": [HEADS] * 2, "feed_forward_length": [FEED_FORWARD] * 2,
    },
    "stablelm": {"rope.dimension_count": 4},
    "stablelm, parallel": {"rope.dimension_count": 4},
    "stablelm, head norms": {"rope.dimension_count": 4},
    "gpt2": {"attention.head_count_kv": HEADS},
    **{name: {"attention.head_count_kv": HEADS} for name in ("opt", "opt, norms after")},
    "starcoder": {"attention.head_count_kv": 1},
    "gptj": {"rope.dimension_count": 8, "attention.head_count_kv": HEADS},
    "gptj, codegen": {"rope.dimension_count": 4, "attention.head_count_kv": HEADS},
    "gptneox": {"rope.dimension_count": 4, "use_parallel_residual": True, "attention.head_count_kv": HEADS},
    "gptneox, sequential": {"use_parallel_residual": False, "attention.head_count_kv": HEADS},
    "falcon": {"attention.head_count_kv": 1},
    "falcon, two norms": {},
    "falcon, groups": {"rope.freq_base": 500_042.0},
    "hunyuan-dense": {"attention.key_length": 32, "attention.value_length": 32},
    "hunyuan-dense, alpha": {
        "attention.key_length": 32, "attention.value_length": 32, "rope.scaling.alpha": 50.0,
    },
    "hunyuan-moe": {
        "attention.key_length": 32, "attention.value_length": 32, "expert_count": 8, "expert_used_count": 3,
        "expert_feed_forward_length": FEED_FORWARD, "expert_shared_feed_forward_length": FEED_FORWARD,
    },
    "arcee": {},
    "apertus": {"rope.freq_base": 12_000_000.0},
    "afmoe": {
        "attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": 16, "expert_count": 8,
        "expert_used_count": 3, "expert_feed_forward_length": INNER, "expert_shared_count": 2,
        "leading_dense_block_count": 1, "expert_gating_func": 2, "expert_weights_norm": True,
        "expert_weights_scale": 2.8,
    },
    "cohere2": {"attention.sliding_window": 16, "logit_scale": 0.5},
    "cohere2moe": {
        "attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": 16, "logit_scale": 0.5,
        "expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": INNER, "expert_shared_count": 2,
        "expert_shared_feed_forward_length": 2 * INNER, "leading_dense_block_count": 1, "expert_gating_func": 2,
        "expert_weights_norm": True,
    },
    "cohere2moe, rms": {
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.sliding_window": 16, "logit_scale": 0.5,
        "attention.sliding_window_pattern": [False, True, True, False, True, True], "expert_count": 6,
        "expert_used_count": 2, "expert_feed_forward_length": INNER, "expert_shared_count": 2,
        "leading_dense_block_count": 2, "expert_gating_func": 1, "expert_weights_norm": True,
    },
    "cohere2moe, sum": {
        "attention.sliding_window": 16, "logit_scale": 0.5,
        "attention.sliding_window_pattern": [False, True, True, False, True, True], "expert_count": 6,
        "expert_used_count": 2, "expert_feed_forward_length": INNER, "expert_shared_count": 1,
        "expert_gating_func": 3, "expert_weights_norm": True, "expert.results_are_averaged": False,
        "expert.layers": [False, True, False, True, True, True],
        "rope.layers": [False, True, True, False, True, True],
    },
    "command-r": {"logit_scale": 0.5},
    "command-r, head norms": {"logit_scale": 0.5},
    "lfm2": {
        "attention.head_count_kv": [0, KV_HEADS, 0, KV_HEADS, 0], "shortconv.l_cache": 3, "rope.freq_base": 1_000_000.0,
    },
    "lfm2moe": {
        "attention.head_count_kv": [0, KV_HEADS, 0], "shortconv.l_cache": 3, "expert_count": 8, "expert_used_count": 3,
        "expert_feed_forward_length": INNER, "leading_dense_block_count": 1, "expert_gating_func": 2,
    },
    "lfm2, window": {
        "attention.head_count_kv": [KV_HEADS, 0, 0, KV_HEADS, 0], "shortconv.l_cache": 4,
        "attention.sliding_window": 16,
    },
}  # fmt: skip
"""What each states besides the common sizes. Variants have their names after a comma."""
LAYERS = {
    "gemma3": 7, "smollm3": 4, "cohere2": 5, "olmo2": 5, "mellum": 5, "gpt-oss": 3, "gemma2": 3, "exaone4": 5,
    "lfm2": 5, "lfm2moe": 3, "qwen35": 5, "qwen35moe": 3, "qwen3next": 3, "granitehybrid": 3,
    "nemotron_h": 5, "nemotron_h_moe": 4, "deepseek2": 3, "glm4moe": 3, "bailingmoe2": 3, "ernie4_5-moe": 3,
    "afmoe": 5, "gemma3n": 8, "dots1": 3, "llama4": 5, "cohere2moe": 6,
}  # fmt: skip
"""Where two are too few to show every kind."""
LAYER_NORM = (
    "starcoder", "starcoder2", "stablelm", "gpt2", "gptj", "gptneox", "opt", "phi2", "falcon", "olmo", "cohere2",
    "cohere2moe", "command-r",
)  # fmt: skip
BIASED = ("starcoder", "starcoder2", "gpt2", "gptneox", "opt", "phi2")
"""All layers and norms have biases."""
LEARNED_POSITIONS = ("gpt2", "starcoder", "opt")
_BIASED_NORMS = (*BIASED, "stablelm", "gptj", "falcon")
_BIASED_OUTPUT = ("phi2", "gptj")
_BIASED_QUERIES = ("stablelm", "llama, biases", "llama, biases of queries")
JOINED = ("phi3", "gpt2", "starcoder", "gptneox", "falcon", "bailingmoe2")
"""Queries, keys and values are one tensor."""
JOINED_GATES = ("phi3", "glm4")
"""So are a feed-forward layer's two inputs."""
SANDWICHED = ("gemma2", "gemma3", "olmo2", "glm4", "exaone4", "afmoe")
"""What layers add is normalised."""
UNGATED = (
    "starcoder", "starcoder2", "gpt2", "gptj", "gptneox", "opt", "phi2", "falcon", "arcee", "apertus", *mamba2.NEMOTRON,
)  # fmt: skip
UNTIED = (
    "deepseek2, joined", "deepseek2, groups", "deepseek2, groups of sigmoids, joined", "deepseek2, glm",
    "nemotron_h", "nemotron_h_moe", *ling.VARIANTS, "minimax-m2", "arcee", "apertus", "afmoe",
    "dots1", "dots1, no bias", "dots1, window",
    "llama4", "qwen2vl", "qwen2vl, first", "ernie4_5-moe, every second",
    "llama, untied", "llama, biases", "llama, biases of queries",
    "internlm2", "gpt-oss", "olmoe", "qwen2moe", "mellum", "qwen2", "qwen2, mimo", "phi3", "phi3, long", "olmo2",
    "olmo2, window", "falcon-h1, norms", "stablelm", "stablelm, parallel", "stablelm, head norms",
    "gptneox", "gptneox, sequential", "phi2", "phi2, joined", "gptj", "gptj, codegen",
    "falcon, groups", "olmo, untied",
)  # fmt: skip


XIELU = {
    "xielu.alpha_p": [0.8, -0.6], "xielu.alpha_n": [-1.05, 1.3], "xielu.beta": [0.5, 0.4], "xielu.eps": [-1e-6, -0.2],
}  # fmt: skip
"""What Apertus states of its layers' activations, without the name of the architecture."""


def tiny(name: str, seed: int = 0) -> Checkpoint:
    """Metadata and tensors of a checkpoint of this architecture, which the caller may change."""
    metadata, tensors = _made(name, seed, LAYERS.get(name.partition(",")[0], 2))
    return copy.deepcopy(metadata), {key: array.copy() for key, array in tensors.items()}


def write_tiny(path: Path, name: str) -> Path:
    """A GGUF file with them."""
    return write_gguf(path, *tiny(name))


@cache
def _made(name: str, seed: int, layers: int) -> Checkpoint:
    kind = name.partition(",")[0]
    norm = "layer_norm" if kind in LAYER_NORM else "layer_norm_rms"
    stated: dict[str, Any] = {
        "block_count": layers,
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        f"attention.{norm}_epsilon": 1e-5,
        **ARCHITECTURES[name],
    }
    metadata = {"general.architecture": kind, **{f"{kind}.{key}": value for key, value in stated.items()}}
    metadata |= letters_tokenizer() | (XIELU if kind == "apertus" else {})
    made = _Tensors(name, stated, np.random.default_rng(seed))
    vocabulary = len(metadata["tokenizer.ggml.tokens"])
    tensors = {"token_embd.weight": 3 * made.matrix(vocabulary, HIDDEN)}
    if name == "opt, norms after":
        tensors = {
            "token_embd.weight": 3 * made.matrix(vocabulary, INNER), "embd_in.weight": made.matrix(HIDDEN, INNER),
            "embd_out.weight": made.matrix(INNER, HIDDEN),
        }  # fmt: skip
    elif kind != "olmo":
        tensors |= made.norm(last_norm(kind))
    if name in UNTIED:
        tensors["output.weight"] = 3 * made.matrix(vocabulary, HIDDEN)
    if kind in _BIASED_OUTPUT:
        tensors["output.bias"] = made.bias(vocabulary)
    if name == "llama, rope factors":
        tensors["rope_freqs.weight"] = made.random.uniform(1, 8, made.size // 2).astype(np.float32)
    if name == "phi3, long":
        tensors["rope_factors_short.weight"] = made.random.uniform(1, 3, 6).astype(np.float32)
        tensors["rope_factors_long.weight"] = made.random.uniform(3, 9, 6).astype(np.float32)
    if kind in LEARNED_POSITIONS:
        tensors["position_embd.weight"] = made.matrix(CONTEXT, HIDDEN)
    if kind == "gemma4":
        tensors |= gemma4.whole_tensors(name, stated, made, vocabulary)
    if kind == gemma3n.KIND:
        tensors |= gemma3n.whole_tensors(stated, made, vocabulary)
    for layer in range(stated["block_count"]):
        tensors |= {f"blk.{layer}.{part}": weights for part, weights in made.block(layer).items()}
    return metadata, tensors


def last_norm(kind: str) -> str:
    """The name of the last norm in GGUF files of an architecture."""
    return "token_embd_norm" if kind in ("lfm2", "lfm2moe") else "output_norm"


class _Tensors:
    """Makes the tensors of a block."""

    def __init__(self, name: str, stated: dict[str, Any], random: np.random.Generator) -> None:
        self.name, self.random = name, random
        self.kind = name.partition(",")[0]
        self.size = stated.get("attention.key_length", HIDDEN // HEADS)
        self.stated = stated
        heads = stated["attention.head_count_kv"]
        self.heads_by_layer = heads if isinstance(heads, list) else [heads] * stated["block_count"]
        self.queries, self.keys = HEADS * self.size, max(self.heads_by_layer) * self.size

    def block(self, layer: int) -> dict[str, Any]:
        if self.kind == "gemma4":
            return gemma4.block(self.name, self.stated, self, layer)
        if self.kind == gemma3n.KIND:
            return gemma3n.block(self.stated, self, layer)
        if self.kind == latent.KIND:
            own = latent.attention_tensors(self.stated, self, HIDDEN)
            return own | self._feed_forward(layer) | self.norm("attn_norm") | self.norm("ffn_norm")
        mixer = self._attention() if self.heads_by_layer[layer] else self._without_attention()
        if self.kind == "falcon-h1":
            mixer |= self._without_attention()
        if self.kind in mamba2.NEMOTRON:
            return self._of_one_part(layer)
        if self.kind in qwen35.KINDS and qwen35.is_recurrent(self.stated, layer):
            mixer = qwen35.mixer(self.name, self, self.stated, HIDDEN)
        found = {**mixer, **self._feed_forward(layer)}
        before = [] if self.kind in ("olmo2", "exaone4") else ["attn_norm", "ffn_norm"]
        if self.kind in ("gpt-oss", "seed_oss", "glm4moe", *qwen35.KINDS):
            before[1] = "post_attention_norm"
        if self.kind == "gpt-oss":
            found["attn_sinks.weight"] = 2 * self.bias(HEADS)
        if self.kind in ("cohere2", "cohere2moe", "command-r", "phi2", "gptj", "falcon") or self.name in (
            "stablelm, parallel",
            "stablelm, head norms",
        ):
            before = ["attn_norm"]
        if self.kind == "olmo":
            before = []
        if self.name == "opt, norms after":
            before = ["post_attention_norm", "post_ffw_norm"]
        if self.name == "falcon, two norms":  # the second one is that of attention
            before = ["attn_norm", "attn_norm_2"]
        after = ["post_attention_norm", "post_ffw_norm"] if self.kind in SANDWICHED else []
        for name in (*before, *after):
            found |= self.norm(name)
        if self.kind == "falcon-h1":  # as llama.cpp's converter writes it
            found["ffn_norm"] = found.pop("ffn_norm.weight")
        return found

    def _of_one_part(self, layer: int) -> dict[str, Any]:
        norm = self.norm("attn_norm")
        if self.stated["feed_forward_length"][layer]:
            return norm | self._feed_forward(layer)
        return norm | (self._attention() if self.heads_by_layer[layer] else self._without_attention())

    def _attention(self) -> dict[str, Any]:
        parts = {
            "attn_q": 2 * self.matrix(self.queries * (2 if self.kind in qwen35.KINDS else 1), HIDDEN),
            "attn_k": 2 * self.matrix(self.keys, HIDDEN),
            "attn_v": self.matrix(self.keys, HIDDEN),
        }
        if self.kind in JOINED or self.name == "phi2, joined":
            parts = {"attn_qkv": np.concatenate(list(parts.values()))}
        found = {f"{part}.weight": weights for part, weights in parts.items()}
        if self.kind in ("qwen2", "qwen2vl", "qwen2moe", "gpt-oss", "glm4", "glm4moe", "seed_oss", *BIASED) or (
            self.name in _BIASED_QUERIES
        ):
            found |= {f"{part}.bias": self.bias(len(weights)) for part, weights in parts.items()}
        if self.kind in (
            "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "mellum", "gemma3", "exaone4", "lfm2", "lfm2moe", "afmoe",
            "apertus", "hunyuan-dense", "hunyuan-moe", "dots1", ling.KIND, *qwen35.KINDS,
        ) or self.name == "glm4moe, head norms":  # fmt: skip
            found |= self.norm("attn_q_norm", self.size) | self.norm("attn_k_norm", self.size)
        if self.name in ("stablelm, head norms", "command-r, head norms"):
            for part, width in (("q", self.queries), ("k", self.keys)):
                weights = self.random.uniform(0.5, 1.5, (width // self.size, self.size)).astype(np.float32)
                found[f"attn_{part}_norm.weight"] = weights
        if self.kind in ("olmo2", "olmoe", "minimax-m2"):
            found |= self.norm("attn_q_norm", self.queries) | self.norm("attn_k_norm", self.keys)
        if self.kind == "afmoe":
            found["attn_gate.weight"] = 2 * self.matrix(self.queries, HIDDEN)
        return found | self._layer("attn_output", HIDDEN, self.queries)

    def _without_attention(self) -> dict[str, Any]:
        if self.kind not in mamba2.KINDS:
            return self._convolution()
        return mamba2.mixer(self, self.stated, HIDDEN, has_norm=self.name != "falcon-h1")

    def _convolution(self) -> dict[str, Any]:
        """LFM2's, whose output is about as large as that of attention."""
        return {
            "shortconv.in_proj.weight": 1.5 * self.matrix(3 * HIDDEN, HIDDEN),
            "shortconv.conv.weight": self.bias(HIDDEN * self.stated["shortconv.l_cache"]).reshape(HIDDEN, -1),
            "shortconv.out_proj.weight": self.matrix(HIDDEN, HIDDEN),
        }

    def _feed_forward(self, layer: int) -> dict[str, Any]:
        first, step = self.stated.get("leading_dense_block_count", 0), self.stated.get("interleave_moe_layer_step", 1)
        has_experts = "expert_count" in self.stated and layer >= first and (layer + 1) % step == 0
        if has_experts and self.stated.get("expert.layers", {layer: True})[layer]:
            return self._experts()
        up = 2 * FEED_FORWARD if self.kind in JOINED_GATES else FEED_FORWARD
        found = self._layer("ffn_up", up, HIDDEN) | self._layer("ffn_down", HIDDEN, FEED_FORWARD)
        if self.kind not in (*UNGATED, *JOINED_GATES):
            found |= self._layer("ffn_gate", FEED_FORWARD, HIDDEN)
        return found

    def _experts(self) -> dict[str, Any]:
        count, inner = self.stated["expert_count"], self.stated.get("expert_feed_forward_length", FEED_FORWARD)
        shapes = {"gate": (inner, HIDDEN), "up": (inner, HIDDEN), "down": (HIDDEN, inner)}
        if self.kind in UNGATED:
            del shapes["gate"]
        found = {"ffn_gate_inp.weight": 2 * self.matrix(count, HIDDEN)}
        for name, shape in shapes.items():
            found[f"ffn_{name}_exps.weight"] = np.stack([self.matrix(*shape) for _ in range(count)])
            if self.kind == "gpt-oss":  # gate and up projections reach their clamping limits
                found[f"ffn_{name}_exps.bias"] = 4 * self.bias(count * shape[0]).reshape(count, -1)
        if (
            self.kind in ("lfm2moe", "nemotron_h_moe", "glm4moe", "minimax-m2", "afmoe")
            or self.name == "ernie4_5-moe"
            or (self.kind in (ling.KIND, "dots1") and "no bias" not in self.name)
            or (self.kind == latent.KIND and "expert_gating_func" in self.stated)
        ):
            found["exp_probs_b.bias"] = self.bias(count) / 4
        if self.kind == "gpt-oss":
            found["ffn_gate_inp.bias"] = self.bias(count)
        shared = self.stated.get("expert_shared_feed_forward_length", 0)
        if self.kind in (latent.KIND, "glm4moe", "afmoe", "dots1"):
            shared = inner * self.stated["expert_shared_count"]
        if self.kind == "llama4":
            shared = inner
        if self.kind == "cohere2moe":
            shared = shared or inner * self.stated["expert_shared_count"]
        if self.kind == ling.KIND:
            shared = ling.shared_size(self.stated)
        if shared:
            for name in shapes:
                shape = (HIDDEN, shared) if name == "down" else (shared, HIDDEN)
                found[f"ffn_{name}_shexp.weight"] = self.matrix(*shape)
        if self.kind in ("qwen2moe", "qwen35moe", "qwen3next"):
            found["ffn_gate_inp_shexp.weight"] = self.bias(HIDDEN) / 4
        return found

    def _layer(self, name: str, rows: int, inputs: int) -> dict[str, Any]:
        found = {f"{name}.weight": self.matrix(rows, inputs)}
        has_bias = self.kind in (*BIASED, "gpt-oss") or self.name == "llama, biases"
        has_bias |= self.kind == "gptj" and name.startswith("ffn")
        return found | ({f"{name}.bias": self.bias(rows)} if has_bias else {})

    def norm(self, name: str, length: int = HIDDEN) -> dict[str, Any]:
        found = {f"{name}.weight": self.random.uniform(0.5, 1.5, length).astype(np.float32)}
        return found | ({f"{name}.bias": self.bias(length)} if self.kind in _BIASED_NORMS else {})

    def matrix(self, rows: int, inputs: int) -> Any:
        return (self.random.normal(size=(rows, inputs)) / np.sqrt(inputs)).astype(np.float32)

    def bias(self, length: int) -> Any:
        return self.random.normal(size=length).astype(np.float32)
