"""Random metadata of GGUF files: Onward computes what llama-server computes, or refuses the file by name."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from onward.checkpoints.parameters import WINDOW
from onward.errors import InvalidRequest, ModelFolderError
from tests.checkpoints.test_metadata_keys import COMMON, CONSTANTS, OTHERS, READ, RULES, model
from tests.checkpoints.tiny import ARCHITECTURES, CONTEXT, LAYERS
from tests.engines.upstreams.byte_model import llama_server
from tests.examples import examples
from tests.models.doors import client

NUM_FILES = examples(100)
MAX_DIFFERENCE = 0.02
"""Of a log probability: llama.cpp keeps GELU in tables of half precision."""
PROMPT = [token * 7 % 25 for token in range(60)]
UNREAD = (
    "activation", "rope.layers", "rope.scaling.truncate", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier", "rope.freq_base_swa", "attention.query_scale", "rope.scaling.factors",
    "attention.bias", "tensor_data_layout", "some.key",
)  # fmt: skip
"""Keys that no file of these architectures has, some with a meaning elsewhere."""
NAMES = sorted({"llama", "qwen2", "qwen3", "gemma3", "granite", "smollm3", "olmo", "olmo2",
                "olmo2, window", "stablelm", "gpt2", "gptneox", "cohere2", "starcoder2", "phi2", "phi3, long", "falcon",
                "falcon, two norms", "llama, experts", "qwen3moe", "qwen2moe", "olmoe", "mellum",
                "granitemoe, shared", "gpt-oss", "gemma", "gemma2", "glm4", "exaone4", "seed_oss",
                "internlm2", "mistral3", "lfm2", "lfm2moe", "gemma3n, own keys", "gemma4", "gemma4, values from keys",
                "gemma4, experts", "qwen35", "qwen35moe", "qwen3next, joined",
                "nemotron_h", "nemotron_h_moe", "deepseek2", "deepseek2, joined", "deepseek2, latent queries",
                "deepseek2, dense", "deepseek2, groups of sigmoids", "glm4moe",
                "bailingmoe2", "bailingmoe2, groups", "ernie4_5", "ernie4_5-moe", "minimax-m2",
                "command-r, head norms", "arcee", "apertus", "minicpm", "afmoe", "qwen2vl", "qwen3vl",
                "qwen3vlmoe", "starcoder", "hunyuan-dense, alpha", "hunyuan-moe", "dots1, no bias",
                "llama4, chunks", "cohere2moe, rms"} & ARCHITECTURES.keys())  # fmt: skip


def a_value(draw: random.Random, key: str, num_layers: int) -> Any:
    """A value of a key: a usual one, one of another type, a list by layer, or an impossible one."""
    usual: list[Any] = [OTHERS.get(key, 2)]
    if key == "rope.scaling.type":
        usual = ["none", "linear", "yarn", "longrope", "dynamic"]
    elif key in ("attention.sliding_window", "context_length", "rope.scaling.original_context_length"):
        usual = [3, 17, CONTEXT, 2 * CONTEXT]
    elif key == "attention.sliding_window_pattern":
        usual = [0, 1, 2, 3, [draw.random() < 0.5 for _ in range(num_layers)], [True]]
    elif isinstance(OTHERS.get(key), float) or "rope" in key:
        usual = [0.5, 1.0, 2.0, 3.5, 77.0]
    elif isinstance(OTHERS.get(key), bool):
        usual = [True, False]
    elif key.startswith(("expert", "nextn", "vocab", "pooling", "classifier")):
        usual = [0, 1, 2]
    others = [0, 1, True, "x", 0.0, [1] * num_layers, [2.0]]
    return draw.choice(usual if draw.random() < 0.8 else others)


def changes(number: int) -> tuple[str, dict[str, Any]]:
    """An architecture and some keys."""
    draw = random.Random(number)
    name = draw.choice(NAMES)
    kind = name.partition(",")[0]
    num_layers = ARCHITECTURES[name].get("block_count", LAYERS.get(kind, 2))
    keys = [key for key in (*COMMON, *READ[kind] * 3, *UNREAD) if key not in (*RULES, *CONSTANTS)]
    positions = [key for key in COMMON if key.startswith("rope.sca")]
    chosen = {draw.choice(positions if draw.random() < 0.4 else keys) for _ in range(draw.randint(1, 3))}
    return name, {key: a_value(draw, key, num_layers) for key in sorted(chosen)}


def of_onward(path: Path, cache: Path) -> dict[str, float] | str:
    """Log probabilities of the most probable tokens, or why the file is refused."""
    try:
        with client(path, cache) as found:
            answer = found.completions.create(
                prompt=PROMPT, max_tokens=1, logprobs=5, temperature=0, return_tokens_as_token_ids=True
            )
    except (ModelFolderError, InvalidRequest) as refused:  # a context of 17 tokens refuses the prompt
        return str(refused)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.top_logprobs is not None
    if not logprobs.top_logprobs:
        return "The first token is an end token, of which nothing is listed."
    return dict(logprobs.top_logprobs[0] or {})


def of_llama(path: Path) -> dict[str, float] | None:
    """The same from llama-server; None where it refuses the file."""
    flags = ("-c", str(CONTEXT), "-np", "1", "--no-warmup", "-fa", "off", "-ctk", "f32", "-ctv", "f32")
    try:
        with llama_server(path, *flags) as url:
            asked = {"prompt": PROMPT, "n_predict": 1, "n_probs": 30, "temperature": 0, "samplers": []}
            answer = httpx2.post(f"{url}/completion", json=asked, timeout=60).json()
    except (AssertionError, httpx2.HTTPError, subprocess.SubprocessError):
        return None
    if "completion_probabilities" not in answer:
        return None
    top = answer["completion_probabilities"][0]["top_logprobs"]
    found = {f"token_id:{each['id']}": each["logprob"] for each in top}
    return found if all(number is not None and np.isfinite(number) for number in found.values()) else None


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, str]]:
    folder = tmp_path_factory.mktemp("fuzz")
    found: dict[int, str] = {}
    for number in range(NUM_FILES):
        name, changed = changes(number)
        path = model(folder, name, **changed)
        here, there = of_onward(path, folder), of_llama(path)
        is_otherwise = name.startswith(("phi3", "exaone4")) and WINDOW in changed
        is_otherwise |= name.startswith("deepseek2") and "sigmoids" not in name and "expert_group_count" in changed
        if isinstance(here, str) or there is None or is_otherwise:  # docs/reference/model-files.md
            continue
        apart = max(abs(score - there.get(text, -99.0)) for text, score in here.items())
        if apart > MAX_DIFFERENCE:
            found[number] = f"{name} {changed}: {apart:.3f}"
    yield found


@pytest.mark.slow
def test_no_file_is_computed_differently_without_a_message(differences: dict[int, str]) -> None:
    assert differences == {}
