"""How many guessed tokens a step evaluates: as many as pay, by what steps have cost and what guesses were worth.

A guess that is evaluated is one more row of the step. It is worth its place when the chance that it becomes a token
is greater than what the row's time would otherwise yield in tokens: many guesses for a lone choice, few or none
where many choices share a step already. A step with another number of rows than the one before costs extra, so the
numbers are few, and change only where that pays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as ReadOnly
from itertools import accumulate

from onward.engine.drafts import Draft, Guess
from onward.engine.pacing import StepCost
from onward.engine.sequence import Sequence

MOST_GUESSES = 96
"""Guessed tokens that one step evaluates at most."""
SIZES = (2, 4, 8, 16, 32, 48, 64, 128)
"""How many rows a step with guesses has, as a rule."""
HOPE = 4
"""After so many steps in a row that were looked through in vain one is passed over, then two, and so on."""
MOST_PASSED = 8
"""Steps passed over together at most: text that begins to repeat waits no longer to be guessed."""


class Speculation:
    """Chooses drafts step by step, and looks for them less often where there are none: judging guesses takes time too.
    Engine thread only."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._in_vain = self._to_pass = 0

    def wake(self) -> None:
        """A choice has come of which a text is foretold: look again from now on."""
        self._in_vain = self._to_pass = 0

    def choose(self, writers: ReadOnly[Sequence]) -> dict[int, Draft]:
        """The drafts worth evaluating beside `writers`, which are all that the next step evaluates and at least one.

        Right after a step that read prompts there are none: a row beside a prompt saves no step, and those who wait
        would pay for it.
        """
        if not self._cost.rows_before:
            return {}
        if self._to_pass:
            self._to_pass -= 1
            return {}
        drafts = choose_drafts(writers, self._cost)
        self._in_vain = 0 if drafts else self._in_vain + 1
        self._to_pass = min(max(0, self._in_vain - HOPE + 1), MOST_PASSED)
        return drafts


def choose_drafts(writers: ReadOnly[Sequence], cost: StepCost) -> dict[int, Draft]:
    """The drafts worth evaluating, by sequence id. `writers` are all sequences that the next step writes, at least one;
    the step before only decoded, so `cost` knows what that takes."""
    promising = _follow(writers)
    if not promising:
        return {}
    floor = cost.row * len(writers) / cost.decode(len(writers))
    guesses = {sequence.id: guess for sequence in promising if (guess := sequence.guess(floor))}
    if not _may_pay(guesses.values(), len(writers), cost):
        return {}
    return {
        sequence: Draft(guesses[sequence].tokens[:count], guesses[sequence].source)
        for sequence, count in _worth_evaluating(guesses, len(writers), cost).items()
    }


def _follow(writers: ReadOnly[Sequence]) -> list[Sequence]:
    """Let every drafter take in what was drawn, as `Sequence.guess` asks for; those whose next token may be guessed."""
    promising: list[Sequence] = []
    for sequence in writers:
        if sequence.drafter is not None and sequence.drafter.follow():
            promising.append(sequence)
    return promising


def _may_pay(guesses: Iterable[Guess], writers: int, cost: StepCost) -> bool:
    """Whether any number of guesses can be worth its time: not if all of them would not be worth a single row's."""
    extra = sum(sum(guess.chances) for guess in guesses)
    if cost.rows_before != writers:
        return extra > 0.0
    return extra * cost.decode(writers) > (cost.row + cost.change) * writers


def _worth_evaluating(guesses: dict[int, Guess], writers: int, cost: StepCost) -> Counter[int]:
    """For each sequence how many of its guesses, the likeliest of all: as many as give the most tokens a second.

    A sequence's chances fall from token to token, so this takes a front part of each.
    """
    chances = [(chance, sequence) for sequence, guess in guesses.items() for chance in guess.chances]
    chances.sort(reverse=True)
    del chances[MOST_GUESSES:]
    tokens = list(accumulate((chance for chance, _ in chances), initial=float(writers)))
    best = max(_counts(len(chances), writers, cost), key=lambda count: tokens[count] / _seconds(writers + count, cost))
    return Counter(sequence for _, sequence in chances[:best])


def _counts(most: int, writers: int, cost: StepCost) -> Iterator[int]:
    """How many of `most` guesses a step may have: none, as many as keep its rows as they were, or a usual number."""
    yield 0
    if 0 < cost.rows_before - writers <= most:
        yield cost.rows_before - writers
    yield from (size - writers for size in SIZES if 0 < size - writers <= most)


def _seconds(rows: int, cost: StepCost) -> float:
    return cost.decode(rows) + (cost.change if rows != cost.rows_before else 0.0)
