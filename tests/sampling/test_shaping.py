"""The chain of samplers: in numpy against plain loops over sorted lists as the papers and other servers describe them,
and in the kernels against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.sampling.outputs import NO_TOKEN_LEFT, NOT_FINITE
from onward.sampling.params import DEFAULT_ORDER, SamplingParams, Shaping
from onward.sampling.reference import ReferenceSampler
from onward.sampling.reference_shaping import shaped
from onward.sampling.rng import XTC_ATTEMPT, uniform
from onward.sampling.sampler import Sampler
from tests.sampling.harness import choice, exact_logprobs, normal, sample_many, sample_one

SIZE = 300
KERNELS = Sampler(SIZE)
Plain = dict[int, float]
"""Token → probability."""


def by_probability(plain: Plain) -> list[int]:
    return sorted(plain, key=lambda token: (-plain[token], token))


def entropy(plain: Plain) -> float:
    return -sum(p * math.log(p) for p in plain.values())


def plain_top_n_sigma(plain: Plain, n: float) -> set[int]:
    logits = {token: math.log(p) for token, p in plain.items()}
    mean = sum(logits.values()) / len(logits)
    sigma = math.sqrt(sum((each - mean) ** 2 for each in logits.values()) / len(logits))
    return {token for token, each in logits.items() if each >= max(logits.values()) - n * sigma}


def plain_typical(plain: Plain, mass: float) -> set[int]:
    average = entropy(plain)
    kept: set[int] = set()
    total = 0.0
    for token in sorted(plain, key=lambda token: (abs(-math.log(plain[token]) - average), token)):
        kept.add(token)
        total += plain[token]
        if total > mass:
            break
    return kept


def plain_tfs(plain: Plain, z: float) -> set[int]:
    order = by_probability(plain)
    sorted_p = [plain[token] for token in order]
    first = [sorted_p[i] - sorted_p[i + 1] for i in range(len(order) - 1)]
    second = [abs(first[i] - first[i + 1]) for i in range(len(first) - 1)]
    running = 0.0
    for i, bend in enumerate(second):
        running += bend / sum(second)
        if running > z and i >= 1:
            return set(order[:i])
    return set(order)


def plain_top_a(plain: Plain, a: float) -> set[int]:
    return {token for token, p in plain.items() if p >= a * max(plain.values()) ** 2}


def plain_epsilon(plain: Plain, epsilon: float) -> set[int]:
    return {token for token, p in plain.items() if p >= epsilon or p == max(plain.values())}


def plain_eta(plain: Plain, eta: float) -> set[int]:
    return plain_epsilon(plain, min(eta, math.sqrt(eta) * math.exp(-entropy(plain))))


def plain_xtc(plain: Plain, threshold: float) -> set[int]:
    above = [token for token in by_probability(plain) if plain[token] >= threshold]
    return set(plain) - set(above[:-1])


PLAIN: dict[str, tuple[Callable[[Plain, float], set[int]], Callable[[float], Shaping], tuple[float, ...]]] = {
    "top_n_sigma": (plain_top_n_sigma, lambda x: Shaping(top_n_sigma=x), (0.5, 1.0, 2.5)),
    "typical_p": (plain_typical, lambda x: Shaping(typical_p=x), (0.05, 0.5, 0.95)),
    "tfs": (plain_tfs, lambda x: Shaping(tfs=x), (0.3, 0.9, 0.99)),
    "top_a": (plain_top_a, lambda x: Shaping(top_a=x), (0.05, 0.5, 1.0)),
    "epsilon_cutoff": (plain_epsilon, lambda x: Shaping(epsilon_cutoff=x), (0.0003, 0.01, 0.1)),
    "eta_cutoff": (plain_eta, lambda x: Shaping(eta_cutoff=x), (0.0003, 0.01, 0.1)),
    "xtc": (plain_xtc, lambda x: Shaping(xtc_probability=1.0, xtc_threshold=x), (0.01, 0.05, 0.3)),
}


@pytest.mark.parametrize("name", PLAIN)
@given(scale=st.sampled_from((0.5, 2.0, 5.0)), seed=st.integers(0, 500), which=st.integers(0, 2))
def test_each_sampler_keeps_what_a_plain_loop_keeps(name: str, scale: float, seed: int, which: int) -> None:
    plain_filter, shaping, values = PLAIN[name]
    row = normal(SIZE, scale=scale, seed=seed)
    plain = dict(enumerate(np.exp(exact_logprobs(row, 0.8)).tolist()))
    kept = shaped(row, SamplingParams(temperature=0.8), shaping(values[which]), chance=0.0).ids.tolist()
    assert set(kept) == plain_filter(plain, values[which])
    assert kept == sorted(kept, key=lambda token: (-row[token], token))


def test_samplers_act_one_after_the_other_on_what_is_left() -> None:
    row = normal(SIZE, scale=2.0, seed=3)
    params, shaping = SamplingParams(top_k=20, top_p=0.9), Shaping(typical_p=0.8, top_a=0.3)
    left = dict(enumerate(np.exp(exact_logprobs(row)).tolist()))

    def renormalised(tokens: set[int] | list[int]) -> Plain:
        total = sum(left[token] for token in tokens)
        return {token: left[token] / total for token in sorted(tokens)}

    plain = renormalised(by_probability(left)[:20])
    order, total = by_probability(plain), 0.0
    nucleus = [token for token in order if (total := total + plain[token]) - plain[token] < 0.9]
    plain = renormalised(plain_typical(renormalised(nucleus), 0.8))
    assert set(shaped(row, params, shaping, 0.0).ids.tolist()) == plain_top_a(plain, 0.3)


@pytest.mark.parametrize("shaping", [Shaping(typical_p=0.5), Shaping(top_a=0.2), Shaping(xtc_probability=1.0)])
def test_kernels_and_reference_sample_the_same_tokens(shaping: Shaping) -> None:
    row = normal(SIZE)
    options: dict[str, Any] = {
        "shaping": shaping, "seed": 5, "frequency_penalty": 0.5, "logit_bias": ((3, 2.0),), "banned_tokens": (9,)
    }  # fmt: skip
    tokens = sample_many(KERNELS, row, 100, accepted=(1, 1), **options)
    assert tokens.tolist() == sample_many(ReferenceSampler(SIZE), row, 100, accepted=(1, 1), **options).tolist()
    assert len(set(tokens.tolist())) > 1 and 9 not in tokens


def random_options(generator: np.random.Generator) -> dict[str, Any]:
    """Return parameters in which each sampler acts with a probability of about a third, in a random order."""

    def some(low: float, high: float, off: float) -> float:
        return float(generator.uniform(low, high)) if generator.random() < 0.35 else off

    order = tuple(generator.permutation(DEFAULT_ORDER)) if generator.random() < 0.5 else DEFAULT_ORDER
    shaping = Shaping(
        top_n_sigma=some(0.5, 3, 0), typical_p=some(0.05, 1, 1), tfs=some(0.3, 1, 1), top_a=some(0, 1, 0),
        epsilon_cutoff=some(0, 0.02, 0), eta_cutoff=some(0, 0.02, 0), xtc_probability=some(0, 1, 0),
        xtc_threshold=float(generator.uniform(0, 0.3)), dynatemp_range=some(0, 2, 0),
        dynatemp_exponent=float(generator.uniform(0.5, 2)), order=order,
    )  # fmt: skip
    return {
        "shaping": shaping, "seed": int(generator.integers(2**63)), "temperature": some(0.2, 3, 1.0),
        "top_p": some(0.05, 1, 1), "min_p": some(0, 0.5, 0), "top_k": int(some(1, 200, 0)),
    }  # fmt: skip


@pytest.mark.parametrize("case", range(150))
def test_kernels_and_reference_agree_in_any_order(case: int) -> None:
    generator = np.random.default_rng(case)
    row = normal(SIZE, scale=float(generator.uniform(0.3, 5)), seed=case)
    if case % 3 == 0:
        row = np.round(row).astype(np.float32)  # ties, and negative zeros
    options = random_options(generator)
    tokens = sample_many(KERNELS, row, 40, **options).tolist()
    assert tokens == sample_many(ReferenceSampler(SIZE), row, 40, **options).tolist(), options


def test_the_order_decides_what_is_left() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1] + [1e-9] * (SIZE - 4), np.float32))
    hot: dict[str, Any] = {"temperature": 100.0, "top_p": 0.6, "seed": 3}
    first = Shaping(order=("temperature", "top_p"))
    last = Shaping(order=("top_p", "temperature"))
    assert max(sample_many(KERNELS, row, 300, shaping=first, **hot)) > 3  # nearly uniform over all tokens
    assert set(sample_many(KERNELS, row, 300, shaping=last, **hot).tolist()) == {0, 1}
    assert max(sample_many(KERNELS, row, 300, shaping=Shaping(order=("temperature",)), **hot)) > 3  # no top_p at all
    assert max(sample_many(KERNELS, row, 300, shaping=Shaping(order=()), temperature=0.01)) > 0  # nothing acts


def test_a_dynamic_temperature_follows_the_entropy() -> None:
    sharp = np.log(np.array([0.999] + [0.001 / (SIZE - 1)] * (SIZE - 1), np.float32))
    flat = np.zeros(SIZE, np.float32)
    for row, exponent in ((sharp, 1.0), (flat, 2.0), (normal(SIZE), 0.5)):
        params = SamplingParams(temperature=1.0)
        shaping = Shaping(dynatemp_range=0.5, dynatemp_exponent=exponent)
        plain = dict(enumerate(np.exp(exact_logprobs(row)).tolist()))
        expected = 0.5 + (entropy(plain) / math.log(SIZE)) ** exponent
        assert shaped(row, params, shaping, 0.0).temperature == pytest.approx(expected)


def test_frequencies_are_those_of_the_tokens_that_are_left() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05] + [1e-9] * (SIZE - 4), np.float32))
    tokens = sample_many(KERNELS, row, 4000, shaping=Shaping(xtc_probability=1.0, xtc_threshold=0.2))
    shares = np.bincount(tokens, minlength=SIZE) / 4000
    assert shares[:4] == pytest.approx([0, 0.6, 0.3, 0.1], abs=0.03)


def test_xtc_acts_with_its_probability_by_the_seed_and_position() -> None:
    row = np.log(np.array([0.6, 0.4] + [1e-30] * (SIZE - 2), np.float32))
    shaping = Shaping(xtc_probability=0.5, xtc_threshold=0.1)
    for number in range(50):
        token = sample_one(KERNELS, row, choice(number=number, seed=1, shaping=shaping)).token
        if uniform(1, number, 0, XTC_ATTEMPT) < 0.5:
            assert token == 1


def test_greedy_choices_and_rows_without_a_token() -> None:
    row = normal(SIZE)
    shaping = Shaping(typical_p=0.1, xtc_probability=1.0, xtc_threshold=0.0)
    assert sample_one(KERNELS, row, choice(temperature=0.0, shaping=shaping)).token == int(row.argmax())
    state = choice(shaping=shaping, allowed_tokens=(4,), banned_tokens=(4,))
    assert sample_one(KERNELS, row, state).token == NO_TOKEN_LEFT
    assert sample_one(KERNELS, np.full(SIZE, np.nan, np.float32), choice(shaping=shaping)).token == NOT_FINITE


def test_log_probabilities_are_those_of_the_raw_distribution() -> None:
    row = normal(SIZE)
    sampled = sample_one(KERNELS, row, choice(shaping=Shaping(typical_p=0.5), logprobs=1))
    assert sampled.logprob == pytest.approx(exact_logprobs(row)[sampled.token], abs=1e-5)
