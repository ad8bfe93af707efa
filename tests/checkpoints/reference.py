"""An independent forward pass in float64, written from the architectures' own documents; nothing is shared with src."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.checkpoints import latent
from tests.checkpoints.gemma3n import Gemma3n
from tests.checkpoints.gemma4 import Gemma4
from tests.checkpoints.mamba2 import NEMOTRON, state_space
from tests.checkpoints.qwen35 import KINDS, delta_net

Array = Any
"""float64, of any shape."""
COHERE = ("command-r", "cohere2", "cohere2moe")
ONE_NORM = ("phi2", "gptj", *COHERE)
"""Attention and the feed-forward layer read the same; StableLM says it by its tensors."""
LAYER_NORM = ("starcoder", "starcoder2", "stablelm", "gpt2", "gptneox", "opt", "falcon", "olmo", *ONE_NORM)
"""The others divide by the root mean square."""
PAIRS = (
    "llama",
    "granite",
    "minicpm",
    "granitemoe",
    "granitehybrid",
    "smollm3",
    *COHERE,
    "glm4",
    "internlm2",
    "mistral3",
    "ernie4_5",
    "arcee",
    "gptj",
    "olmo",
    "ernie4_5-moe",
    "llama4",
)
"""Files with the two dimensions of a rotated pair side by side; the others have them half a head apart."""
NORMALISED = (
    "qwen3moe", "mellum", "llama", "granitemoe", "granitehybrid", "gpt-oss", "lfm2moe", "qwen35moe", "qwen3next",
    "nemotron_h_moe", "minimax-m2", "ernie4_5-moe", "qwen3vlmoe", "hunyuan-moe",
)  # fmt: skip
"""The shares of the experts that are used add up to one."""
NORMAL_LAST = ("hunyuan-dense", "hunyuan-moe")
"""Queries and keys are normalised after their rotation."""
GELU_TANH = ("gemma", "gemma2", "gemma3", "starcoder", "starcoder2", "gpt2", "gptj", "phi2")


class Reference:
    """A decoder. `metadata` as in a GGUF file, `tensors` by GGUF's names."""

    long_rope = "short"
    """Which of LongRoPE's factors count, if there are any: `short` or `long`."""

    def __init__(self, metadata: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
        self.kind = metadata["general.architecture"]
        self.stated = {name.removeprefix(f"{self.kind}."): value for name, value in metadata.items()}
        named = {f"{name}.weight" if name.endswith(".ffn_norm") else name: value for name, value in tensors.items()}
        self.tensors = {name: value.astype(np.float64) for name, value in named.items()}
        stated = self.stated["attention.head_count"]
        self.heads = stated[0] if isinstance(stated, list) else stated
        stated = self.stated["attention.head_count_kv"]
        self.kv_heads = max(stated) if isinstance(stated, list) else stated
        self.size = self.stated.get("attention.key_length", self.stated["embedding_length"] // self.heads)
        kind = "layer_norm" if self.kind in LAYER_NORM else "layer_norm_rms"
        self.epsilon = self.stated[f"attention.{kind}_epsilon"]
        if self.kind == "minicpm" and "embedding_scale" not in self.stated:  # OpenBMB's first ones (arXiv 2404.06395)
            hidden, layers = self.stated["embedding_length"], self.stated["block_count"]
            self.stated |= {"embedding_scale": 12.0, "residual_scale": 1.4 / layers**0.5, "logit_scale": hidden / 256}

    def logits(self, tokens: list[int]) -> Array:
        """Logits at every position, [tokens, vocabulary]."""
        if self.kind == "gemma4":
            return Gemma4(self.stated, self.tensors).logits(tokens)
        if self.kind == "gemma3n":
            return Gemma3n(self.stated, self.tensors).logits(tokens)
        hidden = self.tensors["token_embd.weight"][tokens]
        if "embd_in.weight" in self.tensors:
            hidden = self.linear(hidden, "embd_in")
        if "position_embd.weight" in self.tensors:
            hidden = hidden + self.tensors["position_embd.weight"][: len(tokens)]
        if self.kind in ("gemma", "gemma2", "gemma3", "afmoe"):
            hidden = hidden * math.sqrt(self.stated["embedding_length"])
        hidden = hidden * self.stated.get("embedding_scale", 1.0)
        for layer in range(self.stated["block_count"]):
            hidden = self.block(layer, hidden)
        if "embd_out.weight" in self.tensors:
            hidden = self.linear(hidden, "embd_out")
        else:
            hidden = self.norm(hidden, "token_embd_norm" if self.kind in ("lfm2", "lfm2moe") else "output_norm")
        logits = self.linear(hidden, "output" if "output.weight" in self.tensors else "token_embd")
        scale = self.stated.get("logit_scale", 1.0)
        logits = logits * scale if self.kind in COHERE else logits / scale
        return self.capped(logits, "final_logit_softcapping")

    def capped(self, numbers: Array, key: str) -> Array:
        cap = self.stated.get(key)
        return numbers if cap is None else cap * np.tanh(numbers / cap)

    def block(self, layer: int, hidden: Array) -> Array:
        prefix = f"blk.{layer}."
        has_one_norm = prefix + "ffn_norm.weight" not in self.tensors
        if self.kind in ONE_NORM or (self.kind == "stablelm" and has_one_norm):
            normal = self.norm(hidden, prefix + "attn_norm")
            return hidden + self.attention(layer, normal) + self.feed_forward(prefix, normal)
        if self.kind == "opt" and prefix + "post_ffw_norm.weight" in self.tensors:  # Vaswani et al. 2017, section 3.1
            hidden = self.norm(hidden + self.attention(layer, hidden), prefix + "post_attention_norm")
            return self.norm(hidden + self.feed_forward(prefix, hidden), prefix + "post_ffw_norm")
        if self.kind == "falcon":  # attention has a norm of its own in 40B (arXiv 2311.16867)
            normal = self.norm(hidden, prefix + "attn_norm")
            has_two = prefix + "attn_norm_2.weight" in self.tensors
            read = self.norm(hidden, prefix + "attn_norm_2") if has_two else normal
            return hidden + self.attention(layer, read) + self.feed_forward(prefix, normal)
        if self.stated.get("use_parallel_residual"):
            attended = self.attention(layer, self.norm(hidden, prefix + "attn_norm"))
            return hidden + attended + self.feed_forward(prefix, self.norm(hidden, prefix + "ffn_norm"))
        if self.kind in ("olmo2", "exaone4"):
            hidden = hidden + self.norm(self.attention(layer, hidden), prefix + "post_attention_norm")
            return hidden + self.norm(self.feed_forward(prefix, hidden), prefix + "post_ffw_norm")
        if self.kind in NEMOTRON:
            return hidden + self.only_part(layer, self.norm(hidden, prefix + "attn_norm"))
        mixed = self.recurrence if prefix + "ssm_a" in self.tensors else self.attention
        mixed = self.convolution if prefix + "shortconv.conv.weight" in self.tensors else mixed
        normal = self.norm(hidden, prefix + "attn_norm")
        attended = mixed(layer, normal)
        if self.kind == "falcon-h1":
            attended = attended + self.attention(layer, normal)
        if self.kind in ("gemma2", "gemma3", "glm4", "afmoe"):
            attended = self.norm(attended, prefix + "post_attention_norm")
        hidden = hidden + attended * self.stated.get("residual_scale", 1.0)
        between = "post_attention_norm" if self.kind in ("gpt-oss", "seed_oss", "glm4moe", *KINDS) else "ffn_norm"
        moved = self.feed_forward(prefix, self.norm(hidden, prefix + between))
        if self.kind in ("gemma2", "gemma3", "glm4", "afmoe"):
            moved = self.norm(moved, prefix + "post_ffw_norm")
        return hidden + moved * self.stated.get("residual_scale", 1.0)

    def only_part(self, layer: int, hidden: Array) -> Array:
        """What a layer of Nemotron-H has (NVIDIA, arXiv 2504.03624)."""
        if self.stated["feed_forward_length"][layer]:
            return self.feed_forward(f"blk.{layer}.", hidden)
        mixer = self.attention if self.stated["attention.head_count_kv"][layer] else self.recurrence
        return mixer(layer, hidden)

    def feed_forward(self, prefix: str, hidden: Array) -> Array:
        if prefix + "ffn_gate_inp.weight" in self.tensors:
            return np.array([self.mixture(prefix, row) for row in hidden])
        up = self.linear(hidden, prefix + "ffn_up")
        if self.kind in ("phi3", "glm4"):
            gate, up = np.split(up, 2, axis=-1)
            return self.linear(self.activated(gate) * up, prefix + "ffn_down")
        if prefix + "ffn_gate.weight" in self.tensors:
            return self.linear(self.activated(self.linear(hidden, prefix + "ffn_gate")) * up, prefix + "ffn_down")
        if self.kind == "apertus":
            return self.linear(self.xielu(int(prefix.split(".")[1]), up), prefix + "ffn_down")
        return self.linear(self.activated(up), prefix + "ffn_down")

    def xielu(self, layer: int, x: Array) -> Array:
        """Huang's (arXiv 2411.13010, section 3): what is trained of both alphas is read by softplus, so that one is
        positive, and the other one larger than beta."""
        above, below, beta, eps = (
            self.stated[f"xielu.{name}"][layer] for name in ("alpha_p", "alpha_n", "beta", "eps")
        )
        positive, negative = np.log1p(np.exp(above)) * x**2, np.expm1(np.minimum(x, eps)) - x
        return np.where(x > 0, positive, (beta + np.log1p(np.exp(below))) * negative) + beta * x

    def mixture(self, prefix: str, row: Array) -> Array:
        """The output of the experts with the largest logits for one row, weighted by their shares."""
        logits = self.linear(row, prefix + "ffn_gate_inp")
        if self.kind == "llama4":
            return self.weighed_inputs(prefix, row, logits)
        if self.kind in ("lfm2moe", "nemotron_h_moe") or self.stated.get("expert_gating_func") == 2:
            shares = 1 / (1 + np.exp(-logits))
        else:
            shares = np.exp(logits - logits.max())
            shares /= shares.sum()
        chosen_by = shares + self.tensors.get(f"{prefix}exp_probs_b.bias", 0.0)
        if self.stated.get("expert_group_count", 1) > 1:
            chosen_by = latent.of_best_groups(self.stated, chosen_by)
        order = np.argsort(-chosen_by, kind="stable")
        chosen = order[: self.stated["expert_used_count"]]
        if self.kind in NORMALISED or self.stated.get("expert_weights_norm"):
            shares /= shares[chosen].sum()
        if self.kind == "nemotron_h_moe":
            return self.ungated_experts(prefix, row, shares, chosen)
        shares *= self.stated.get("expert_weights_scale", 1.0)
        total = np.zeros(len(row))
        for expert in chosen:
            gate, up, down = (
                self.tensors[f"{prefix}ffn_{part}_exps.weight"][expert] for part in ("gate", "up", "down")
            )
            if self.kind == "gpt-oss":
                total += shares[expert] * self.clamped_expert(prefix, expert, row)
            else:
                total += shares[expert] * (down @ (self.activated(gate @ row) * (up @ row)))
        if prefix + "ffn_up_shexp.weight" in self.tensors:
            gate, up, down = (self.tensors[f"{prefix}ffn_{part}_shexp.weight"] for part in ("gate", "up", "down"))
            own = self.tensors.get(prefix + "ffn_gate_inp_shexp.weight")
            share = 1.0 if own is None else 1 / (1 + np.exp(-own @ row))
            total += share * (down @ (self.activated(gate @ row) * (up @ row)))
            if self.kind == "cohere2moe" and self.stated.get("expert.results_are_averaged", True):
                total /= 2
        return total

    def weighed_inputs(self, prefix: str, row: Array, logits: Array) -> Array:
        """Llama 4's: experts read their inputs times the sigmoid of their logit (Meta's models/llama4/moe.py)."""
        total = np.zeros(len(row))
        parts = [(row, [self.tensors[f"{prefix}ffn_{part}_shexp.weight"] for part in ("gate", "up", "down")])]
        for expert in np.argsort(-logits, kind="stable")[: self.stated["expert_used_count"]]:
            own = [self.tensors[f"{prefix}ffn_{part}_exps.weight"][expert] for part in ("gate", "up", "down")]
            parts.append((row / (1 + np.exp(-logits[expert])), own))
        for source, (gate, up, down) in parts:
            total += down @ (self.activated(gate @ source) * (up @ source))
        return total

    def ungated_experts(self, prefix: str, row: Array, shares: Array, chosen: Array) -> Array:
        """Nemotron 3's: experts, and one that all tokens use, of two matrices each (modeling_nemotron_h.py)."""
        up, down = (self.tensors[f"{prefix}ffn_{part}_exps.weight"] for part in ("up", "down"))
        parts = (shares[expert] * (down[expert] @ self.activated(up[expert] @ row)) for expert in chosen)
        shared = self.activated(self.linear(row, prefix + "ffn_up_shexp"))
        return self.stated["expert_weights_scale"] * sum(parts) + self.linear(shared, prefix + "ffn_down_shexp")

    def clamped_expert(self, prefix: str, expert: int, row: Array) -> Array:
        """gpt-oss's (OpenAI's model card, arXiv 2508.10925, and gpt_oss/torch/model.py)."""
        weights, biases = (
            [self.tensors[f"{prefix}ffn_{part}_exps.{kind}"][expert] for part in ("gate", "up", "down")]
            for kind in ("weight", "bias")
        )
        gate, up = weights[0] @ row + biases[0], weights[1] @ row + biases[1]
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return weights[2] @ (gate / (1 + np.exp(-1.702 * gate)) * (up + 1)) + biases[2]

    def activated(self, gate: Array) -> Array:
        if self.kind in GELU_TANH:
            return 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        if self.kind in (*NEMOTRON, "arcee"):
            return np.maximum(gate, 0) ** 2
        if self.kind == "opt":
            return np.maximum(gate, 0)
        if self.kind in ("gptneox", "falcon"):
            return 0.5 * gate * (1 + np.vectorize(math.erf)(gate / math.sqrt(2)))
        return gate / (1 + np.exp(-gate))

    def convolution(self, layer: int, hidden: Array) -> Array:
        """LFM2's (Liquid AI's technical report, arXiv 2511.23404): gates before and after a causal convolution of each
        channel."""
        prefix = f"blk.{layer}.shortconv."
        before, after, values = np.split(self.linear(hidden, prefix + "in_proj"), 3, axis=-1)
        taps = self.tensors[prefix + "conv.weight"]
        padded = np.concatenate((np.zeros((taps.shape[1] - 1, hidden.shape[1])), before * values))
        windows = np.lib.stride_tricks.sliding_window_view(padded, taps.shape[1], axis=0)
        return self.linear(after * np.einsum("tdj,dj->td", windows, taps), prefix + "out_proj")

    def recurrence(self, layer: int, hidden: Array) -> Array:
        formula = delta_net if self.kind in KINDS else state_space
        return formula(self.stated, self.tensors, f"blk.{layer}.", hidden, self.epsilon)

    def attention(self, layer: int, hidden: Array) -> Array:
        prefix, count = f"blk.{layer}.", len(hidden)
        if self.kind == latent.KIND:
            return self.latent_attention(prefix, hidden)
        gate = 1.0
        query, key, value = self.projected(prefix, hidden)
        if self.kind in KINDS:  # each head's query, then its gate
            both = query.reshape(count, self.heads, 2, self.size)
            query, gate = self.norm(both[:, :, 0], prefix + "attn_q_norm"), 1 / (1 + np.exp(-both[:, :, 1]))
            key = self.norm(key, prefix + "attn_k_norm")
        if self.kind == "afmoe":  # a gate of each number that attention returns (modeling_afmoe.py)
            gate = 1 / (1 + np.exp(-self.linear(hidden, prefix + "attn_gate").reshape(query.shape)))
        is_local = self.is_local(layer)
        if self.is_rotated(layer):
            query, key = self.turned(query, is_local), self.turned(key, is_local)
        if self.kind in NORMAL_LAST:
            query, key = self.norm(query, prefix + "attn_q_norm"), self.norm(key, prefix + "attn_k_norm")
        if self.kind == "llama4":
            query, key = self.as_llama4(layer, query, key)
        elif growth := self.stated.get("attention.temperature_scale"):
            length = self.stated["rope.scaling.original_context_length"]
            query = query * (1 + growth * np.log(1 + np.arange(count) // length))[:, None, None]
        allowed = np.tril(np.ones((count, count), bool))
        if is_local and self.kind == "llama4":
            chunks = np.arange(count) // self.stated["attention.sliding_window"]
            allowed &= chunks[:, None] == chunks
        elif is_local:
            allowed &= ~np.tril(np.ones((count, count), bool), -self.stated["attention.sliding_window"])
        scale = self.stated.get("attention.scale", 1 / math.sqrt(self.size))
        result = np.empty((count, self.heads, self.size))
        for head in range(self.heads):
            shared = head * self.kv_heads // self.heads
            scores = self.capped(query[:, head] @ key[:, shared].T * scale, "attn_logit_softcapping")
            largest = scores.max(axis=1, keepdims=True)
            weights = np.exp(np.where(allowed, scores - largest, -np.inf))
            total = weights.sum(axis=1, keepdims=True)
            if prefix + "attn_sinks.weight" in self.tensors:
                total = total + np.exp(self.tensors[prefix + "attn_sinks.weight"][head] - largest)
            result[:, head] = weights / total @ value[:, shared]
        return self.linear((gate * result).reshape(count, -1), prefix + "attn_output")

    def as_llama4(self, layer: int, query: Array, key: Array) -> tuple[Array, Array]:
        """Rotated queries and keys of each head divided by their root mean square, but in Maverick; others as they are,
        queries warmer with each so many positions (Meta's models/llama4/model.py, and modeling_llama4.py)."""
        if not self.is_rotated(layer):
            length = self.stated.get("attention.temperature_length", 8192)
            steps = np.floor((np.arange(len(query)) + 1) / length)
            growth = self.stated.get("attention.temperature_scale", 0.1)
            return query * (1 + growth * np.log1p(steps))[:, None, None], key
        if self.stated.get("expert_count") == 128:
            return query, key
        roots = (np.sqrt((each**2).mean(axis=-1, keepdims=True) + self.epsilon) for each in (query, key))
        return query / next(roots), key / next(roots)

    def latent_attention(self, prefix: str, hidden: Array) -> Array:
        size, base = self.stated["rope.dimension_count"], self.stated.get("rope.freq_base", 1e4)
        frequencies = base ** (-np.arange(0, size, 2) / size)
        if self.stated.get("rope.scaling.type") == "yarn":
            frequencies, _ = self.yarn(frequencies, base)
        epsilon = self.stated.get("attention.latent_epsilon", self.epsilon)
        return latent.attention(self.stated, self.tensors, prefix, hidden, epsilon, frequencies)

    def projected(self, prefix: str, hidden: Array) -> list[Array]:
        """Queries, keys and values, each [tokens, heads, size]."""
        if prefix + "attn_qkv.weight" in self.tensors:
            ends = [self.heads * self.size, (self.heads + self.kv_heads) * self.size]
            flat = np.split(self.linear(hidden, prefix + "attn_qkv"), ends, axis=-1)
        else:
            flat = [self.linear(hidden, f"{prefix}attn_{name}") for name in ("q", "k", "v")]
        if limit := self.stated.get("attention.clamp_kqv"):
            flat = [np.clip(each, -limit, limit) for each in flat]
        if self.kind in ("olmo2", "olmoe", "minimax-m2"):
            flat[:2] = [self.norm(flat[0], prefix + "attn_q_norm"), self.norm(flat[1], prefix + "attn_k_norm")]
        query, key, value = (each.reshape(len(hidden), -1, self.size) for each in flat)
        is_normal = self.kind in (
            "qwen3",
            "qwen3moe",
            "qwen3vl",
            "qwen3vlmoe",
            "mellum",
            "gemma3",
            "stablelm",
            "command-r",
            "exaone4",
            "lfm2",
            "lfm2moe",
            "glm4moe",
            "bailingmoe2",
            "afmoe",
            "apertus",
            "dots1",
        )
        if is_normal and prefix + "attn_q_norm.weight" in self.tensors:
            query, key = self.norm(query, prefix + "attn_q_norm"), self.norm(key, prefix + "attn_k_norm")
        return [query, key, value]

    def is_local(self, layer: int) -> bool:
        if "attention.sliding_window" not in self.stated:
            return False
        usual = {
            "gemma2": 2, "gemma3": 6, "cohere2": 4, "olmo2": 4, "mellum": 4, "gpt-oss": 2, "afmoe": 4, "llama4": 4,
        }  # fmt: skip
        if self.kind == "cohere2moe":  # the first layer of four has no window, nor has one that predicts
            count = self.stated["block_count"]
            layers = self.stated.get("attention.sliding_window_pattern", [each % 4 != 0 for each in range(count)])
            return layer < count and bool(layers[layer])
        every = usual.get(self.kind)
        every = self.stated.get("attention.sliding_window_pattern", every)
        if isinstance(every, list):
            return bool(every[layer])
        return every is None or (layer + 1) % every != 0

    def is_rotated(self, layer: int) -> bool:
        if self.kind in ("cohere2", "afmoe") or (self.kind == "exaone4" and "attention.sliding_window" in self.stated):
            return self.is_local(layer)
        if self.kind in ("granite", "granitehybrid") and not self.stated.get("rope.scaling.finetuned", True):
            return False
        if self.kind == "cohere2moe" and "rope.layers" not in self.stated:
            is_first_or_predicts = (
                layer < self.stated["leading_dense_block_count"] or layer == self.stated["block_count"]
            )
            return self.is_local(layer) or is_first_or_predicts
        if self.kind in ("smollm3", "llama4", "cohere2moe"):
            layers = self.stated.get("rope.layers")
            return (layer + 1) % 4 != 0 if layers is None else bool(layers[layer])
        return self.kind not in ("gpt2", "starcoder", "opt", *NEMOTRON)

    def turned(self, node: Array, is_local: bool) -> Array:
        """Rotate pairs of dimensions by their position."""
        base = self.stated.get("rope.freq_base", 1e4)
        if is_local and self.kind in ("gemma2", "gemma3", "gpt-oss"):
            base = self.stated.get("rope.freq_base_swa", 1e4 if self.kind == "gemma3" else base)
        if is_local and self.kind in ("mellum", "olmo2"):
            base = self.stated.get("rope.freq_base_local", base)
        size = self.stated.get("rope.dimension_count", self.size)
        if alpha := self.stated.get("rope.scaling.alpha"):
            base = base * alpha ** (size / (size - 2))
        frequencies = base ** (-np.arange(0, size, 2) / size)
        magnitude = self.stated.get("rope.scaling.attn_factor", 1.0)
        if is_local and self.kind == "mellum":
            magnitude = 1.0
        if self.stated.get("rope.scaling.type") == "yarn" and (not is_local or self.kind == "gpt-oss"):
            frequencies, magnitude = self.yarn(frequencies, base)
        elif not (is_local and self.kind in ("gemma3", "olmo2", "mellum")):
            scale = self.stated.get("rope.scaling.factor", self.stated.get("rope.scale_linear", 1.0))
            frequencies = frequencies / scale
        angles = np.arange(len(node))[:, None] * frequencies
        for name in ("rope_freqs.weight", f"rope_factors_{self.long_rope}.weight"):
            if name in self.tensors:
                angles = angles / self.tensors[name]
        cosine, sine = magnitude * np.cos(angles)[:, None], magnitude * np.sin(angles)[:, None]
        if self.kind in PAIRS:
            first, second = slice(0, size, 2), slice(1, size, 2)
        else:
            first, second = slice(0, size // 2), slice(size // 2, size)
        turned = node.copy()
        turned[..., first] = node[..., first] * cosine - node[..., second] * sine
        turned[..., second] = node[..., first] * sine + node[..., second] * cosine
        return turned

    def yarn(self, frequencies: Array, base: float) -> tuple[Array, float]:
        """Frequencies and magnitude by the paper's sections 3.2 to 3.4 (arXiv 2309.00071), with the rounding of the
        authors' code: pair by pair."""
        factor, original = self.stated["rope.scaling.factor"], self.stated["rope.scaling.original_context_length"]
        ends = []
        for name, turns in (("fast", 32.0), ("slow", 1.0)):
            turns = self.stated.get(f"rope.scaling.yarn_beta_{name}", turns)
            ends.append(2 * len(frequencies) * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base)))
        if self.stated.get("rope.scaling.truncate", True):
            ends = [np.floor(ends[0]), np.ceil(ends[1])]
        first, last = max(ends[0], 0), min(ends[1], 2 * len(frequencies) - 1)
        share = self.stated.get("rope.scaling.yarn_ext_factor", 1.0)
        found = frequencies.copy()
        for pair, frequency in enumerate(frequencies):
            kept = (1 - min(max((pair - first) / (last - first), 0), 1)) * share
            found[pair] = frequency * kept + frequency / factor * (1 - kept)
        less = 0.1 * self.stated.get("rope.scaling.yarn_log_multiplier", 0.0) * np.log(factor) + 1
        magnitude = self.stated.get("rope.scaling.yarn_attn_factor", (0.1 * np.log(factor) + 1) / less)
        return found, magnitude * self.stated.get("rope.scaling.attn_factor", 1.0)

    def norm(self, hidden: Array, name: str) -> Array:
        if self.kind in LAYER_NORM and "attention.layer_norm_rms_epsilon" not in self.stated:
            hidden = hidden - hidden.mean(axis=-1, keepdims=True)
        root = np.sqrt((hidden**2).mean(axis=-1, keepdims=True) + self.epsilon)
        if self.kind == "olmo":  # without weights (arXiv 2402.00838, section 2.1)
            return hidden / root
        return hidden / root * self.tensors[name + ".weight"] + self.tensors.get(name + ".bias", 0.0)

    def linear(self, hidden: Array, name: str) -> Array:
        return hidden @ self.tensors[name + ".weight"].T + self.tensors.get(name + ".bias", 0.0)
