"""GGUF files of random weights in the shapes of published models, with as many of their layers as a measurement needs.

Mixtures of experts and hybrids: what they state, and which tensors of which types their files have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from training.gguf_file import write_tokenizer

from benchmarks.random_model import LOGIT_DEVIATION, tokenizer

Stored = tuple[Any, gguf.GGMLQuantizationType]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model's files state without the name of its architecture, and how many tokens and layers it has here."""

    architecture: str
    vocab_size: int
    layers: int
    stated: dict[str, Any]
    is_tied: bool = False
    """Whether the embeddings are the last matrix, too."""


_DELTA = {
    "attention.key_length": 256, "attention.value_length": 256, "rope.dimension_count": 64, "rope.freq_base": 1e7,
    "full_attention_interval": 4, "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16,
    "rope.dimension_sections": [11, 11, 10, 0], "context_length": 262_144,
}  # fmt: skip
_GRANITE = {
    "context_length": 131_072, "rope.freq_base": 1e4, "rope.scaling.finetuned": False, "embedding_scale": 12.0,
    "residual_scale": 0.22, "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 1,
}  # fmt: skip
SHAPES = {
    "qwen3-30b": Shape("qwen3moe", 151_936, 8, {
        "context_length": 40_960, "rope.freq_base": 1e6, "embedding_length": 2048, "feed_forward_length": 6144,
        "attention.head_count": 32, "attention.head_count_kv": 4, "attention.key_length": 128,
        "attention.value_length": 128, "expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768,
    }),
    "gpt-oss-20b": Shape("gpt-oss", 201_088, 8, {
        "context_length": 131_072, "rope.freq_base": 150_000.0, "embedding_length": 2880, "feed_forward_length": 2880,
        "attention.head_count": 64, "attention.head_count_kv": 8, "attention.key_length": 64,
        "attention.value_length": 64, "expert_count": 32, "expert_used_count": 4, "expert_feed_forward_length": 2880,
        "attention.sliding_window": 128, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 4096,
    }),
    "qwen3.5-0.8b": Shape("qwen35", 248_320, 24, {
        **_DELTA, "embedding_length": 1024, "feed_forward_length": 3584, "attention.head_count": 8,
        "attention.head_count_kv": 2, "ssm.time_step_rank": 16, "ssm.inner_size": 2048,
    }, is_tied=True),
    "qwen3.5-35b": Shape("qwen35moe", 248_320, 4, {
        **_DELTA, "embedding_length": 2048, "feed_forward_length": 512, "attention.head_count": 16,
        "attention.head_count_kv": 2, "ssm.time_step_rank": 32, "ssm.inner_size": 4096, "expert_count": 256,
        "expert_used_count": 8, "expert_feed_forward_length": 512, "expert_shared_feed_forward_length": 512,
    }),
    "granite-4-h-micro": Shape("granitehybrid", 100_352, 10, {
        **_GRANITE, "embedding_length": 2048, "feed_forward_length": 8192, "attention.head_count": 32,
        "attention.head_count_kv": [0] * 5 + [8] + [0] * 4, "attention.scale": 0.015625, "logit_scale": 8.0,
        "ssm.time_step_rank": 64, "ssm.inner_size": 4096,
    }, is_tied=True),
    "granite-4-h-tiny": Shape("granitehybrid", 100_352, 10, {
        **_GRANITE, "embedding_length": 1536, "feed_forward_length": 512, "attention.head_count": 12,
        "attention.head_count_kv": [0] * 5 + [4] + [0] * 4, "attention.scale": 0.0078125, "logit_scale": 6.0,
        "ssm.time_step_rank": 48, "ssm.inner_size": 3072, "expert_count": 64, "expert_used_count": 6,
        "expert_feed_forward_length": 512, "expert_shared_feed_forward_length": 1024,
    }, is_tied=True),
    "deepseek-v2-lite": Shape("deepseek2", 102_400, 9, {
        "context_length": 163_840, "rope.freq_base": 1e4, "embedding_length": 2048, "feed_forward_length": 10_944,
        "attention.head_count": 16, "attention.head_count_kv": 1, "attention.kv_lora_rank": 512,
        "attention.q_lora_rank": 0, "attention.key_length": 576, "attention.value_length": 512,
        "attention.key_length_mla": 192, "attention.value_length_mla": 128, "rope.dimension_count": 64,
        "leading_dense_block_count": 1, "expert_count": 64, "expert_used_count": 6, "expert_shared_count": 2,
        "expert_feed_forward_length": 1408, "expert_weights_scale": 1.0, "rope.scaling.type": "yarn",
        "rope.scaling.factor": 40.0, "rope.scaling.original_context_length": 4096,
        "rope.scaling.yarn_log_multiplier": 0.0707,
    }),
}  # fmt: skip
_SCALES = {
    "Q4_K": ((0, 1.5e-4), (2, 1.1e-3)), "Q6_K": ((208, 4.5e-5),), "Q8_0": ((0, 3e-4),), "Q5_0": ((0, 2.4e-3),),
    "MXFP4": (),
}  # fmt: skip
"""Where a block has scales, float16, and values with which random integers are weights of a usual size."""
_OF_ODD_ROWS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
"""What rows that are no whole blocks of 256 weights have instead."""


def write(path: Path, shape: Shape, layers: int | None = None, seed: int = 0) -> None:
    """Write a file with random bits as weights, in the types that published files have. `layers`: other than the
    shape's."""
    stated = {"block_count": layers or shape.layers, "attention.layer_norm_rms_epsilon": 1e-6, **shape.stated}
    heads = stated["attention.head_count_kv"]
    if isinstance(heads, list):
        stated["attention.head_count_kv"] = (heads * -(-stated["block_count"] // len(heads)))[: stated["block_count"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, shape.architecture, use_temp_file=False)
    for key, value in stated.items():
        _state(writer, f"{shape.architecture}.{key}", value)
    is_oss = shape.architecture == "gpt-oss"
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_MXFP4_MOE if is_oss else gguf.LlamaFileType.MOSTLY_Q4_K_M)
    words = json.loads(tokenizer(shape.vocab_size).to_str())
    write_tokenizer(writer, {"vocab_size": shape.vocab_size, "eos_token_id": 0}, words, "gpt-2")
    for name, (values, kind) in _Tensors(shape, stated, np.random.default_rng(seed)).all():
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _state(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


class _Tensors:
    """Tensors of random bits."""

    def __init__(self, shape: Shape, stated: dict[str, Any], random: np.random.Generator) -> None:
        self._shape, self._stated, self._random = shape, stated, random
        self._is_oss = shape.architecture == "gpt-oss"
        self._hidden = stated["embedding_length"]
        heads = stated["attention.head_count"]
        self._size = stated.get("attention.key_length", self._hidden // heads)
        self._has_delta = "full_attention_interval" in stated
        self._is_latent = "attention.kv_lora_rank" in stated

    def all(self) -> Iterator[tuple[str, Stored]]:
        """Yield names and tensors; where Q4_K_M alternates, every second layer has Q6_K."""
        vocabulary, hidden = self._shape.vocab_size, self._hidden
        last = "Q8_0" if self._is_oss else "Q6_K"
        first = "Q8_0" if self._is_oss else "Q4_K"
        yield "token_embd.weight", self._blocks(last if self._shape.is_tied else first, vocabulary, hidden)
        if not self._shape.is_tied:
            yield "output.weight", self._blocks(last, vocabulary, hidden)
        scale = LOGIT_DEVIATION * self._stated.get("logit_scale", 1.0) / (0.02 * math.sqrt(hidden))
        yield "output_norm.weight", self._filled(scale, hidden)
        for layer in range(self._stated["block_count"]):
            for name, stored in self._layer(layer):
                yield f"blk.{layer}.{name}", stored

    def _layer(self, layer: int) -> Iterator[tuple[str, Stored]]:
        better = "Q6_K" if layer % 2 else "Q4_K"
        heads = self._stated["attention.head_count_kv"]
        of_layer = heads[layer] if isinstance(heads, list) else heads
        if self._has_delta and (layer + 1) % self._stated["full_attention_interval"]:
            yield from self._delta()
        elif self._is_latent:
            yield from self._latent_attention(better)
        elif of_layer:
            yield from self._attention(of_layer, better)
        else:
            yield from self._state_space()
        has_experts = "expert_count" in self._stated and layer >= self._stated.get("leading_dense_block_count", 0)
        yield from self._experts(better) if has_experts else self._dense(better)
        has_other_name = self._is_oss or self._has_delta
        for name in ("attn_norm", "post_attention_norm" if has_other_name else "ffn_norm"):
            yield f"{name}.weight", self._filled(1.0, self._hidden)

    def _attention(self, kv_heads: int, better: str) -> Iterator[tuple[str, Stored]]:
        heads, size, usual = self._stated["attention.head_count"], self._size, "Q8_0" if self._is_oss else "Q4_K"
        queries = heads * size * (2 if self._has_delta else 1)
        yield from self._matrix("attn_q", usual, queries, self._hidden)
        yield from self._matrix("attn_k", usual, kv_heads * size, self._hidden)
        yield from self._matrix("attn_v", usual if self._is_oss else better, kv_heads * size, self._hidden)
        yield from self._matrix("attn_output", usual, self._hidden, heads * size)
        if self._is_oss:
            yield "attn_sinks.weight", self._filled(1.0, heads)
        elif self._shape.architecture != "granitehybrid":
            for name in ("attn_q_norm", "attn_k_norm"):
                yield f"{name}.weight", self._filled(1.0, size)

    def _latent_attention(self, better: str) -> Iterator[tuple[str, Stored]]:
        stated, hidden = self._stated, self._hidden
        heads, rank, rotated = (
            stated[name] for name in ("attention.head_count", "attention.kv_lora_rank", "rope.dimension_count")
        )
        keys, values = (stated[f"attention.{name}_length_mla"] for name in ("key", "value"))
        yield from self._matrix("attn_q", "Q4_K", heads * keys, hidden)
        yield from self._matrix("attn_kv_a_mqa", "Q4_K", rank + rotated, hidden)
        yield "attn_kv_a_norm.weight", self._filled(1.0, rank)
        yield from self._matrix("attn_k_b", "Q4_K", heads, rank, keys - rotated)
        yield from self._matrix("attn_v_b", better, heads, values, rank)
        yield from self._matrix("attn_output", "Q4_K", hidden, heads * values)

    def _delta(self) -> Iterator[tuple[str, Stored]]:
        stated, hidden = self._stated, self._hidden
        heads, inner, size = stated["ssm.time_step_rank"], stated["ssm.inner_size"], stated["ssm.state_size"]
        width = 2 * stated["ssm.group_count"] * size + inner
        yield from self._matrix("attn_qkv", "Q4_K", width, hidden)
        yield from self._matrix("attn_gate", "Q4_K", inner, hidden)
        yield from self._matrix("ssm_out", "Q4_K", hidden, inner)
        for name in ("ssm_alpha", "ssm_beta"):
            yield from self._matrix(name, "Q8_0", heads, hidden)
        yield "ssm_conv1d.weight", self._floats(0.3, width, stated["ssm.conv_kernel"])
        yield "ssm_a", self._filled(-0.5, heads)
        yield "ssm_dt.bias", self._floats(0.5, heads)
        yield "ssm_norm.weight", self._filled(1.0, inner // heads)

    def _state_space(self) -> Iterator[tuple[str, Stored]]:
        stated, hidden = self._stated, self._hidden
        heads, inner = stated["ssm.time_step_rank"], stated["ssm.inner_size"]
        width = inner + 2 * stated["ssm.group_count"] * stated["ssm.state_size"]
        yield from self._matrix("ssm_in", "Q4_K", inner + width + heads, hidden)
        yield from self._matrix("ssm_out", "Q4_K", hidden, inner)
        yield "ssm_conv1d.weight", self._floats(0.3, width, stated["ssm.conv_kernel"])
        yield "ssm_conv1d.bias", self._floats(0.1, width)
        yield "ssm_a", self._filled(-0.5, heads, 1)
        yield "ssm_d", self._filled(1.0, heads, 1)
        yield "ssm_dt.bias", self._floats(0.5, heads)
        yield "ssm_norm.weight", self._filled(1.0, inner)

    def _dense(self, better: str) -> Iterator[tuple[str, Stored]]:
        inner = self._stated["feed_forward_length"]
        yield from self._matrix("ffn_gate", "Q4_K", inner, self._hidden)
        yield from self._matrix("ffn_up", "Q4_K", inner, self._hidden)
        yield from self._matrix("ffn_down", better, self._hidden, inner)

    def _experts(self, better: str) -> Iterator[tuple[str, Stored]]:
        stated, hidden = self._stated, self._hidden
        count, inner = stated["expert_count"], stated["expert_feed_forward_length"]
        usual, down = ("MXFP4", "MXFP4") if self._is_oss else ("Q4_K", better)
        yield "ffn_gate_inp.weight", self._floats(0.05, count, hidden)
        if self._is_oss:
            yield "ffn_gate_inp.bias", self._floats(0.05, count)
        yield from self._matrix("ffn_gate_exps", usual, count, inner, hidden)
        yield from self._matrix("ffn_up_exps", usual, count, inner, hidden)
        yield from self._matrix("ffn_down_exps", down, count, hidden, inner)
        shared = stated.get("expert_shared_feed_forward_length", inner * stated.get("expert_shared_count", 0))
        if shared:
            yield from self._matrix("ffn_gate_shexp", "Q4_K", shared, hidden)
            yield from self._matrix("ffn_up_shexp", "Q4_K", shared, hidden)
            yield from self._matrix("ffn_down_shexp", better, hidden, shared)
            if self._has_delta:
                yield "ffn_gate_inp_shexp.weight", self._floats(0.05, hidden)

    def _matrix(self, name: str, kind: str, *sizes: int) -> Iterator[tuple[str, Stored]]:
        yield f"{name}.weight", self._blocks(kind, *sizes)
        if self._is_oss:
            yield f"{name}.bias", self._floats(0.05, *sizes[:-1])

    def _blocks(self, kind: str, *sizes: int) -> Stored:
        if sizes[-1] % 256:
            kind = _OF_ODD_ROWS.get(kind, kind)
        stored = gguf.GGMLQuantizationType[kind]
        weights, size = gguf.GGML_QUANT_SIZES[stored]
        found = np.frombuffer(bytearray(self._random.bytes(math.prod(sizes) // weights * size)), np.uint8)
        found = found.reshape(-1, size)
        for place, scale in _SCALES[kind]:
            found[:, place : place + 2] = np.array([scale], "<f2").view(np.uint8)
        if kind == "MXFP4":
            found[:, 0] = 120  # 2 to the power of -7
        return found.reshape(*sizes[:-1], -1), stored

    def _floats(self, deviation: float, *sizes: int) -> Stored:
        values = self._random.standard_normal(sizes, np.float32) * np.float32(deviation)
        return values, gguf.GGMLQuantizationType.F32

    def _filled(self, value: float, *sizes: int) -> Stored:
        return np.full(sizes, value, np.float32), gguf.GGMLQuantizationType.F32
