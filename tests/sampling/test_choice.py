"""The sampling state of one choice."""

from __future__ import annotations

from tests.sampling.harness import choice


def test_accepting_advances_the_position_and_counts_the_token() -> None:
    sampler = choice(seed=1, number=3, presence_penalty=1.0)
    for token in (5, 9, 5, 5):
        sampler.accept(token)
    assert (sampler.choice, sampler.position) == (3, 4)
    assert (sampler.counts.ids.tolist(), sampler.counts.counts.tolist()) == ([5, 9], [3, 1])


def test_tokens_that_are_not_penalised_are_not_counted_but_fill_the_window() -> None:
    sampler = choice(repetition_penalty=2.0, penalty_last_n=3, unpenalized_tokens=(9,))
    for token in (5, 9, 6, 9, 9):
        sampler.accept(token)
    assert sampler.counts.ids.tolist() == [6]
    sampler.accept(9)
    assert sampler.counts.ids.tolist() == []


def test_counts_of_many_distinct_tokens_are_kept_in_order_of_appearance() -> None:
    sampler = choice(presence_penalty=1.0)
    for token in [*range(100, 0, -1), *range(1, 41)]:
        sampler.accept(token)
    assert sampler.counts.ids.tolist() == list(range(100, 0, -1))
    assert sampler.counts.counts.tolist() == [1.0] * 60 + [2.0] * 40


def test_two_choices_of_one_job_do_not_share_counts() -> None:
    first, second = choice(number=0, frequency_penalty=0.5), choice(number=1, frequency_penalty=0.5)
    first.accept(4)
    assert (second.position, second.counts.ids.size) == (0, 0)


def test_without_penalties_nothing_is_counted() -> None:
    sampler = choice()
    sampler.accept(4)
    assert (sampler.position, sampler.counts.ids.size) == (1, 0)
