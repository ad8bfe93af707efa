"""DRY against a plain loop over all earlier positions, and penalties that count the last tokens only."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onward.sampling.choice import ChoiceSampler
from onward.sampling.dry import MAX_MATCH, MAX_PENALTY
from onward.sampling.params import Dry, SamplingParams
from onward.sampling.reference import ReferenceSampler
from onward.sampling.sampler import Sampler
from tests.sampling.harness import normal, sample_many, sample_one

SIZE = 8
KERNELS = Sampler(SIZE)
TOKENS = st.lists(st.integers(0, SIZE - 1), max_size=80)


def plain_dry(tokens: list[int], dry: Dry) -> dict[int, float]:
    """Return the penalty of each token, by comparing the end with every earlier place, token by token."""
    if dry.last_n >= 0:
        tokens = tokens[len(tokens) - min(dry.last_n, len(tokens)) :]
    lengths: dict[int, int] = {}
    for follower in range(1, len(tokens)):
        length = 0
        while (
            length < min(follower, MAX_MATCH)
            and tokens[-1 - length] not in dry.breakers
            and tokens[follower - 1 - length] == tokens[-1 - length]
        ):
            length += 1
        lengths[tokens[follower]] = max(lengths.get(tokens[follower], 0), length)
    return {
        token: min(dry.multiplier * dry.base ** (length - dry.allowed_length), MAX_PENALTY)
        for token, length in lengths.items()
        if length >= dry.allowed_length and token not in dry.breakers
    }


def state(dry: Dry, prompt: list[int], accepted: list[int], **params: float) -> ChoiceSampler:
    sampler = ChoiceSampler(SamplingParams(dry=dry, **params), 0, prompt)  # type: ignore[arg-type]
    for token in accepted:
        sampler.accept(token)
    return sampler


@given(
    prompt=TOKENS,
    accepted=TOKENS,
    allowed=st.integers(1, 4),
    last_n=st.sampled_from((-1, 0, 1, 5, 30)),
    breakers=st.sets(st.integers(0, SIZE - 1), max_size=3),
)
def test_the_penalties_are_those_of_a_plain_loop(
    prompt: list[int], accepted: list[int], allowed: int, last_n: int, breakers: set[int]
) -> None:
    dry = Dry(0.8, 1.75, allowed, last_n, tuple(sorted(breakers)))
    ids, values = state(dry, prompt, accepted).repetitions()
    found = dict(zip(ids.tolist(), values.tolist(), strict=True))
    expected = plain_dry(prompt + accepted, dry)
    assert found.keys() == expected.keys()
    assert all(np.isclose(-found[token], expected[token]) for token in found)


def test_a_long_repetition_is_as_bad_as_can_be_and_no_overflow() -> None:
    _, values = state(Dry(1000.0, 1000.0), [1] * 200, []).repetitions()
    assert values.tolist() == [-MAX_PENALTY]


def test_kernels_and_reference_agree_and_the_repetition_is_avoided() -> None:
    row = normal(SIZE, scale=0.1)
    dry = Dry(1000.0, 2.0)
    found = [sample_one(sampler, row, state(dry, [1, 2, 3, 1, 2], [])) for sampler in (KERNELS, ReferenceSampler(SIZE))]
    assert found[0].token == found[1].token != 3
    seen = {
        sample_one(KERNELS, row, ChoiceSampler(SamplingParams(dry=dry), i, [1, 2, 3, 1, 2])).token for i in range(200)
    }
    assert seen == set(range(SIZE)) - {3}


def test_after_a_draft_the_drafted_tokens_count() -> None:
    own = state(Dry(1.0, 2.0), [4, 5, 6], [4])
    after = own.after((5,))
    assert own.repetitions()[0].tolist() == [] and after.repetitions()[0].tolist() == [6]


@given(accepted=TOKENS, last_n=st.sampled_from((-1, 0, 1, 3, 20)))
def test_penalties_count_the_last_tokens_only(accepted: list[int], last_n: int) -> None:
    sampler = ChoiceSampler(SamplingParams(presence_penalty=1.0, penalty_last_n=last_n), 0)
    for token in accepted:
        sampler = sampler.after((token,)) if token % 2 else sampler
        if not token % 2:
            sampler.accept(token)
    window = accepted if last_n < 0 else accepted[len(accepted) - min(last_n, len(accepted)) :]
    expected = {token: float(window.count(token)) for token in window}
    found = dict(zip(sampler.counts.ids.tolist(), sampler.counts.counts.tolist(), strict=True))
    assert found == expected
    assert sampler.has_penalties == (last_n != 0)


def test_a_token_outside_of_the_window_is_not_penalised() -> None:
    row = np.zeros(SIZE, np.float32)
    row[5] = 1.0
    options: dict[str, Any] = {"frequency_penalty": 2.0, "temperature": 0.0}
    assert set(sample_many(KERNELS, row, 1, accepted=(5, 1), penalty_last_n=1, **options).tolist()) == {5}
    assert 5 not in sample_many(KERNELS, row, 1, accepted=(5, 1), penalty_last_n=2, **options)
