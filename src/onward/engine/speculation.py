"""Decides how many draft tokens a step evaluates, by the measured cost of steps and the estimated quality of drafts.

Each evaluated draft token is one more row of the step. It pays if it is accepted with a probability higher than the
number of tokens that the time for its row yields otherwise: many are evaluated for a single sequence, few or none for
each of many. A step with another number of rows than the one before costs extra, so steps have few different numbers of
rows, and change them only where that pays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as ReadOnly
from itertools import accumulate

from onward.engine.drafter import Draft, Proposal
from onward.engine.pacing import StepCost
from onward.engine.sequence import Sequence

MAX_STEP_DRAFT_TOKENS = 96
"""Maximum draft tokens per step."""
STEP_SIZES = (2, 4, 8, 16, 32, 48, 64, 128)
"""Usual numbers of rows of a step with drafts."""
MAX_FRUITLESS_STEPS = 4
"""After this many successive searches without a draft, the search is skipped for one step, then for two, and so on."""
MAX_SKIPPED_STEPS = 8
"""Maximum successive steps without a search, so that drafts start soon after a text begins to repeat."""


class Speculation:
    """Chooses the drafts of each step, and searches less often while there are none, because the search takes time.
    Engine thread only."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._num_fruitless = self._num_to_skip = 0

    def wake(self) -> None:
        """Search in every step again: a sequence with a prediction has been prefilled."""
        self._num_fruitless = self._num_to_skip = 0

    def choose(self, decoding: ReadOnly[Sequence]) -> dict[int, Draft]:
        """Return the drafts worth evaluating, by sequence id. `decoding` are all sequences of the next step, at least
        one.

        After a step with prompt tokens there are none: more prompts may be waiting, which drafts would delay.
        """
        if not self._cost.rows_before:
            return {}
        if self._num_to_skip and not any(sequence.constraint for sequence in decoding):
            self._num_to_skip -= 1
            return {}
        drafts = choose_drafts(decoding, self._cost)
        self._num_fruitless = 0 if drafts else self._num_fruitless + 1
        self._num_to_skip = min(max(0, self._num_fruitless - MAX_FRUITLESS_STEPS + 1), MAX_SKIPPED_STEPS)
        return drafts


def choose_drafts(decoding: ReadOnly[Sequence], cost: StepCost) -> dict[int, Draft]:
    """Return the drafts worth evaluating, by sequence id. `decoding` are all sequences of the next step, at least one;
    the step before must have been a decode-only one."""
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
    """Let every drafter process the sampled tokens. Returns the sequences whose next token may be drafted."""
    promising: list[Sequence] = []
    for sequence in decoding:
        if sequence.drafter is not None and (sequence.drafter.follow() or sequence.constraint is not None):
            promising.append(sequence)
    return promising


def _may_pay(proposals: Iterable[Proposal], num_decoding: int, cost: StepCost) -> bool:
    """Whether any number of draft tokens can pay: not if all together would not pay for a single row."""
    expected_tokens = sum(sum(proposal.probabilities) for proposal in proposals)
    if cost.rows_before != num_decoding:
        return expected_tokens > 0.0
    return expected_tokens * cost.decode(num_decoding) > (cost.row + cost.change) * num_decoding


def _worth_evaluating(proposals: dict[int, Proposal], num_decoding: int, cost: StepCost) -> Counter[int]:
    """Return how many of its proposed tokens to evaluate per sequence: of all, the most probable ones, as many as yield
    the most tokens per second.

    The probabilities of a sequence's tokens decrease, so these are the first ones of each.
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
    """Yield the numbers of draft tokens to consider: 0, one that keeps the number of rows, and up to usual sizes."""
    yield 0
    if 0 < cost.rows_before - num_decoding <= max_drafts:
        yield cost.rows_before - num_decoding
    yield from (size - num_decoding for size in STEP_SIZES if 0 < size - num_decoding <= max_drafts)


def _seconds(num_rows: int, cost: StepCost) -> float:
    """Return the expected duration of a step of so many decode rows."""
    return cost.decode(num_rows) + (cost.change if num_rows != cost.rows_before else 0.0)
