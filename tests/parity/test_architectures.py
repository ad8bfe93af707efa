"""The parity table on tiny models of other architectures, computed by Onward's own engine: what the API promises is
promised of every model.

Their vocabulary is the toy's, and they mostly generate lower-case letters, as the toy does. Each row runs on a few of
them, which a hash draws: a further model or row leaves nearly all others where they are.
"""

from __future__ import annotations

import heapq
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.checkpoints import table
from onward.loop_thread import LoopThread
from onward.model_files.toy import END
from tests.checkpoints.making import write_gguf
from tests.checkpoints.tiny import BIASED, HIDDEN, last_norm, tiny
from tests.engines.upstreams.byte_model import CONTEXT, byte_vocabulary

from .in_process import InProcess
from .rows import ROWS

pytestmark = pytest.mark.slow

ARCHITECTURES = (
    "gpt-oss", "gemma", "gemma2", "glm4", "exaone4, window", "seed_oss", "internlm2", "olmo2, window", "mistral3",
    "qwen3moe", "mellum", "granitemoe, shared", "lfm2", "lfm2moe", "gemma3n", "gemma4",
    "gemma4, experts", "qwen35", "qwen35moe", "qwen3next", "nemotron_h", "nemotron_h_moe",
    "granitehybrid", "granitehybrid, experts", "falcon-h1", "glm4moe", "bailingmoe2", "llama, experts", "qwen2moe",
    "olmoe", "ernie4_5", "ernie4_5-moe", "minimax-m2", "dots1", "llama4",
    "gemma3, cap", "cohere2", "cohere2moe", "command-r", "arcee", "apertus", "afmoe", "qwen2vl", "qwen3vl",
    "qwen3vlmoe", "hunyuan-dense", "hunyuan-moe",
    "phi2", "phi3", "smollm3", "granite", "minicpm", "stablelm", "starcoder", "starcoder2", "gpt2", "gptneox", "llama",
    "qwen2", "qwen3", "deepseek2", "gptj", "falcon", "olmo", "opt",
)  # fmt: skip
MODELS_PER_ROW = 3
"""On how many of them each row runs. With more, some rows fail that need a text which not every model generates."""
LETTERS = [*range(ord("a"), ord("z") + 1), ord(" ")]
OF_INPUTS = (
    "attn_q", "attn_k", "attn_v", "ffn_up", "ffn_gate", "ffn_gate_inp", "ffn_up_exps", "ffn_gate_exps", "ffn_up_shexp",
    "ffn_gate_shexp", "shortconv.in_proj", "inp_gate", "attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_in",
    "ssm_ba", "attn_kv_a_mqa",
)  # fmt: skip
"""Tensors of a layer that read what comes before it."""
OF_OUTPUTS = (
    "attn_output", "shortconv.out_proj", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp", "proj", "laurel_r",
)  # fmt: skip
"""Those that add to it."""
SHARES = {
    "gpt-oss": 0.1, "gemma": 5.0, "gemma2": 12.0, "glm4": 1.8, "exaone4": 0.8, "seed_oss": 0.5, "mistral3": 0.5,
    "hunyuan-dense": 0.6, "hunyuan-moe": 0.8, "qwen3vl": 0.8, "qwen3vlmoe": 0.8,
    "qwen3moe": 0.8, "granitemoe": 7.0, "lfm2": 0.1, "lfm2moe": 0.2, "gemma4": 1.2,
    "qwen35": 0.5, "qwen35moe": 0.5, "qwen3next": 0.5, "granitehybrid": 7.0, "falcon-h1": 0.25, "gemma3": 4.0,
    "cohere2": 0.15, "cohere2moe": 0.15, "command-r": 0.15, "afmoe": 8.0,
    "smollm3": 0.3, "starcoder2": 0.8, "granite": 7.0, "minicpm": 7.0, "llama": 0.5, "qwen3": 0.6, "glm4moe": 0.5,
    "bailingmoe2": 0.5, "ernie4_5": 0.5, "ernie4_5-moe": 0.5, "minimax-m2": 0.5, "dots1": 0.7, "llama4": 0.7,
}  # fmt: skip
"""By how much what layers add is multiplied, so that texts have mostly letters, and not always the same one. 1: not."""
_DRAFTED = "what is drafted depends on what steps cost at that moment"
_PADDED = "<|fim_pad|> ends every text of a GGUF file, as in llama.cpp"
DEVIATIONS = {
    "suffix.ends": _PADDED,
    "bias.end": _PADDED,
    "prediction.right": _DRAFTED,
    "prediction.parts": _DRAFTED,
}
"""Rows that may fail, and why."""


def write_letters_model(path: Path, name: str) -> Path:
    """Write a tiny checkpoint of an architecture with the toy's vocabulary.

    The first number of every embedding is positive, and larger for letters; no layer reads or changes it, and the
    output layer, which may be the embeddings, prefers tokens in which it is large.
    """
    metadata, tensors = tiny(name)
    kind = str(metadata["general.architecture"])
    metadata |= byte_vocabulary() | {f"{kind}.context_length": CONTEXT}
    if f"{kind}.final_logit_softcapping" in metadata or kind in ("gemma3n", "gemma4"):
        metadata[f"{kind}.final_logit_softcapping"] = 60.0
    is_tied = "output.weight" not in tensors  # a token is then followed by itself unless the layers add much to it
    share = SHARES.get(kind, 1.0)
    for tensor, weights in tensors.items():
        part = ".".join(tensor.split(".")[2:-1]) if tensor.startswith("blk.") else ""
        if tensor.endswith("attn_v.bias") or (tensor.endswith(".bias") and kind in BIASED):
            weights *= 0.05  # the part that is the same after every token
        if weights.ndim > 1 and part in OF_INPUTS:
            weights *= 4.0 if is_tied else 1.0
            weights[..., 0] = 0.0
        if part in ("altup_predict_coef", "altup_correct_coef"):
            weights *= 0.05  # so that the first number stays that of the token
        if part in OF_OUTPUTS and not tensor.endswith(".scale"):
            tensors[tensor] = _without_first(share * weights, is_experts="exps" in part)
        if part in ("post_attention_norm", "post_ffw_norm", "post_norm") and kind not in (
            "gpt-oss",
            "seed_oss",
            "glm4moe",
        ):
            tensors[tensor] = share * weights
    count = len(metadata["tokenizer.ggml.tokens"])
    random = np.random.default_rng(5)
    if (table := tensors.get("per_layer_token_embd.weight")) is not None:
        tensors["per_layer_token_embd.weight"] = random.normal(size=(count, table.shape[1])).astype(np.float32)
        tensors["per_layer_model_proj.weight"][:, 0] = 0.0
    for tensor in ("altup_proj.weight", "altup_unembd_proj.weight"):
        if tensor in tensors:
            tensors[tensor][:, 0] = 0.0
    for tensor in ("token_embd.weight", "output.weight"):
        if tensor in tensors:
            weights = random.normal(0, 0.12 if is_tied else 0.3, (count, HIDDEN)).astype(np.float32)
            weights[:, 0] = 4.0
            weights[LETTERS, 0] = 8.0
            weights[END, 0] = 7.0
            tensors[tensor] = weights
    if "output.bias" in tensors:
        tensors["output.bias"] = np.zeros(count, np.float32)
    if "position_embd.weight" in tensors:
        tensors["position_embd.weight"] = random.normal(0, 0.3, (CONTEXT, HIDDEN)).astype(np.float32)
        tensors["position_embd.weight"][:, 0] = 0.0
    last = last_norm(kind)
    if f"{last}.weight" in tensors:
        tensors[f"{last}.weight"] = np.ones(HIDDEN, np.float32)
    if f"{last}.bias" in tensors:
        tensors[f"{last}.bias"] = np.zeros(HIDDEN, np.float32)
    return write_gguf(path, metadata, tensors)


def _without_first(weights: NDArray[Any], *, is_experts: bool) -> NDArray[Any]:
    """Return the weights of a layer that adds nothing to the first number."""
    changed = weights.copy()
    changed[(slice(None), 0) if is_experts else 0] = 0.0
    return changed


def _models_of(row: str) -> list[str]:
    """Return the models that a row runs on."""
    return heapq.nlargest(MODELS_PER_ROW, ARCHITECTURES, lambda name: zlib.crc32(f"{row} {name}".encode()))


def test_every_architecture_is_tried() -> None:
    assert {name.partition(",")[0] for name in ARCHITECTURES} == set(table.ARCHITECTURES)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_hold_for_models_of_an_architecture(name: str, tmp_path: Path) -> None:
    rows = [row for row in ROWS if row.on == "default" and not row.needs_socket and name in _models_of(row.id)]
    loop = LoopThread("parity")
    loop.start()
    server = InProcess(
        loop, "--cache-dir", str(tmp_path / "cache"), model=write_letters_model(tmp_path / "toy.gguf", name)
    )
    try:
        found = [row.problem(server) for row in rows]
    finally:
        server.close()
        loop.stop(lambda: None)
    assert found
    assert [problem for problem in found if problem and problem.partition(":")[0] not in DEVIATIONS] == []
