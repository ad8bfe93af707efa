"""How many draft tokens a step evaluates: as many as pay, by what steps have cost and how drafts have fared.

A draft token that is evaluated is one more row of the step. It pays when the probability that it is accepted is
greater than what the row's time would otherwise yield in tokens: many for a lone choice, few or none where many choices
share a step already. A step with another number of rows than the one before costs extra, so the numbers are few, and
change only where that pays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as ReadOnly
from itertools import accumulate

from onward.engine.drafter import Draft, Proposal
from onward.engine.sequence import Sequence
from onward.engine.step_cost import StepCost

MAX_STEP_DRAFT_TOKENS = 96
"""Draft tokens that one step evaluates at most."""
STEP_SIZES = (2, 4, 8, 16, 32, 48, 64, 128)
"""How many rows a step with drafts has, as a rule."""
MAX_FRUITLESS_STEPS = 4
"""After so many steps in a row without a draft one is skipped, then two, and so on."""
MAX_SKIPPED_STEPS = 8
"""Steps skipped in a row at most: text that begins to repeat waits no longer to be drafted."""


class Speculation:
    """Chooses drafts step by step, and looks for them less often where there are none: judging drafts takes time too.
    Engine thread only."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._num_fruitless = self._num_to_skip = 0

    def wake(self) -> None:
        """A choice with a prediction has come: look again from now on."""
        self._num_fruitless = self._num_to_skip = 0

    def choose(self, decoding: ReadOnly[Sequence]) -> dict[int, Draft]:
        """The drafts worth evaluating for `decoding`, by sequence id. These are all sequences of the next step, at
        least one.

        Right after a step with prompt tokens there are none: a row beside a prompt saves no step, and waiting requests
        would pay for it.
        """
        if not self._cost.rows_before:
            return {}
        if self._num_to_skip:
            self._num_to_skip -= 1
            return {}
        drafts = choose_drafts(decoding, self._cost)
        self._num_fruitless = 0 if drafts else self._num_fruitless + 1
        self._num_to_skip = min(max(0, self._num_fruitless - MAX_FRUITLESS_STEPS + 1), MAX_SKIPPED_STEPS)
        return drafts


def choose_drafts(decoding: ReadOnly[Sequence], cost: StepCost) -> dict[int, Draft]:
    """The drafts worth evaluating, by sequence id. `decoding` are all sequences of the next step, at least one; the
    step before only decoded, so `cost` knows what that takes."""
    promising = _follow(decoding)
    if not promising:
        return {}
    min_probability = cost.row * len(decoding) / cost.decode(len(decoding))
    proposals = {
        sequence.id: proposal for sequence in promising if (proposal := sequence.propose_draft(min_probability))
    }
    if not _may_pay(proposals.values(), len(decoding), cost):
        return {}
    return {
        sequence: Draft(proposals[sequence].tokens[:count], proposals[sequence].source)
        for sequence, count in _worth_evaluating(proposals, len(decoding), cost).items()
    }


def _follow(decoding: ReadOnly[Sequence]) -> list[Sequence]:
    """Let every drafter follow what was sampled. Returns the sequences whose next token may be drafted."""
    promising: list[Sequence] = []
    for sequence in decoding:
        if sequence.drafter is not None and sequence.drafter.follow():
            promising.append(sequence)
    return promising


def _may_pay(proposals: Iterable[Proposal], num_decoding: int, cost: StepCost) -> bool:
    """Whether any number of draft tokens can be worth its time: not if all together would not be worth one row's."""
    expected_tokens = sum(sum(proposal.probabilities) for proposal in proposals)
    if cost.rows_before != num_decoding:
        return expected_tokens > 0.0
    return expected_tokens * cost.decode(num_decoding) > (cost.row + cost.change) * num_decoding


def _worth_evaluating(proposals: dict[int, Proposal], num_decoding: int, cost: StepCost) -> Counter[int]:
    """Per sequence, how many of its proposed tokens to evaluate, the likeliest of all: as many as yield the most tokens
    per second.

    A sequence's probabilities fall from token to token, so this takes a front part of each.
    """
    ranked = [(each, sequence) for sequence, proposal in proposals.items() for each in proposal.probabilities]
    ranked.sort(reverse=True)
    del ranked[MAX_STEP_DRAFT_TOKENS:]
    tokens = list(accumulate((probability for probability, _ in ranked), initial=float(num_decoding)))
    best = max(
        _counts(len(ranked), num_decoding, cost), key=lambda count: tokens[count] / _seconds(num_decoding + count, cost)
    )
    return Counter(sequence for _, sequence in ranked[:best])


def _counts(max_drafts: int, num_decoding: int, cost: StepCost) -> Iterator[int]:
    """How many draft tokens a step may have: none, as many as keep its rows as they were, or up to a usual size."""
    yield 0
    if 0 < cost.rows_before - num_decoding <= max_drafts:
        yield cost.rows_before - num_decoding
    yield from (size - num_decoding for size in STEP_SIZES if 0 < size - num_decoding <= max_drafts)


def _seconds(num_rows: int, cost: StepCost) -> float:
    return cost.decode(num_rows) + (cost.change if num_rows != cost.rows_before else 0.0)
