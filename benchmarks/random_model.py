"""Random weights in the shape of Qwen2.5-0.5B, with a tokenizer that spells every id, and their OpenVINO IRs.

Speed does not depend on what weights say, with one exception: how peaked the next token's distribution is decides
how long sampling takes. So the last norm is scaled until it is about as peaked as a trained model's.
Needs torch, transformers, optimum-intel and nncf: see benchmarks/README.md.
"""

from __future__ import annotations

import importlib
import itertools
import math
import shutil
import string
from pathlib import Path
from typing import Any

VOCABULARY, HIDDEN = 151_936, 896
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "rope_theta": 1e6,
    "bos_token_id": None,
    "eos_token_id": 0,
}
DEVIATION = 0.02
"""Of the random weights, as transformers draws them."""
LOGIT_DEVIATION = 3.5
"""At temperature 0.8 a perplexity of about 11: ln(perplexity) = ln(vocabulary) - (3.5 / 0.8)² / 2."""
END_OF_TEXT = "<|endoftext|>"
QUANTISED: dict[str, dict[str, Any]] = {
    "int8": {"bits": 8},
    "int4": {"bits": 4, "sym": True, "group_size": 64, "ratio": 1.0},
}
"""int4 nearly as Q4_0 has it: symmetric, embedding and output layer in 8 bits; groups of 64, where Q4_0 has 32 (4.25
bits a weight, not 4.5), because that is the least at which OpenVINO computes at full speed."""


def make_float(folder: Path, seed: int = 0) -> None:
    """Write float32 safetensors, config.json and tokenizer.json (2 GB)."""
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    torch.manual_seed(seed)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SHAPE))
    with torch.no_grad():
        model.model.norm.weight.fill_(LOGIT_DEVIATION / (DEVIATION * math.sqrt(HIDDEN)))
    model.generation_config.eos_token_id = 0
    model.save_pretrained(folder, max_shard_size="100GB")
    tokenizer(VOCABULARY).save(str(folder / "tokenizer.json"))


def export_ir(source: Path, to: Path, precision: str) -> None:
    """Write the OpenVINO IR of the float model `source`, its tokenizer beside it."""
    optimum = importlib.import_module("optimum.intel")
    quantised = optimum.OVWeightQuantizationConfig(**QUANTISED[precision])
    model = optimum.OVModelForCausalLM.from_pretrained(
        source, export=True, stateful=True, compile=False, quantization_config=quantised
    )
    model.save_pretrained(to)
    shutil.copyfile(source / "tokenizer.json", to / "tokenizer.json")


def tokenizer(size: int) -> Any:
    """A byte-level BPE of exactly `size` tokens: bytes, pairs of letters, and words of four. Untrained."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = [END_OF_TEXT, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pairs = [(first, last) for first in string.ascii_lowercase for last in string.ascii_lowercase]
    words = ((first + second, third + last) for first, second in pairs for third, last in pairs)
    merges = [*pairs, *itertools.islice(words, size)][: size - len(tokens)]
    vocabulary = {token: place for place, token in enumerate([*tokens, *map("".join, merges)])}
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END_OF_TEXT])
    return made
