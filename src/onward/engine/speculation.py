"""How many guessed tokens a step evaluates: as many as pay, by what steps have cost and what guesses were worth.

A guess that is evaluated is one more row of the step. It is worth its place when the chance that it becomes a token
is greater than what the row's time would otherwise yield in tokens: many guesses for a lone choice, few or none
where many choices share a step already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as ReadOnly

from onward.engine.drafts import Draft, Guess
from onward.engine.pacing import StepCost
from onward.engine.sequence import Sequence

MOST = 96
"""Guessed tokens that one step evaluates at most."""


def choose_drafts(writers: ReadOnly[Sequence], cost: StepCost) -> dict[int, Draft]:
    """The drafts worth evaluating, by sequence id. `writers` are all sequences that the next step writes."""
    if not writers or not cost.known:
        return {}
    floor = cost.row * len(writers) / cost.decode(len(writers))
    guesses = {sequence.id: guess for sequence in writers if (guess := sequence.guess(floor))}
    if not guesses:
        return {}
    return {
        sequence: Draft(guesses[sequence].tokens[:count], guesses[sequence].source)
        for sequence, count in _worth_evaluating(guesses, len(writers), cost).items()
    }


def _worth_evaluating(guesses: dict[int, Guess], writers: int, cost: StepCost) -> Counter[int]:
    """For each sequence how many of its guesses: the likeliest of all first, until the next would slow the rest down.

    A sequence's chances fall from token to token, so this takes a front part of each.
    """
    chances = [(chance, sequence) for sequence, guess in guesses.items() for chance in guess.chances]
    chances.sort(reverse=True)
    counts: Counter[int] = Counter()
    tokens, seconds, row = float(writers), cost.decode(writers), cost.row
    for chance, sequence in chances[:MOST]:
        if chance * seconds <= row * tokens:
            break
        counts[sequence] += 1
        tokens += chance
        seconds += row
    return counts
