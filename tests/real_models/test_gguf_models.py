"""Real GGUF models: their numbers against a float64 reference that reads the same weights, their text, and the laws."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import onward
from onward.checkpoints.gguf import read_gguf
from onward.engine.model import Row
from onward.model_files.gguf import GGUFFiles
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model
from tests.checkpoints.reference import Reference
from tests.checkpoints.test_architectures import log_softmax
from tests.real_models.fetch import MODELS, fetched

pytestmark = [pytest.mark.slow, pytest.mark.companion]

TEXT = (
    "The Completions API takes a prompt and returns its continuation. A language model assigns a probability to every "
    "token that may come next, given all tokens before it; sampling chooses one of them, and the process repeats.\n\n"
    "def quicksort(items):\n    if len(items) <= 1:\n        return items\n    pivot = items[len(items) // 2]\n"
    "    left = [item for item in items if item < pivot]\n    return quicksort(left) + [pivot]\n\n"
    "Übergrößenträger, naïve façade, Ελληνικά, 日本語のテキスト, русский текст, العربية, 👩‍🚀 and 🎉.\n"
) * 5
NUM_TOKENS = 560
"""Beyond Gemma's window of 512."""
MAX_EXACT_DIFFERENCE = 1e-3
MAX_FAST_MEAN_DIFFERENCE = 0.12
"""Nats. Processors without bfloat16 differ less."""


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest) -> Path:
    return fetched(request.param)


@pytest.fixture(scope="module")
def tokens(path: Path) -> list[int]:
    found = GGUFFiles(path).load_tokenizer().encode(TEXT, add_special_tokens=True)
    assert len(found) >= NUM_TOKENS
    return found[:NUM_TOKENS]


@pytest.fixture(scope="module")
def expected(path: Path, tokens: list[int]) -> Any:
    """Log-probabilities [tokens, vocabulary] of a float64 forward pass over the file's own weights."""
    content = read_gguf(path)
    tensors = {name: tensor.floats().reshape(tensor.shape) for name, tensor in content.tensors.items()}
    return log_softmax(Reference(content.metadata, tensors).logits(tokens))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def found(path: Path, tokens: list[int], precision: Any, cache: Path) -> Any:
    """Log-probabilities [tokens, vocabulary] of the model as it is served."""
    options = RuntimeOptions(precision=precision, kv_memory=400_000_000, cache_dir=cache)
    model = load_model(GGUFFiles(path), options, lambda line: None).model
    try:
        return log_softmax(model.evaluate([Row(0, tokens, 0, range(model.shape.blocks_for(len(tokens))), len(tokens))]))
    finally:
        model.close()


def test_exact_log_probabilities_are_those_of_the_reference(
    path: Path, tokens: list[int], expected: Any, cache: Path
) -> None:
    of_tokens = np.arange(len(tokens) - 1), tokens[1:]
    difference = np.abs(found(path, tokens, "exact", cache)[of_tokens] - expected[of_tokens])
    assert difference.max() < MAX_EXACT_DIFFERENCE


def test_fast_log_probabilities_are_near(path: Path, tokens: list[int], expected: Any, cache: Path) -> None:
    of_tokens = np.arange(len(tokens) - 1), tokens[1:]
    fast = found(path, tokens, "fast", cache)[of_tokens]
    assert np.abs(fast - expected[of_tokens]).mean() < MAX_FAST_MEAN_DIFFERENCE
    assert abs(fast.mean() - expected[of_tokens].mean()) < 0.03


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[onward.Onward]:
    with onward.Onward(model=str(path), kv_memory="400MB") as client:
        yield client


def test_it_knows_the_capital_of_france(client: onward.Onward) -> None:
    prompt = "Germany: Berlin. Italy: Rome. Spain: Madrid. France:"
    answer = client.completions.create(prompt=prompt, max_tokens=2, temperature=0)
    assert "Paris" in answer.choices[0].text


def test_a_text_without_the_start_token_that_a_model_needs_is_far_less_likely(client: onward.Onward) -> None:
    tokens = client.tokenizer.encode(TEXT[:600], add_special_tokens=True)
    bare = client.tokenizer.encode(TEXT[:600], add_special_tokens=False)
    if tokens == bare:
        pytest.skip("this model needs none")

    def mean(prompt: list[int]) -> float:
        scored = client.completions.create(prompt=prompt, max_tokens=0, echo=True, logprobs=0).choices[0].logprobs
        assert scored is not None
        return float(np.mean(np.array(scored.token_logprobs[-len(bare) + 1 :], float)))

    assert mean(bare) < mean(tokens) - 0.5


def test_law_seeded_answers_are_the_same_alone_together_and_cached(client: onward.Onward) -> None:
    prompts = [TEXT[start : start + 200] for start in range(0, 400, 50)]
    fields: dict[str, Any] = {"max_tokens": 24, "seed": 5, "temperature": 1, "logprobs": 2}
    alone = [client.completions.create(prompt=prompt, **fields).choices[0] for prompt in prompts]
    together = client.completions.create(prompt=prompts, **fields).choices
    for one, other in zip(alone, together, strict=True):
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
        assert one.logprobs is not None and other.logprobs is not None
        assert one.logprobs.token_logprobs == other.logprobs.token_logprobs


def test_law_a_stream_is_the_whole_answer(client: onward.Onward) -> None:
    fields: dict[str, Any] = {"prompt": "日本の首都は", "max_tokens": 40, "seed": 3, "temperature": 1}
    whole = client.completions.create(**fields).choices[0].text
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**fields, stream=True)) == whole


def test_echoed_offsets_cut_the_text(client: onward.Onward) -> None:
    choice = client.completions.create(prompt=TEXT[:700], max_tokens=0, echo=True, logprobs=0).choices[0]
    assert choice.text == TEXT[:700] and choice.logprobs is not None
    assert choice.logprobs.text_offset == sorted(choice.logprobs.text_offset)


def test_a_generated_token_has_the_log_probability_that_it_has_in_a_prompt(path: Path) -> None:
    with onward.Onward(model=str(path), kv_memory="400MB", precision="exact") as client:
        prompt = client.tokenizer.encode(TEXT[:300], add_special_tokens=True)
        fields: dict[str, Any] = {"echo": True, "logprobs": 0, "return_tokens_as_token_ids": True}
        drawn = client.completions.create(prompt=prompt, max_tokens=24, seed=2, temperature=1, **fields).choices[0]
        assert drawn.logprobs is not None
        ids = [int(token.removeprefix("token_id:")) for token in drawn.logprobs.tokens]
        scored = client.completions.create(prompt=ids, max_tokens=0, **fields).choices[0]
    assert len(ids) > len(prompt) and scored.logprobs is not None
    pairs = zip(drawn.logprobs.token_logprobs[1:], scored.logprobs.token_logprobs[1:], strict=True)
    assert max(abs((one or 0) - (other or 0)) for one, other in pairs) < 1e-3


def test_law_forty_mixed_requests_at_once_are_those_alone(client: onward.Onward) -> None:
    shapes: list[dict[str, Any]] = [
        {"max_tokens": 20, "temperature": 1, "logprobs": 1},
        {"max_tokens": 12, "n": 3, "temperature": 0.8, "top_k": 40},
        {"max_tokens": 16, "best_of": 3, "temperature": 1},
        {"max_tokens": 30, "stop": [".", "\n"], "temperature": 1, "frequency_penalty": 0.4},
        {"max_tokens": 0, "echo": True, "logprobs": 2},
    ]
    requests = [
        {"prompt": TEXT[start : start + 120], "seed": start, **shape}
        for start, shape in zip(range(40), shapes * 8, strict=True)
    ]

    def bytes_of(request: dict[str, Any]) -> Any:
        return [msgspec.to_builtins(choice) for choice in client.completions.create(**request).choices]

    with ThreadPoolExecutor(16) as executor:
        together = list(executor.map(bytes_of, requests))
    assert together == [bytes_of(request) for request in requests]
