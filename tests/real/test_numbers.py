"""Log-probabilities are right: against an independent float64 forward pass, and draws against the distribution."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import numpy as np
import pytest

from onward.compose import compose
from onward.models.resolve import built_in_folder
from onward.settings import Settings

from ..toy_backend import complete, running
from .reference_llama import ReferenceLlama

pytestmark = pytest.mark.real

TEXT = (
    "Once upon a time there was a little girl who lived with her mother in a small house by the sea. One day she "
    "found a golden key in the sand. 'What does it open?' she asked the gull, but the gull only laughed.\n\n"
    "def first(items):\n    for item in items:\n        return item\n    return None\n"
) * 2


def ask(precision: str, **fields):
    async def once():
        async with running(compose(Settings(model=("storyteller",), precision=precision))) as backend:
            return await complete(backend, model="storyteller", return_tokens_as_token_ids=True, **fields)

    return asyncio.run(once())


@pytest.fixture(scope="module")
def reference() -> ReferenceLlama:
    return ReferenceLlama(built_in_folder("storyteller"))


def scores(precision: str, reference: ReferenceLlama) -> tuple[np.ndarray, np.ndarray]:
    """Served and independent log-probabilities of TEXT's tokens, the first left out."""
    logprobs = ask(precision, prompt=TEXT, echo=True, logprobs=1, max_tokens=0).choices[0].logprobs
    tokens = [int(name.removeprefix("token_id:")) for name in logprobs.tokens]
    expected = reference.logprobs(tokens)[np.arange(len(tokens) - 1), tokens[1:]]
    return np.array(logprobs.token_logprobs[1:]), expected


def test_exact_log_probabilities_are_those_of_float64(reference: ReferenceLlama) -> None:
    served, expected = scores("exact", reference)
    assert np.abs(served - expected).max() < 1e-4


def test_fast_log_probabilities_are_near_and_their_perplexity_is_right(reference: ReferenceLlama) -> None:
    served, expected = scores("fast", reference)
    assert np.abs(served - expected).mean() < 0.02
    assert math.exp(abs(served.mean() - expected.mean())) < 1.005


@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_a_score_depends_only_on_what_stands_before(precision: str) -> None:
    async def every_prefix() -> list[list[float]]:
        async with running(compose(Settings(model=("storyteller",), precision=precision))) as backend:
            tokens = backend.tokenize(None, TEXT, True)[:70]
            asked = (
                complete(backend, model="storyteller", prompt=tokens[:end], echo=True, logprobs=0, max_tokens=0)
                for end in range(3, len(tokens))
            )
            return [answer.choices[0].logprobs.token_logprobs[1:] for answer in await asyncio.gather(*asked)]

    scored = asyncio.run(every_prefix())
    assert all(prefix == scored[-1][: len(prefix)] for prefix in scored)


def test_decoding_gives_the_probabilities_that_reading_gives(reference: ReferenceLlama) -> None:
    """Tokens drawn one by one, through the decode kernel and a cache, against the forward pass of the whole."""
    logprobs = ask("exact", prompt=TEXT, max_tokens=40, logprobs=1, seed=3, echo=True).choices[0].logprobs
    tokens = [int(name.removeprefix("token_id:")) for name in logprobs.tokens]
    expected = reference.logprobs(tokens)[np.arange(len(tokens) - 1), tokens[1:]]
    assert np.abs(np.array(logprobs.token_logprobs[1:]) - expected).max() < 1e-4


def test_drawn_tokens_follow_the_distribution(reference: ReferenceLlama) -> None:
    """First tokens of 2,000 seeded choices against the exact probabilities (chi-square, fixed seeds)."""

    async def many() -> Counter[int]:
        counts: Counter[int] = Counter()
        async with running(compose(Settings(model=("storyteller",)))) as backend:
            for seed in range(20):
                answer = await complete(
                    backend, model="storyteller", prompt="The old", n=100, max_tokens=1, seed=seed, logprobs=0,
                    ignore_eos=True, return_tokens_as_token_ids=True,
                )  # fmt: skip
                names = (choice.logprobs.tokens[0] for choice in answer.choices)
                counts.update(int(name.removeprefix("token_id:")) for name in names)
        return counts

    from onward.runtimes.tokenizer import HuggingFaceTokenizer

    tokenizer = HuggingFaceTokenizer(built_in_folder("storyteller"))
    exact = np.exp(reference.logprobs(tokenizer.encode("The old", add_special_tokens=True))[-1])
    counts = asyncio.run(many())
    total = sum(counts.values())
    likely = [token for token in np.argsort(-exact) if exact[token] * total >= 8]
    observed = [counts[token] for token in likely] + [total - sum(counts[token] for token in likely)]
    expected = [exact[token] * total for token in likely] + [total * (1 - exact[likely].sum())]
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    freedom = len(expected) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom), "four standard deviations"
