"""A tiny random checkpoint with the toy model's vocabulary, which llama-server reads, and a llama-server that serves
it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from onward.model_files.toy import END, SPECIALS, WORDS
from tests.checkpoints.making import floats, write_gguf
from tests.processes import free_port
from tests.waiting import PATIENCE_SECONDS, wait_for

HIDDEN, HEADS, FEED_FORWARD, LAYERS, CONTEXT = 64, 4, 96, 2, 2048
BUILT = Path(__file__).parents[3] / ".peers"
"""Where `python -m benchmarks.peer_build` builds llama-server."""


def byte_characters() -> list[str]:
    """The character that byte-level vocabularies write for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def byte_vocabulary() -> dict[str, Any]:
    """Return the metadata of the toy's vocabulary."""
    # As a word of its own, "é" would have the text of a byte's character: it is merged from its two bytes instead.
    tokens = [*byte_characters(), *SPECIALS, *("Ã©" if word == "é" else word for word in WORDS)]
    kinds = [1] * 256 + [3] * len(SPECIALS) + [1 if word == "é" else 4 for word in WORDS]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["Ã ©"],
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.bos_token_id": END,
        "tokenizer.ggml.add_bos_token": False,
    }


def write_byte_model(path: Path, seed: int = 0, num_heads: int = HEADS) -> Path:
    """Write a llama of random weights that mostly generates lower-case letters, as the toy does."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": num_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        **byte_vocabulary(),
    }
    tokens = metadata["tokenizer.ggml.tokens"]
    random = np.random.default_rng(seed)

    def matrix(rows: int, inputs: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        return random.normal(0, 1 / np.sqrt(inputs), (rows, inputs))

    embeddings = random.normal(0, 1, (len(tokens), HIDDEN))
    embeddings[:, 0] = 8.0  # a constant, through which the head prefers some tokens
    head = random.normal(0, 0.25, (len(tokens), HIDDEN))
    head[:, 0] = -2.0
    head[[*range(ord("a"), ord("z") + 1), ord(" ")], 0] = 1.0
    head[END, 0] = 0.5
    tensors = {"token_embd.weight": embeddings, "output.weight": head, "output_norm.weight": np.ones(HIDDEN)}
    for layer in range(LAYERS):
        block = {
            "attn_norm": np.ones(HIDDEN), "ffn_norm": np.ones(HIDDEN), "attn_q": matrix(HIDDEN, HIDDEN),
            "attn_k": matrix(HIDDEN, HIDDEN), "attn_v": matrix(HIDDEN, HIDDEN), "attn_output": matrix(HIDDEN, HIDDEN),
            "ffn_gate": matrix(FEED_FORWARD, HIDDEN), "ffn_up": matrix(FEED_FORWARD, HIDDEN),
            "ffn_down": matrix(HIDDEN, FEED_FORWARD),
        }  # fmt: skip
        tensors |= {f"blk.{layer}.{name}.weight": weights for name, weights in block.items()}
    return write_gguf(path, metadata, {name: floats(weights.astype(np.float32)) for name, weights in tensors.items()})


def find_llama_server() -> str:
    """Return the program: one on the PATH, or what `python -m benchmarks.peer_build` has built. Skips without."""
    built = sorted(BUILT.glob("*/build/bin/llama-server"))
    found = shutil.which("llama-server") or (str(built[-1]) if built else None)
    if found is None:
        pytest.skip("llama-server is neither on the PATH nor built: run `python -m benchmarks.peer_build`")
    return found


@contextmanager
def llama_server(model: Path, *flags: str) -> Iterator[str]:
    """Run llama-server; yield its URL."""
    port = free_port()
    command = [find_llama_server(), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-t", "1", *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ})
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, "llama-server has ended"
        try:
            return httpx2.get(url + "/health", timeout=PATIENCE_SECONDS).status_code == 200
        except httpx2.HTTPError:
            return False

    try:
        wait_for(answers, "llama-server")
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
