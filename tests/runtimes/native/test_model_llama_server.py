"""Tiny files in llama-server and in the native runtime: the same log-probabilities, within llama-server's precision."""

from __future__ import annotations

from pathlib import Path

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray

from onward.errors import CheckpointError
from tests.checkpoints.making import Stored, floats, write_gguf
from tests.checkpoints.mamba2 import NEMOTRON
from tests.checkpoints.test_architectures import OF_FOLDERS
from tests.checkpoints.tiny import ARCHITECTURES, FEED_FORWARD, HEADS, JOINED, KV_HEADS, LAYERS, tiny
from tests.engines.upstreams.byte_model import llama_server
from tests.runtimes.native.test_model import NUM_TOKENS, load, log_softmax, tokens_of, usual_blocks, whole, write

pytestmark = pytest.mark.slow

LENGTHS = (1, 2, 17, 33, 70)
"""Of prompts: within windows and blocks, and beyond them."""
PRECISE = ("-fa", "off", "-ctk", "f32", "-ctv", "f32", "-c", "512", "-np", "1", "--no-warmup")
TOLERANCE = 5e-3
"""llama.cpp reads gelu from a table of float16, which makes the largest difference: 0.0033, with gemma3."""
TOLERANCES = {"gemma4": 8e-3, "gemma3n": 6e-2, "gemma3n, own keys": 2e-2}
"""Of others: their layers read that table twice, which makes 0.0053, and 0.039 with 24 layers, where the float64
formulas with such a table differ from llama-server by 0.0075."""
REFUSED = (
    "llama, partial rope",
    "qwen35, equal heads",
    "ernie4_5-moe, every second",
    "gptj",
    "opt",
    "opt, norms after",
)
"""llama.cpp rotates all dimensions of a llama's heads or none, keys and values of delta rules have one size there, and
it needs the experts of all of ERNIE's layers that follow the dense ones, whichever its graph uses. It has names for
what is in GPT-J's files, and does not compute them; of OPT's it knows nothing."""
OTHERWISE = ("exaone4, window", "deepseek2, groups", "gemma3n, stated", "minicpm, older", "llama4, chunks")
"""llama.cpp has no window in EXAONE 4 but with 64 layers, whatever a file states. It chooses groups by their two best
experts everywhere, which is V3's way, and not V2's. It has constants for what Gemma 3n's files state.
It divides logits of MiniCPM files that state no scales by what they should be multiplied with. Chunks of
Llama 4 have 8,192 tokens there, and its queries grow with as many."""
DEEPER = {"command-r, head norms": 64, "gemma3n": 24}
"""llama.cpp reads norms of Command R's heads where there are so many layers, as in Command R+; Gemma 3n's layers after
the first 20 share keys."""
LONGEST = {"phi3": 24}
"""llama.cpp computes Phi 3 without the window that its file states, and says so: prompts within it are compared."""


def next_token(url: str, prompt: list[int], count: int) -> NDArray[np.float64]:
    """Log-probabilities of all tokens after a prompt, by id."""
    body = {"prompt": prompt, "n_predict": 1, "n_probs": count, "temperature": 0.0, "cache_prompt": False}
    answer = httpx2.post(f"{url}/completion", json=body, timeout=60).raise_for_status().json()
    found = np.full(count, -np.inf)
    for each in answer["completion_probabilities"][0]["top_logprobs"]:
        found[each["id"]] = each["logprob"]
    return found


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in (*OF_FOLDERS, *REFUSED, *OTHERWISE)])
def test_log_probabilities_are_those_of_llama_server(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in DEEPER:
        monkeypatch.setitem(LAYERS, name.partition(",")[0], DEEPER[name])
    path = write(tmp_path, name)
    model = load(path, precision="exact", kv_memory=16_000_000).model
    try:
        tokens, size = tokens_of(model), model.vocab_size
        own = log_softmax(whole(model, tokens))
    finally:
        model.close()
    with llama_server(path, *PRECISE) as url:
        for length in (n for n in LENGTHS if n <= LONGEST.get(name, NUM_TOKENS)):
            theirs = next_token(url, tokens[:length], size)
            tolerance = TOLERANCES.get(name, TOLERANCES.get(name.partition(",")[0], TOLERANCE))
            assert np.abs(theirs - own[length - 1]).max() < tolerance, length


TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 26, NUM_TOKENS)]


def log_probabilities(path: Path) -> NDArray[np.float64]:
    model = load(path, precision="exact").model
    try:
        return log_softmax(whole(model, TOKENS))
    finally:
        model.close()


@pytest.mark.parametrize("name", ["qwen3", "qwen3moe"])
def test_factors_of_nvfp4_are_those_of_llama_server(name: str, tmp_path: Path) -> None:
    """Matrices with rows of whole blocks are of that type, with tensors that state the factor of each, or of each
    expert."""
    metadata, tensors = tiny(name)
    if name == "qwen3moe":  # llama.cpp's activations have 8 bits, which may make it choose others
        metadata["qwen3moe.expert_used_count"] = metadata["qwen3moe.expert_count"]
    stored: dict[str, Stored] = {}
    for seed, (key, array) in enumerate(tensors.items()):
        if array.ndim == 1 or array.shape[-1] % 64 or "gate_inp" in key or "embd" in key:
            stored[key] = floats(array)
            continue
        kind, _, blocks = usual_blocks("NVFP4", array.size // array.shape[-1], array.shape[-1], seed)
        stored[key] = kind, array.shape, blocks
        factors = np.linspace(0.5, 2.0, len(array)) if array.ndim == 3 else np.array([0.5 + seed % 5 / 3])
        stored[key.replace("weight", "scale")] = floats(factors)
        stored[key.replace("weight", "input_scale")] = floats(np.full_like(factors, 3.0))
    path = write_gguf(tmp_path / "m.gguf", metadata, stored)
    plain = {key: each for key, each in stored.items() if not key.endswith("scale")}
    own, without = (log_probabilities(each) for each in (path, write_gguf(tmp_path / "plain.gguf", metadata, plain)))
    with llama_server(path, *PRECISE) as url:
        theirs = np.stack([next_token(url, TOKENS[:length], own.shape[1]) for length in LENGTHS])
    ends = np.array(LENGTHS) - 1
    assert np.abs(theirs - own[ends]).mean() < 0.1 < 0.5 < np.abs(theirs - without[ends]).mean()


OF_LAYERS = ("gemma3n", "gemma4", "qwen35", "granitehybrid", *NEMOTRON)
"""Architectures whose layers may have heads of their own in llama.cpp, of which Granite 4 H has none, or whose second
layer has no heads."""
UNEQUAL = {
    "feed_forward_length": (FEED_FORWARD, 32, ("ffn_gate", "ffn_up"), "ffn_down"),
    "attention.head_count": (HEADS, 2, ("attn_q",), "attn_output"),
    "attention.head_count_kv": (KV_HEADS, 1, ("attn_k", "attn_v"), ""),
}
"""What is stated per layer: usually, of the second one, the matrices with this many rows, and with this many inputs."""


@pytest.mark.parametrize(
    "name", [name for name in ARCHITECTURES if "," not in name and name not in (*JOINED, *OF_LAYERS)]
)
@pytest.mark.parametrize("key", UNEQUAL)
def test_layers_of_different_sizes_are_refused_as_llama_server_refuses_them(
    name: str, key: str, tmp_path: Path
) -> None:
    """No other architecture here can have such files: llama.cpp creates the tensors of all layers with the sizes of the
    first."""
    usual, other, by_rows, by_inputs = UNEQUAL[key]
    if key == "feed_forward_length" and "expert_count" in ARCHITECTURES[name]:
        pytest.skip("no layer has this size")
    metadata, tensors = tiny(name)
    metadata[f"{name}.{key}"] = [usual, other] + [usual] * (metadata[f"{name}.block_count"] - 2)
    for part in by_rows:
        for kind in ("weight", "bias"):
            if (tensor := f"blk.1.{part}.{kind}") in tensors:
                tensors[tensor] = tensors[tensor][: len(tensors[tensor]) * other // usual]
    if by_inputs:
        whole_matrix = tensors[f"blk.1.{by_inputs}.weight"]
        cut = whole_matrix[:, : whole_matrix.shape[1] * other // usual]
        tensors[f"blk.1.{by_inputs}.weight"] = np.ascontiguousarray(cut)
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with pytest.raises(CheckpointError, match="layers of different sizes"):
        load(path)
    with pytest.raises(AssertionError, match="llama-server has ended"), llama_server(path, *PRECISE):
        pass
