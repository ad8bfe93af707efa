"""Decides how many draft tokens a step evaluates, by the measured cost of steps and the estimated quality of drafts.

Each evaluated draft token is one more row of the step. It pays if it is accepted with a probability higher than the
number of tokens that the time for its row yields otherwise: many are evaluated for a single sequence, few or none for
each of many. A step with another number of rows than the one before costs extra, so steps have few different numbers of
rows, and change them only where that pays. And no sequence has a longer draft than it can afford to lose
(`draft_budget`), however probable its tokens seem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as ReadOnly
from itertools import accumulate

from onward.engine.draft_budget import MAX_STAKE_FRACTION
from onward.engine.draft_model import DraftModel
from onward.engine.drafter import Draft, Proposal
from onward.engine.model import Hook, StepShape, nothing
from onward.engine.pacing import MAX_OUTLIER_RATIO, RECOVERY_WEIGHT, StepCost
from onward.engine.sequence import Sequence

STEP_SIZES = (2, 4, 8, 16, 32, 48, 64, 128)
"""Usual numbers of rows of a step with drafts."""
MAX_FRUITLESS_STEPS = 4
"""After this many successive searches without a draft, the search is skipped for one step, then for two, and so on."""
MAX_SKIPPED_STEPS = 8
"""Maximum successive steps without a search, so that drafts start soon after a text begins to repeat."""


class Speculation:
    """Chooses the drafts of each step, keeps the sequences' budgets, and searches less often while there are no drafts,
    because the search takes time. Owns the draft model, if there is one. Engine thread only."""

    def __init__(
        self, shape: StepShape, cost: StepCost, clock: Callable[[], float], draft_model: DraftModel | None = None
    ) -> None:
        """`clock` returns seconds."""
        self._max_tokens, self._cost, self._clock = shape.max_draft_tokens, cost, clock
        self._draft_model = draft_model
        self._num_fruitless = self._num_to_skip = 0
        self._before_compute: Hook = nothing
        self._seconds_before = self._searching = 0.0
        """What the draft model had computed before this step, and how long drafts were searched for in it."""
        self._expected_search = 0.0
        """How long the last search took, less with each step without one: another process may have delayed it."""
        self._decoding: list[tuple[Sequence, int]] = []
        """The sequences of this step, if it only decodes, and how many tokens each has generated before."""
        self._drafted: Counter[int] = Counter()
        """How many tokens were drafted for this step, by sequence id."""
        self._drafted_before: Counter[int] = Counter()
        """The same for the step before."""

    @property
    def seconds(self) -> float:
        """How long the draft model has computed since the start."""
        return 0.0 if self._draft_model is None else self._draft_model.seconds

    def begin_step(self, before_compute: Hook) -> None:
        """A step begins; `before_compute` is for a draft that a model computes."""
        self._before_compute = before_compute
        self._seconds_before, self._searching = self.seconds, 0.0
        self._drafted_before, self._drafted, self._decoding = self._drafted, Counter(), []

    def end_step(self, seconds: float, num_rows: int, prefilled: Mapping[Sequence, int]) -> float:
        """A step of so many rows, which has computed so many tokens of prompts, has ended. Returns how many of its
        seconds were not for drafting."""
        drafting = self.seconds - self._seconds_before
        seconds -= drafting + self._searching
        if prefilled:
            self._account_prefill(seconds, num_rows - len(prefilled), prefilled)
        elif self._decoding:
            self._account(seconds, drafting, num_rows)
        if self._draft_model is not None:
            self._draft_model.observe(seconds)
        return seconds

    def accepted(self, draft: Draft, num_accepted: int, num_rejected: int) -> None:
        """So many of a draft's tokens were accepted, and so many rejected."""
        if self._draft_model is not None and draft.source == "model":
            self._draft_model.accepted(num_accepted, num_rejected)

    def close(self) -> None:
        """Free the draft model's memory. No call follows."""
        if self._draft_model is not None:
            self._draft_model.close()

    def wake(self) -> None:
        """Search in every step again: a sequence with a prediction has been prefilled."""
        self._num_fruitless = self._num_to_skip = 0

    def choose(self, decoding: ReadOnly[Sequence]) -> dict[int, Draft]:
        """Return the drafts worth evaluating, by sequence id. `decoding` are all sequences of the next step, at least
        one.

        After a step with prompt tokens there are none: more prompts may be waiting, which drafts would delay. A draft
        model is used for one sequence alone, where it is expected to save more than what text repeats.
        """
        self._decoding = [(sequence, sequence.num_generated) for sequence in decoding]
        drafts = self._choose(decoding) if self._cost.rows_before else {}
        self._drafted = Counter({sequence: len(draft.tokens) for sequence, draft in drafts.items()})
        return drafts

    def _choose(self, decoding: ReadOnly[Sequence]) -> dict[int, Draft]:
        drafts = self._search(decoding)
        model = self._draft_model
        if model is None or len(decoding) > 1:
            return drafts
        [sequence] = decoding
        if drafts and drafts[sequence.id].expected >= model.balance.saved:
            return drafts
        own = model.draft(sequence, self._before_compute)
        return drafts if own is None else {sequence.id: own}

    def _search(self, decoding: ReadOnly[Sequence]) -> dict[int, Draft]:
        """Return the drafts from predictions, repeated text and grammars, for the sequences that can afford one."""
        if self._num_to_skip and not any(sequence.constraint for sequence in decoding):
            self._num_to_skip -= 1
            return {}
        self._expected_search *= 1.0 - RECOVERY_WEIGHT
        affordable = affordable_tokens(decoding, self._cost, self._expected_search)
        if not affordable:
            return {}
        began = self._clock()
        drafts = choose_drafts(decoding, affordable, self._cost, self._max_tokens)
        self._searching = self._clock() - began
        self._expected_search = min(self._searching, self._cost.plain(len(decoding)))
        self._num_fruitless = 0 if drafts else self._num_fruitless + 1
        self._num_to_skip = min(max(0, self._num_fruitless - MAX_FRUITLESS_STEPS + 1), MAX_SKIPPED_STEPS)
        return drafts

    def _account_prefill(self, seconds: float, num_rows: int, prefilled: Mapping[Sequence, int]) -> None:
        """Count a step of so many seconds, with so many rows that decode, in the budgets of the sequences whose prompts
        it has computed: by what it has taken, since a token of a short prompt takes less than one of those before it,
        which may have been long."""
        if num_rows:
            seconds = max(0.0, seconds - self._cost.decode_only(num_rows))
        per_token = seconds / sum(prefilled.values())
        for sequence, num_tokens in prefilled.items():
            sequence.draft_budget.prefilled(num_tokens * per_token)

    def _account(self, seconds: float, drafting: float, num_rows: int) -> None:
        """Count a decode-only step of so many seconds, besides those for drafting and for searching drafts, in the
        budgets of its sequences.

        Those with drafts have added what it took longer than without, by their rows; and to the step after it, that it
        has another number of rows again. All of them have searched: no longer than a step takes, since a search that
        did was delayed by other processes.
        """
        cost, num_decoding, by = self._cost, len(self._decoding), self._drafted
        plain, added = cost.plain(max(num_decoding, num_rows - by.total())), 0.0
        if by:
            longest = MAX_OUTLIER_RATIO * (cost.plain(num_rows) + cost.change * (num_rows != cost.rows_before))
            added = max(0.0, min(seconds, longest) - plain)
        elif self._drafted_before and num_rows != cost.rows_before:
            added, by = cost.change, self._drafted_before
        per_token, search = added / max(1, by.total()), min(self._searching, plain) / num_decoding
        for sequence, num_before in self._decoding:
            own = per_token * by[sequence.id] + search + (drafting if num_decoding == 1 else 0.0)
            num_tokens = sequence.num_generated - num_before
            sequence.draft_budget.decoded(num_tokens, plain / num_decoding, own)


def affordable_tokens(decoding: ReadOnly[Sequence], cost: StepCost, search: float = 0.0) -> dict[int, int]:
    """Return how many tokens to draft at most for the next step, of which `decoding` are all sequences, by sequence id:
    only those sequences that can afford that one is rejected, and a search of so many seconds for all of them."""
    num_decoding, row = len(decoding), cost.most_row
    share = cost.plain(num_decoding) / num_decoding
    least = cost.round_trip(num_decoding) + cost.most_added(1) + search / num_decoding
    found = {each.id: 1.0 + (each.draft_budget.available(share) - least) / row for each in decoding}
    return {sequence: max(1, int(MAX_STAKE_FRACTION * most)) for sequence, most in found.items() if most >= 1.0}


def choose_drafts(
    decoding: ReadOnly[Sequence], affordable: Mapping[int, int], cost: StepCost, max_tokens: int
) -> dict[int, Draft]:
    """Return the drafts worth evaluating, by sequence id. `decoding` are all sequences of the next step, at least one;
    the step before must have been a decode-only one. `affordable`: the most tokens of a draft, by sequence id;
    `max_tokens`: of all drafts."""
    promising = _follow([sequence for sequence in decoding if sequence.id in affordable])
    if not promising:
        return {}
    min_probability = cost.row * len(decoding) / cost.decode(len(decoding))
    proposals = {
        sequence.id: proposal
        for sequence in promising
        if (proposal := sequence.propose_draft(affordable[sequence.id], min_probability))
    }
    if not _may_pay(proposals.values(), len(decoding), cost):
        return {}
    return {
        sequence: _first_of(proposals[sequence], count)
        for sequence, count in _worth_evaluating(proposals, len(decoding), cost, max_tokens).items()
    }


def _first_of(proposal: Proposal, count: int) -> Draft:
    return Draft(proposal.tokens[:count], proposal.source, sum(proposal.probabilities[:count]))


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


def _worth_evaluating(
    proposals: dict[int, Proposal], num_decoding: int, cost: StepCost, max_tokens: int
) -> Counter[int]:
    """Return how many of its proposed tokens to evaluate per sequence: of all, the most probable ones, as many as yield
    the most tokens per second, but at most `max_tokens`.

    The probabilities of a sequence's tokens decrease, so these are the first ones of each.
    """
    ranked = [(each, sequence) for sequence, proposal in proposals.items() for each in proposal.probabilities]
    ranked.sort(reverse=True)
    del ranked[max_tokens:]
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
