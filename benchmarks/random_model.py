"""Random weights in the shape of Qwen2.5-0.5B, with a tokenizer that has text for every id, and their OpenVINO IRs.

Speed does not depend on the values of weights, with one exception: sampling takes longer from a flatter distribution of
the next token. So the last norm is scaled until the distribution is about as peaked as a trained model's.
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

VOCAB_SIZE, HIDDEN_SIZE = 151_936, 896
CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
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
"""Standard deviation of the random weights; the default of transformers."""
LOGIT_DEVIATION = 3.5
"""Standard deviation of the logits. At temperature 0.8 it means a perplexity of about 11:
ln(perplexity) = ln(vocabulary) - (3.5 / 0.8)² / 2."""
END_OF_TEXT = "<|endoftext|>"
QUANTISATION: dict[str, dict[str, Any]] = {
    "int8": {"bits": 8},
    "int4": {"bits": 4, "sym": True, "group_size": 64, "ratio": 1.0},
}
"""int4 is nearly Q4_0: symmetric, embedding and output layer in 8 bits. Groups are of 64 weights where Q4_0 has 32
(4.25 bits per weight instead of 4.5), because that is the smallest size at which OpenVINO computes at full speed."""


def create_float(folder: Path, seed: int = 0) -> None:
    """Write float32 safetensors, config.json and tokenizer.json (2 GB)."""
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    torch.manual_seed(seed)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**CONFIG))
    with torch.no_grad():
        model.model.norm.weight.fill_(LOGIT_DEVIATION / (DEVIATION * math.sqrt(HIDDEN_SIZE)))
    model.generation_config.eos_token_id = 0
    model.save_pretrained(folder, max_shard_size="100GB")
    tokenizer(VOCAB_SIZE).save(str(folder / "tokenizer.json"))


def export_ir(source: Path, to: Path, precision: str) -> None:
    """Write the OpenVINO IR of the float model in folder `source`, with its tokenizer, to the folder `to`."""
    optimum = importlib.import_module("optimum.intel")
    quantisation = optimum.OVWeightQuantizationConfig(**QUANTISATION[precision])
    model = optimum.OVModelForCausalLM.from_pretrained(
        source, export=True, stateful=True, compile=False, quantization_config=quantisation
    )
    model.save_pretrained(to)
    shutil.copyfile(source / "tokenizer.json", to / "tokenizer.json")


def tokenizer(size: int) -> Any:
    """Return an untrained byte-level BPE of exactly `size` tokens: bytes, pairs of letters, and words of four
    letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = [END_OF_TEXT, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pairs = [(first, last) for first in string.ascii_lowercase for last in string.ascii_lowercase]
    words = ((first + second, third + last) for first, second in pairs for third, last in pairs)
    merges = [*pairs, *itertools.islice(words, size)][: size - len(tokens)]
    vocabulary = {token: index for index, token in enumerate([*tokens, *map("".join, merges)])}
    result = Tokenizer(models.BPE(vocabulary, merges))
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens([END_OF_TEXT])
    return result
