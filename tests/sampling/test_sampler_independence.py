"""The results of a row depend on that row and its choice alone, bit for bit; inputs are never mutated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.sampling import sampler
from onward.sampling.outputs import NOT_FINITE
from onward.sampling.sampler import Sampler
from tests.sampling.harness import choice, normal, sample_one

SIZE = 1531  # not a multiple of anything: rows begin at every alignment
KINDS: list[dict[str, Any]] = [
    {"logprobs": 5},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 50, "logprobs": 0},
    {"min_p": 0.05, "logprobs": 20},
    {"presence_penalty": 1.0, "logit_bias": ((1, 5.0), (7, -100.0)), "logprobs": 3},
    {"repetition_penalty": 1.2, "top_p": 0.8},
    {"temperature": 1.5, "logprobs": 70},
]


def numbered(i: int) -> Any:
    return choice(number=i, seed=40 + i, accepted=range(i), **KINDS[i % len(KINDS)])


def test_a_row_in_a_batch_has_the_same_bits_as_alone() -> None:
    logits, sampler = normal(SIZE, rows=32), Sampler(SIZE)
    banned = [frozenset({3, i}) if i % 5 == 0 else None for i in range(32)]
    together = sampler.sample(logits, range(32), [numbered(i) for i in range(32)], banned)
    for i, sampled in enumerate(together):
        # repr compares NaN with NaN, and floats to the last bit
        assert repr(sample_one(sampler, logits[i].copy(), numbered(i), banned[i])) == repr(sampled)
    backwards = sampler.sample(logits, range(31, -1, -1), [numbered(i) for i in range(31, -1, -1)], banned[::-1])
    assert repr(backwards[::-1]) == repr(together)


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = normal(SIZE, rows=11)
    rows = [*range(11), 10, 10, 0, 3]
    banned = [frozenset({3, i}) if i % 5 == 0 else None for i in range(15)]
    alone = Sampler(SIZE, num_threads=1).sample(logits, rows, [numbered(i) for i in range(15)], banned)
    monkeypatch.setattr(sampler, "MIN_LOGITS_PER_THREAD", 3 * SIZE)
    for threads in (2, 3, 4):
        shared = Sampler(SIZE, num_threads=threads)
        assert repr(shared.sample(logits, rows, [numbered(i) for i in range(15)], banned)) == repr(alone)
        assert len(shared._steps) == threads, "the step was shared"


def test_a_closed_sampler_has_no_threads_and_samples_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "MIN_LOGITS_PER_THREAD", SIZE)
    logits, closed = normal(SIZE, rows=3), Sampler(SIZE, num_threads=3)
    choices = [numbered(i) for i in range(3)]
    before = closed.sample(logits, range(3), choices, [None] * 3)
    threads = set(closed._threads._pool._threads)
    assert any(thread.is_alive() for thread in threads)
    for _ in range(2):
        closed.close()
        assert not any(thread.is_alive() for thread in threads)
    assert repr(closed.sample(logits, range(3), choices, [None] * 3)) == repr(before)


@pytest.mark.parametrize("num_top", [0, 3, 70])
def test_a_row_that_is_not_finite_does_not_change_the_others(monkeypatch: pytest.MonkeyPatch, num_top: int) -> None:
    """On any thread, and with several choices that share the row."""
    monkeypatch.setattr(sampler, "MIN_LOGITS_PER_THREAD", SIZE)
    logits, rows = normal(SIZE, rows=8), [0, 1, 2, 3, 4, 5, 6, 6, 7]
    arguments = rows, [choice(logprobs=num_top) for _ in rows], [None] * len(rows)
    before = Sampler(SIZE, num_threads=4).sample(logits, *arguments)
    logits[6, 5] = np.nan
    after = Sampler(SIZE, num_threads=4).sample(logits, *arguments)
    assert [one.token for one in after[6:8]] == [NOT_FINITE, NOT_FINITE]
    assert after[:6] + after[8:] == before[:6] + before[8:]


def test_choices_that_share_a_row_sample_as_if_each_had_its_own() -> None:
    logits, sampler = normal(SIZE, rows=2), Sampler(SIZE)
    rows = [0, 0, 1, 0, 1, 1, 0, 0]
    shared = sampler.sample(logits, rows, [numbered(i) for i in range(8)], [None] * 8)
    own = sampler.sample(logits[rows], range(8), [numbered(i) for i in range(8)], [None] * 8)
    assert repr(shared) == repr(own)


def test_a_sampler_keeps_no_state_between_calls() -> None:
    logits, sampler = normal(SIZE, rows=40), Sampler(SIZE)
    first = sample_one(sampler, logits[0], numbered(5))
    sampler.sample(logits, range(40), [numbered(i) for i in range(40)], [None] * 40)
    assert repr(sample_one(sampler, logits[0], numbered(5))) == repr(first)
    assert repr(sample_one(Sampler(SIZE), logits[0], numbered(5))) == repr(first)


def test_neither_logits_nor_choices_are_mutated() -> None:
    logits, sampler = normal(SIZE, rows=8), Sampler(SIZE)
    before, choices = logits.copy(), [numbered(i) for i in range(8)]
    sampler.sample(logits, range(8), choices, [frozenset({1})] * 8)
    assert np.array_equal(logits, before)
    assert [state.position for state in choices] == list(range(8))


def test_read_only_and_strided_logits_are_accepted() -> None:
    wide, sampler = normal(2 * SIZE, rows=3), Sampler(SIZE)
    strided = wide[:, ::2]
    plain = np.ascontiguousarray(strided)
    expected = sampler.sample(plain, [2], [numbered(0)], [None])
    assert sampler.sample(strided, [2], [numbered(0)], [None]) == expected
    plain.flags.writeable = False
    assert sampler.sample(plain, [2], [numbered(0)], [None]) == expected


@pytest.mark.parametrize("logits", [np.zeros((2, 5), np.float32), np.zeros((2, 4)), np.zeros(4, np.float32)])
def test_logits_of_another_shape_or_dtype_are_refused(logits: Any) -> None:
    with pytest.raises(ValueError, match=r"float32 \[rows, 4\]"):
        Sampler(4).sample(logits, [0], [choice()], [None])


def test_rows_out_of_range_are_refused() -> None:
    for row in (-1, 2):
        with pytest.raises(IndexError, match="row is out of range"):
            Sampler(4).sample(np.zeros((2, 4), np.float32), [row], [choice()], [None])
    with pytest.raises(ValueError, match="differ in length"):
        Sampler(4).sample(np.zeros((2, 4), np.float32), [0, 1], [choice()], [None])
    assert Sampler(4).sample(np.zeros((0, 4), np.float32), [], [], []) == []
