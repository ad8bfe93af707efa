"""A GGUF file of random weights in the shape of Qwen2.5-0.5B, with a tokenizer that has text for every id:
`python -m benchmarks.random_model FILE` writes one (Q8_0, 0.5 GB) within a minute or two.

Speed does not depend on the values of weights, with one exception: sampling takes longer from a flatter distribution of
the next token. So the last norm is scaled until the distribution is about as peaked as a trained model's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from training.gguf_file import TYPES, Description, Floats, write_gguf

from benchmarks import measure

VOCAB_SIZE, HIDDEN_SIZE = 151_936, 896
CONFIG: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 0,
}
DEVIATION = 0.02
"""Standard deviation of the random weights; the default of transformers."""
LOGIT_DEVIATION = 3.5
"""Standard deviation of the logits. At temperature 0.8 it means a perplexity of about 11:
ln(perplexity) = ln(vocabulary) - (3.5 / 0.8)² / 2."""
END_OF_TEXT = "<|endoftext|>"


def write(path: Path, config: dict[str, Any] = CONFIG, kind: str = "Q8_0", seed: int = 0) -> Path:
    """Write a model of these sizes to a file, and return its path."""
    words = json.loads(tokenizer(config["vocab_size"]).to_str())
    about = Description(path.stem, "gpt-2", text="Random weights, for benchmarks.")
    write_gguf(path, config, words, random_weights(config, seed), about, kind)
    return path


def random_weights(config: dict[str, Any], seed: int) -> Iterator[tuple[str, Floats]]:
    """Yield the tensors by their names in transformers, with tied embeddings."""
    random = np.random.default_rng(seed)
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }

    def matrix(rows: int, columns: int) -> Floats:
        return random.standard_normal((rows, columns), np.float32) * np.float32(DEVIATION)

    yield "model.embed_tokens.weight", matrix(config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, shape in shapes.items():
            yield f"{prefix}{name}.weight", matrix(*shape)
            if name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
                yield f"{prefix}{name}.bias", np.zeros(shape[0], np.float32)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}{name}.weight", np.ones(hidden, np.float32)
    yield "model.norm.weight", np.full(hidden, LOGIT_DEVIATION / (DEVIATION * math.sqrt(hidden)), np.float32)


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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.random_model", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--type", choices=TYPES, default="Q8_0", help="of matrices (default Q8_0)")
    options = parser.parse_args()
    options.file.parent.mkdir(parents=True, exist_ok=True)
    print(write(options.file, kind=options.type))


if __name__ == "__main__":
    measure.run_main(main)
