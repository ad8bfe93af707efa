"""Log probabilities are compared with an independent float64 forward pass, and samples with the distribution."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from onward.api.openai.response import Completion
from onward.compose import compose
from onward.model_files.gguf import GGUFFiles
from onward.models.resolve import built_in_folder
from onward.settings import Settings
from onward.values import Precision
from tests.checkpoints.reference import Reference
from tests.checkpoints.test_architectures import log_softmax
from tests.examples import slow_but
from tests.narrowing import logprobs_of
from tests.toy_backend import complete, running

pytestmark = pytest.mark.real
Array = npt.NDArray[np.float64]

TEXT = (
    "Once upon a time there was a little girl who lived with her mother in a small house by the sea. One day she "
    "found a golden key in the sand. 'What does it open?' she asked the gull, but the gull only laughed.\n\n"
    "def first(items):\n    for item in items:\n        return item\n    return None\n"
) * 2


def ask(precision: Precision, **fields: Any) -> Completion:
    async def once() -> Completion:
        async with running(compose(Settings(model=("storyteller",), precision=precision))) as backend:
            return await complete(backend, model="storyteller", return_tokens_as_token_ids=True, **fields)

    return asyncio.run(once())


class StorytellerReference:
    """The built-in model in float64, from its file as llama.cpp's own package reads it."""

    def __init__(self) -> None:
        reader = gguf.GGUFReader(built_in_folder("storyteller") / "storyteller.gguf")
        metadata = {name: field.contents() for name, field in reader.fields.items() if "tokens" not in name}
        tensors = {each.name: gguf.dequantize(each.data, each.tensor_type) for each in reader.tensors}
        self._reference = Reference(metadata, tensors)

    def logprobs(self, tokens: list[int]) -> Array:
        """Return float64 [len(tokens), vocab_size]: row i is the distribution of the token after tokens[: i + 1]."""
        return log_softmax(self._reference.logits(tokens))


@pytest.fixture(scope="module")
def reference() -> StorytellerReference:
    return StorytellerReference()


def scores(precision: Precision, reference: StorytellerReference) -> tuple[Array, Array]:
    """Return served and independent log probabilities of TEXT's tokens but the first: float64 [tokens - 1] each."""
    logprobs = logprobs_of(ask(precision, prompt=TEXT, echo=True, logprobs=1, max_tokens=0).choices[0])
    tokens = [int(name.removeprefix("token_id:")) for name in logprobs.tokens]
    expected = reference.logprobs(tokens)[np.arange(len(tokens) - 1), tokens[1:]]
    return np.array(logprobs.token_logprobs[1:]), expected


@pytest.mark.slow
def test_exact_log_probabilities_equal_float64(reference: StorytellerReference) -> None:
    served, expected = scores("exact", reference)
    assert np.abs(served - expected).max() < 1e-4


def test_fast_log_probabilities_are_close_and_their_perplexity_agrees(reference: StorytellerReference) -> None:
    served, expected = scores("fast", reference)
    assert np.abs(served - expected).mean() < 0.02
    assert math.exp(abs(served.mean() - expected.mean())) < 1.005


@pytest.mark.parametrize("precision", slow_but(["fast"], ["fast", "exact"]))
def test_a_score_depends_only_on_the_tokens_before_it(precision: Precision) -> None:
    async def every_prefix() -> list[list[float | None]]:
        async with running(compose(Settings(model=("storyteller",), precision=precision))) as backend:
            tokens = (await backend.tokenize(None, TEXT, True))[:70]
            asked = (
                complete(backend, model="storyteller", prompt=tokens[:end], echo=True, logprobs=0, max_tokens=0)
                for end in range(3, len(tokens))
            )
            return [logprobs_of(answer.choices[0]).token_logprobs[1:] for answer in await asyncio.gather(*asked)]

    scored = asyncio.run(every_prefix())
    assert all(prefix == scored[-1][: len(prefix)] for prefix in scored)


@pytest.mark.slow
def test_decoding_and_prefilling_compute_the_same_probabilities(reference: StorytellerReference) -> None:
    """Compare tokens sampled one by one, through the decode kernel and a KV cache, with one forward pass."""
    logprobs = logprobs_of(ask("exact", prompt=TEXT, max_tokens=40, logprobs=1, seed=3, echo=True).choices[0])
    tokens = [int(name.removeprefix("token_id:")) for name in logprobs.tokens]
    expected = reference.logprobs(tokens)[np.arange(len(tokens) - 1), tokens[1:]]
    assert np.abs(np.array(logprobs.token_logprobs[1:]) - expected).max() < 1e-4


@pytest.mark.slow
def test_sampled_tokens_follow_the_distribution(reference: StorytellerReference) -> None:
    """First tokens of 2,000 seeded choices against the exact probabilities (chi-square, fixed seeds)."""

    async def many() -> Counter[int]:
        counts: Counter[int] = Counter()
        async with running(compose(Settings(model=("storyteller",)))) as backend:
            for seed in range(20):
                answer = await complete(
                    backend, model="storyteller", prompt="The old", n=100, max_tokens=1, seed=seed, logprobs=0,
                    ignore_eos=True, return_tokens_as_token_ids=True,
                )  # fmt: skip
                names = (logprobs_of(choice).tokens[0] for choice in answer.choices)
                counts.update(int(name.removeprefix("token_id:")) for name in names)
        return counts

    tokenizer = GGUFFiles(built_in_folder("storyteller")).load_tokenizer()
    exact = np.exp(reference.logprobs(tokenizer.encode("The old", add_special_tokens=True))[-1])
    counts = asyncio.run(many())
    total = sum(counts.values())
    likely = [token for token in np.argsort(-exact) if exact[token] * total >= 8]
    observed = [counts[token] for token in likely] + [total - sum(counts[token] for token in likely)]
    expected = [exact[token] * total for token in likely] + [total * (1 - exact[likely].sum())]
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    freedom = len(expected) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom), "four standard deviations"
