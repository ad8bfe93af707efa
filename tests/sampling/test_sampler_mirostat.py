"""Mirostat: in numpy against llama.cpp's formulas in plain loops, the kernels against numpy, and the effect that it is
for."""

from __future__ import annotations

import math
from statistics import mean
from typing import Any

import numpy as np
import pytest

from onward.sampling.choice import ChoiceSampler
from onward.sampling.outputs import NO_TOKEN_LEFT
from onward.sampling.params import Mirostat, SamplingParams
from onward.sampling.reference import ReferenceSampler
from onward.sampling.sampler import Sampler
from tests.examples import slow_but
from tests.sampling.harness import AnySampler, choice, exact_logprobs, normal, sample_one

SIZE = 300
KERNELS = Sampler(SIZE)


def run(sampler: AnySampler, length: int, **params: Any) -> list[tuple[int, float]]:
    """Return the tokens of one choice, and mirostat's state after each. Every position has logits of its own."""
    state, path = choice(**params), []
    for position in range(length):
        token = sample_one(sampler, normal(SIZE, seed=position, scale=2.0), state).token
        state.accept(token)
        assert state.mu is not None
        path.append((token, state.mu))
    return path


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("temperature", slow_but([0.7], [0.7, 1.0, 1.6]))
def test_both_implementations_take_the_same_path(version: int, temperature: float) -> None:
    for seed in range(20):
        params: dict[str, Any] = {"mirostat": Mirostat(version, 3.0, 0.2), "temperature": temperature, "seed": seed}
        fast, plain = run(KERNELS, 40, **params), run(ReferenceSampler(SIZE), 40, **params)
        assert [token for token, _ in fast] == [token for token, _ in plain]
        assert [mu for _, mu in fast] == pytest.approx([mu for _, mu in plain], abs=1e-4)
        assert len({token for token, _ in fast}) > 5


@pytest.mark.parametrize("sampler", [KERNELS, ReferenceSampler(SIZE)])
def test_the_second_version_keeps_tokens_whose_surprise_is_at_most_mu(sampler: AnySampler) -> None:
    row = normal(SIZE)
    p = np.exp(exact_logprobs(row))
    mirostat = Mirostat(2, tau=2.0, eta=0.5)
    possible = {token for token in range(SIZE) if -math.log2(p[token]) <= 4.0}  # mu is 2 tau at first
    seen = set()
    for number in range(400):
        state = choice(number=number, mirostat=mirostat, temperature=1.0)
        token = sample_one(sampler, row, state).token
        state.accept(token)
        surprise = -math.log2(p[token] / sum(p[each] for each in possible))
        assert token in possible and state.mu == pytest.approx(4.0 - 0.5 * (surprise - 2.0), abs=1e-4)
        seen.add(token)
    assert len(seen) > len(possible) / 2


@pytest.mark.parametrize("sampler", [KERNELS, pytest.param(ReferenceSampler(SIZE), marks=pytest.mark.slow)])
def test_the_first_version_keeps_as_many_tokens_as_zipfs_law_has(sampler: AnySampler) -> None:
    """For probabilities that follow Zipf's law with exponent 1.5, the top k tokens have the surprise mu on average."""
    row = (-1.5 * np.log(np.arange(1, SIZE + 1))).astype(np.float32)
    tau = 3.0
    expected = int((0.5 * 2 ** (2 * tau) / (1 - SIZE**-0.5)) ** (1 / 1.5))
    tokens = set()
    for number in range(2000):
        state = choice(number=number, mirostat=Mirostat(1, tau, 0.1), temperature=1.0)
        tokens.add(sample_one(sampler, row, state).token)
    assert max(tokens) == expected - 1


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_the_surprise_stays_near_its_target(version: int, tau: float) -> None:
    params = {"mirostat": Mirostat(version, tau, 0.1), "temperature": 1.0, "seed": 4}
    path = run(KERNELS, 400, **params)
    states = [mu for _, mu in path]
    # mu moves by eta times what each surprise is above tau: where it stays in a range, their mean is tau.
    assert abs(mean(np.diff(states)) / 0.1) < 0.1


def test_extreme_rows_and_states_sample_a_possible_token() -> None:
    one = np.full(SIZE, -np.inf, np.float32)
    one[7] = 1.0
    flat, steep = np.zeros(SIZE, np.float32), (-80.0 * np.arange(SIZE)).astype(np.float32)
    for version in (1, 2):
        for mu in (-1e6, 0.0, 1e6):
            for row in (one, flat, steep):
                state = choice(mirostat=Mirostat(version), temperature=1.0)
                state.restore(mu)
                token = sample_one(KERNELS, row, state).token
                state.accept(token)
                assert row[token] > -np.inf and state.mu is not None and math.isfinite(state.mu)
    greedy = choice(mirostat=Mirostat(), temperature=0.0)
    assert sample_one(KERNELS, normal(SIZE), greedy).token == int(normal(SIZE).argmax())
    nothing = choice(mirostat=Mirostat(), allowed_tokens=(4,), banned_tokens=(4,))
    assert sample_one(KERNELS, normal(SIZE), nothing).token == NO_TOKEN_LEFT


def test_biases_bans_and_penalties_act_with_it_and_log_probabilities_are_raw() -> None:
    row = normal(SIZE)
    state = choice(mirostat=Mirostat(), logit_bias=((5, 100.0),), temperature=1.0, logprobs=0)
    sampled = sample_one(KERNELS, row, state)
    assert sampled.token == 5 and sampled.logprob == pytest.approx(exact_logprobs(row)[5], abs=1e-5)
    banned = choice(mirostat=Mirostat(), logit_bias=((5, 100.0),), banned_tokens=(5,), temperature=1.0)
    assert sample_one(KERNELS, row, banned).token != 5


def test_only_an_accepted_token_changes_the_state() -> None:
    params = SamplingParams(mirostat=Mirostat(), temperature=1.0)
    state = ChoiceSampler(params, 0)
    first = sample_one(KERNELS, normal(SIZE), state)
    assert state.mu == 10.0 and sample_one(KERNELS, normal(SIZE), state) is not first
    assert sample_one(KERNELS, normal(SIZE), state).token == first.token
    state.accept(first.token)
    assert state.mu != 10.0
