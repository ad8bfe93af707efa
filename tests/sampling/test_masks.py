"""Tokens that may be sampled, and tokens and sequences that may not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.sampling.masks import num_words, pack_mask, stack_masks, unpack_mask
from onward.sampling.outputs import NO_TOKEN_LEFT
from onward.sampling.reference import ReferenceSampler
from onward.sampling.sampler import Sampler
from tests.sampling.harness import AnySampler, choice, exact_logprobs, normal, sample_one, support

SIZE = 700
KERNELS = Sampler(SIZE)
BOTH = pytest.mark.parametrize("sampler", [KERNELS, ReferenceSampler(SIZE)], ids=["kernels", "reference"])


@given(st.sets(st.integers(0, SIZE - 1)))
def test_a_mask_holds_the_tokens_that_it_was_packed_from(tokens: set[int]) -> None:
    mask = pack_mask(tokens, SIZE)
    assert mask.size == num_words(SIZE)
    assert set(np.flatnonzero(unpack_mask(mask, SIZE)).tolist()) == tokens


@pytest.mark.parametrize("token", [-1, SIZE])
def test_a_token_outside_of_the_vocabulary_cannot_be_packed(token: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        pack_mask([3, token], SIZE)


def test_a_mask_that_several_rows_share_is_stacked_once() -> None:
    first, second = pack_mask([1], SIZE), pack_mask([2], SIZE)
    stacked, rows = stack_masks([None, first, second, first], SIZE)
    assert (len(stacked), rows) == (3, [0, 1, 2, 1])
    with pytest.raises(ValueError, match="words"):
        stack_masks([first[:-1]], SIZE)


@BOTH
def test_only_allowed_tokens_are_sampled(sampler: AnySampler) -> None:
    row = normal(SIZE, scale=0.1)
    assert support(sampler, row, allowed_tokens=(0, 33, 511, 512, 699)) == {0, 33, 511, 512, 699}


@BOTH
def test_greedy_is_the_best_of_the_allowed_tokens(sampler: AnySampler) -> None:
    row = normal(SIZE)
    allowed = (5, 100, 640)
    assert sample_one(sampler, row, choice(temperature=0.0, allowed_tokens=allowed)).token == max(
        allowed, key=lambda token: row[token]
    )


@BOTH
def test_log_probabilities_stay_those_of_the_raw_distribution(sampler: AnySampler) -> None:
    row = normal(SIZE)
    sampled = sample_one(sampler, row, choice(allowed_tokens=(7,), banned_tokens=(9,), logprobs=2))
    assert sampled.token == 7
    assert sampled.logprob == pytest.approx(exact_logprobs(row)[7], abs=1e-5)
    assert [token for token, _ in sampled.top] == np.argsort(-row)[:2].tolist()


@BOTH
def test_the_mask_of_a_step_and_the_allowed_tokens_of_the_choice_both_count(sampler: AnySampler) -> None:
    row = normal(SIZE).reshape(1, -1)
    state = choice(allowed_tokens=(4, 8, 12))
    mask = pack_mask([8, 40], SIZE)
    [with_both, mask_only, neither] = sampler.sample(
        row, [0, 0, 0], [state, choice(), choice()], [None] * 3, [mask, mask, None]
    )
    assert with_both.token == 8
    assert mask_only.token in (8, 40)
    assert neither.token == sample_one(sampler, row[0], choice()).token


@BOTH
def test_without_a_token_left_the_row_fails_alone(sampler: AnySampler) -> None:
    row = normal(SIZE).reshape(1, -1)
    failed, other = sampler.sample(
        row, [0, 0], [choice(allowed_tokens=(4,), banned_tokens=(4,)), choice()], [None, None]
    )
    assert failed.token == NO_TOKEN_LEFT
    assert other.token >= 0


@BOTH
def test_a_banned_sequence_bans_its_last_token_only_after_the_others(sampler: AnySampler) -> None:
    row = np.full(SIZE, -10.0, np.float32)
    row[[30, 31]] = 20.0, 10.0
    sequences = ((10, 20, 30),)

    def greedy(*accepted: int) -> int:
        state = choice(temperature=0.0, banned_sequences=sequences, accepted=accepted)
        return sample_one(sampler, row, state).token

    assert greedy() == greedy(20) == greedy(10) == greedy(10, 20, 20) == greedy(20, 10) == 30
    assert greedy(10, 20) == greedy(1, 2, 3, 10, 20) == 31


@BOTH
def test_a_sampler_after_drafts_bans_what_the_accepted_tokens_would(sampler: AnySampler) -> None:
    row = np.full(SIZE, -10.0, np.float32)
    row[[30, 31]] = 20.0, 10.0
    state = choice(temperature=0.0, banned_sequences=((10, 20, 30),), accepted=(10,))
    assert sample_one(sampler, row, state.after((20,))).token == 31
    assert sample_one(sampler, row, state).token == 30
