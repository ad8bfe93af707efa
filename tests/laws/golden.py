"""Hashes of all logits of tiny models, of the built-in one, and of what it samples: `python -m tests.laws.golden`
writes them to golden.json.

They change only with the kernels' or the sampler's revision, never with the machine."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import onward
from onward.engine.model import ModelRunner, Row
from onward.model_files.base import ModelFiles
from onward.model_files.gguf import GGUFFiles
from onward.model_files.safetensors import SafetensorsFiles
from onward.models.resolve import built_in_folder
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model
from onward.values import Precision
from tests.checkpoints.float8 import LAYOUTS, convert
from tests.checkpoints.hugging_face import write_folder
from tests.checkpoints.making import CODEBOOK_SCALES, SCALES, Stored, floats, random_blocks, write_gguf
from tests.checkpoints.tiny import tiny

FILE = Path(__file__).parent / "golden.json"
NAMES = (
    "llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "phi3", "starcoder2", "granite", "smollm3", "olmo2", "stablelm",
    "gpt2", "gptneox", "cohere2", "llama, experts", "olmoe", "qwen2moe", "granitemoe", "granitemoe, shared", "mellum",
    "gpt-oss", "gemma", "gemma2", "glm4", "exaone4, window", "seed_oss", "internlm2", "mistral3",
    "lfm2", "lfm2moe", "gemma4", "gemma4, values from keys", "gemma4, experts", "qwen35",
    "qwen35, equal heads", "granitehybrid", "granitehybrid, experts", "falcon-h1", "qwen35moe", "qwen3next",
    "nemotron_h", "nemotron_h_moe", "deepseek2", "deepseek2, queries joined", "deepseek2, groups",
    "deepseek2, groups of sigmoids", "glm4moe", "glm4moe, head norms", "bailingmoe2", "bailingmoe2, groups",
    "ernie4_5", "minimax-m2", "ernie4_5-moe", "command-r", "command-r, head norms", "arcee", "afmoe", "qwen2vl",
    "qwen3vl", "qwen3vlmoe", "starcoder",
    "hunyuan-dense", "hunyuan-moe", "apertus", "gemma3n", "gemma3n, stated", "minicpm", "dots1", "llama4",
    "llama4, chunks", "cohere2moe", "cohere2moe, rms", "phi2", "gptj", "falcon",
    "falcon, two norms", "olmo", "opt", "opt, norms after",
)  # fmt: skip

FLOAT8 = "F8_E4M3"
TYPES = sorted({*SCALES, *CODEBOOK_SCALES, FLOAT8} - {"IQ1_M"})
"""Of weights. Random blocks of IQ1_M may state a NaN, whose bits are not promised."""
PRECISIONS: tuple[Precision, ...] = ("fast", "exact")
NUM_TOKENS = 70
SAMPLED: tuple[dict[str, Any], ...] = (
    {"prompt": "Once upon a time"},
    {"prompt": "The old king", "temperature": 0.7, "top_p": 0.9},
    {"prompt": "def read(path):\n    ", "temperature": 0},
    {"prompt": "A small boat", "temperature": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
)
PARTS = (
    "a", "b", "The", "'s", "'S", "'ll", "'", '"', " ", "  ", "\t", "\n", "\n\n", "\r\n", "1", "23", " 4", ".", ", ",
    "!?", "—", "é", "中文", "\u00a0", "\u0301", "😀", "<|endoftext|>", "<|fim_prefix|>", "def ", "once upon", "_x",
)  # fmt: skip


def logits_hash(name: str, precision: Precision, folder: Path) -> str:
    """SHA-256 of the logits at every position of a sequence."""
    metadata, tensors = tiny(name)
    # rounded, so that no library's last bit of a random number matters
    rounded = {key: np.round(array.astype(np.float64) * 1024) / 1024 for key, array in tensors.items()}
    path = write_gguf(folder / "m.gguf", metadata, rounded)
    return _hash_of(_load(GGUFFiles(path), precision))


def type_hash(kind: str, precision: Precision, folder: Path) -> str:
    """The same of a model all of whose matrices are random blocks of a type, or in FP8, which only folders have."""
    if kind == FLOAT8:
        write_folder(folder / "float8", "qwen2", dtype="BF16")
        convert(folder / "float8", LAYOUTS["Qwen"])
        return _hash_of(_load(SafetensorsFiles(folder / "float8"), precision))
    metadata, tensors = tiny("qwen2")
    hidden = 256
    metadata |= {"qwen2.embedding_length": hidden, "qwen2.feed_forward_length": hidden}
    stored: dict[str, Stored] = {}
    for index, (name, array) in enumerate(sorted(tensors.items())):
        rows = len(array) if name in ("token_embd.weight", "output.weight") else hidden
        rows = hidden // 2 if ".attn_k." in name or ".attn_v." in name else rows
        vector = np.arange(1, rows + 1, dtype=np.float32) / 1024
        stored[name] = floats(vector) if array.ndim == 1 else random_blocks(kind, rows, hidden, seed=index)
    return _hash_of(_load(GGUFFiles(write_gguf(folder / "m.gguf", metadata, stored)), precision))


def storyteller_hash(precision: Precision) -> str:
    """The same for the built-in model."""
    return _hash_of(_load(GGUFFiles(built_in_folder("storyteller")), precision))


def _load(files: ModelFiles, precision: Precision) -> ModelRunner:
    options = RuntimeOptions(runtime="native", threads=1, precision=precision, kv_memory=4_000_000)
    return load_model(files, options, lambda line: None).model


def _hash_of(model: ModelRunner) -> str:
    try:
        tokens = [(7 * index + index * index) % model.vocab_size for index in range(NUM_TOKENS)]
        logits = model.evaluate([Row(0, tokens, 0, range(3), NUM_TOKENS)])
        assert np.isfinite(logits).all() and logits.std() > 0.01
        return hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()
    finally:
        model.close()


def sampled_hash(precision: Precision) -> str:
    """SHA-256 of what the built-in model samples for several prompts, with the log-probabilities of all tokens."""
    digest = hashlib.sha256()
    with onward.Onward("storyteller", precision=precision) as client:
        for seed, fields in enumerate(SAMPLED):
            answer = client.completions.create(seed=seed, n=2, max_tokens=40, logprobs=3, **fields)
            for choice in answer.choices:
                assert choice.logprobs is not None
                digest.update(json.dumps([choice.text, choice.logprobs.token_logprobs]).encode())
    return digest.hexdigest()


def tokens_hash() -> str:
    """SHA-256 of the token ids of texts in which the built-in model's rule decides where to cut."""
    tokenizer = GGUFFiles(built_in_folder("storyteller")).load_tokenizer()
    random, digest = np.random.default_rng(5), hashlib.sha256()
    for _ in range(3000):
        text = "".join(PARTS[index] for index in random.integers(0, len(PARTS), 12).tolist())
        digest.update(np.array(tokenizer.encode(text, add_special_tokens=True), "<i4").tobytes() + b"/")
    return digest.hexdigest()


def main() -> None:
    found = {"storyteller tokens": tokens_hash()}
    for precision in PRECISIONS:
        found[f"storyteller {precision}"] = storyteller_hash(precision)
        found[f"storyteller {precision} sampled"] = sampled_hash(precision)
    with tempfile.TemporaryDirectory() as folder:
        for hash_of, names in ((logits_hash, NAMES), (type_hash, TYPES)):
            for name in names:
                for precision in PRECISIONS:
                    found[f"{name} {precision}"] = hash_of(name, precision, Path(folder))
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
