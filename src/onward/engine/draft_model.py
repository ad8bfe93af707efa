"""Drafts for the one sequence that decodes, by a small model with the same tokens, or by layers of the model itself.

The draft model has a KV cache of its own, with the tokens of one sequence: those that another one has in common with it
stay. It samples as the model will, by the sequence's own sampler: with the random number of each position, so the two
agree more often than if it drafted what it considers most likely.

Each drafted token costs a step of the draft model, so a draft is as long as is expected to pay, and what drafts take
and yield is counted: where they do not pay, they end until an occasional one does. Whatever is expected of it, all that
the draft model does for a sequence has to fit into its budget (`draft_budget`), by what its steps cost (`draft_cost`);
so of a long prompt it gets the end, as much as is affordable. Drafts never change a token: `step` accepts only what the
sampler samples.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from onward.engine.draft_budget import MAX_STAKE_FRACTION
from onward.engine.draft_cache import DraftCache
from onward.engine.draft_cost import DraftCost
from onward.engine.draft_worth import Agreement, Balance
from onward.engine.drafter import Draft
from onward.engine.model import Hook, ModelRunner, Predictor, RecurrentModel, Row, nothing
from onward.engine.pacing import StepCost
from onward.engine.sequence import Sequence
from onward.sampling.sampler import Sampler

MAX_MODEL_DRAFT_TOKENS = 15
"""Maximum tokens of one draft."""
MIN_CHUNK_TOKENS = 2 * (MAX_MODEL_DRAFT_TOKENS + 1)
"""Fewest tokens to evaluate at once of those that the cache lacks: more than a draft has, and enough to say something
about the next one. As many are measured at load."""
PROBE_INTERVAL_TOKENS, MAX_PROBE_INTERVAL_TOKENS = 50, 200
"""Where drafts do not pay, one is tried after so many tokens: twice as many after each one that changed nothing, and
without a maximum where the draft model is too slow, whatever the text is."""
_STATE, _STATE_OF_DRAFTS = 0, 1
"""Those of a draft model whose sequences have some."""


@dataclass(slots=True)
class _Round:
    """A step for which drafting was tried: the levels of the draft's tokens that the model evaluates, and how many it
    has accepted."""

    levels: list[int]
    num_accepted: int = 0


class DraftModel:
    """Drafts tokens with a model that it owns. Engine thread only.

    `sampler`: the engine's, for logits of `vocab_size`; those of the draft model may have another width, because
    vocabularies are padded. `clock` returns seconds.
    """

    _may_begin_anywhere = True
    """Whether it may evaluate tokens of a sequence without those before them."""

    def __init__(
        self, model: ModelRunner, vocab_size: int, sampler: Sampler, cost: StepCost, clock: Callable[[], float]
    ) -> None:
        self.seconds = 0.0
        """How long it has computed since the start."""
        self.balance = Balance()
        self._model = model
        self._sampler = sampler
        self._cost = cost
        self._clock = clock
        self._agreement = Agreement()
        self._cached = DraftCache()
        self._blocks = list(range(model.blocks))
        self._max_tokens = min(model.context_length, model.blocks * model.shape.block_tokens)
        self._padded = np.full((1, vocab_size), -np.inf, np.float32)
        self._num_since_round = 0
        self._probe_interval = PROBE_INTERVAL_TOKENS
        self._round: _Round | None = None
        self._round_seconds = self._missing_seconds = 0.0
        """Of a round: all of it, and what was spent on tokens of the text that other rounds do not have to evaluate."""
        self._costs = DraftCost()

    def measure(self) -> None:
        """Measure what its steps cost. Before the first draft; slow, because it may have to read the weights."""
        num_tokens = min(MIN_CHUNK_TOKENS, (self._max_tokens - 1) // 2)
        if num_tokens < 2:
            return
        tokens = [self._model.vocab_size * index // (2 * num_tokens + 1) for index in range(2 * num_tokens + 1)]
        end = 0

        def seconds_of(num_prompt_tokens: int, num_rows: int) -> float:
            """Of a step after those before it, or from the beginning on if it is of a prompt."""
            nonlocal end
            begin = 0 if num_prompt_tokens else end
            end = begin + num_prompt_tokens + num_rows
            rows = _rows(-1, tokens[begin:end], num_prompt_tokens, begin, self._blocks, is_whole=True)
            began = self._clock()
            self._compute(rows, nothing)
            return self._clock() - began

        with suppress(MemoryError):  # else nothing is drafted
            self._costs = DraftCost.measured(seconds_of, num_tokens)

    def draft(self, sequence: Sequence, before_compute: Hook) -> Draft | None:
        """Return a draft for the sequence, the only one of the next step, which must have decoded before; None if none
        pays, or is affordable, or while its tokens are being evaluated: at most about a step's time at once.
        `before_compute`: see ModelRunner.evaluate."""
        self._num_since_round += 1
        if not self._cost.is_plain_known or not sequence.draft_room or sequence.constraint is not None:
            return None
        if not self._pays and self._num_since_round < self._probe_interval:
            return None
        began, self._missing_seconds = self._clock(), 0.0
        try:
            draft = self._draft(sequence, began + self._available(sequence), before_compute)
        except MemoryError:
            draft = None
            self._cached.evaluation_failed()
        seconds = self._clock() - began
        self.seconds += seconds
        self._round_seconds = seconds - self._missing_seconds
        return draft

    def accepted(self, num_accepted: int, num_rejected: int) -> None:
        """The model has sampled the first tokens of the draft of this step, as far as it was evaluated."""
        if self._round is not None:
            del self._round.levels[num_accepted + num_rejected :]
            self._round.num_accepted = num_accepted

    def observe(self, seconds: float) -> None:
        """A step has ended, and took so long without the time for its draft."""
        self._costs.recover()
        ended, self._round = self._round, None
        if ended is None:
            return
        self._num_since_round = 0
        self._agreement.learn(ended.levels, ended.num_accepted)
        was_probe = not self._pays
        self.balance.round(1 + ended.num_accepted, (seconds + self._round_seconds) / self._cost.plain(1))
        if self._pays:
            self._probe_interval = PROBE_INTERVAL_TOKENS
        elif was_probe:
            self._probe_interval *= 2
            if self._can_pay:
                self._probe_interval = min(self._probe_interval, MAX_PROBE_INTERVAL_TOKENS)

    def close(self) -> None:
        """Free the model's memory. No call follows."""
        self._model.close()

    @property
    def _pays(self) -> bool:
        """Whether drafts have paid lately, and can."""
        return self.balance.pays and self._can_pay

    @property
    def _can_pay(self) -> bool:
        """Whether a drafted token that is accepted saves anything: no more than a step."""
        return self._costs.token + self._cost.row < self._cost.plain(1)

    def _available(self, sequence: Sequence) -> float:
        """Return how many seconds drafting may take, and add to the step."""
        return sequence.draft_budget.available(self._cost.plain(1)) - self._cost.round_trip(1)

    def _draft(self, sequence: Sequence, until: float, before_compute: Hook) -> Draft | None:
        """Evaluate what the cache lacks of the sequence, and draft tokens; the rows of these, and what is done here,
        have to fit into the time `until`. None if it does not suffice, or not in this step."""
        if (logits := self._after_newest(sequence, until, before_compute)) is None:
            return None
        cost, row, step = self._cost, self._cost.row, self._cost.plain(1)
        room = min(sequence.draft_room, MAX_MODEL_DRAFT_TOKENS, self._max_tokens - len(self._cached.tokens))
        now = self._clock()
        stake_until = now + MAX_STAKE_FRACTION * (until - now)
        saved_seconds = min(1.0, self.balance.pace) * step  # by each accepted token
        sampler, job = sequence.sampler, sequence.job
        tokens: list[int] = []
        levels: list[int] = []
        probability = 1.0
        while len(tokens) < room and cost.most_added(len(tokens) + 1) <= until - self._clock():
            num_generated = sequence.num_generated + len(tokens)
            banned = job.end_tokens if num_generated < job.min_tokens else None
            [sampled] = self._sampler.sample(logits, [0], [sampler], [banned])
            if sampled.token < 0:
                break
            [scored] = self._sampler.score(logits, 0, [sampled.token], 0)
            level = self._agreement.level(scored.logprob)
            probability *= self._agreement.expected(level)
            if probability * saved_seconds <= row:
                break
            tokens.append(sampled.token)
            levels.append(level)
            if len(tokens) == room or sampled.token in job.end_tokens or sampled.token >= self._model.vocab_size:
                break
            if probability * self._agreement.mean * saved_seconds <= row + self._costs.token:
                break
            if cost.most_added(len(tokens) + 1) + self._costs.most_token > stake_until - self._clock():
                break
            sampler = sampler.after((sampled.token,))
            logits = self._evaluate_next(sequence, sampled.token)
        self._round = _Round(levels)
        return Draft(tokens, "model") if tokens else None

    def _after_newest(self, sequence: Sequence, until: float, before_compute: Hook) -> NDArray[np.float32] | None:
        """Return the logits after the newest token. None if that does not fit into the time `until`, with a drafted
        token and its row, or part of the tokens before it is left for later steps, or the draft model does not have one
        of them."""
        cached, costs, step = self._cached, self._costs, self._cost.plain(1)
        cached.keep_common(sequence)
        num_missing = len(sequence.tokens) - cached.end
        num_rows = len(sequence.tokens) - max(cached.end, sequence.prompt_length)
        num_prompt = num_missing - num_rows
        seconds = until - self._clock() - self._cost.most_added(1)
        if self._pays and num_missing > MAX_MODEL_DRAFT_TOKENS:  # at most a quarter of what drafts may save
            seconds = min(seconds, (1.0 - self.balance.pace) * sequence.draft_room / 4 * step)
        may_begin = self._may_begin_anywhere and not cached.is_partial
        affordable = costs.affordable(seconds, num_prompt, num_rows, from_end=may_begin)
        if min(num_missing, MIN_CHUNK_TOKENS) > affordable:
            return None
        if num_missing > affordable and may_begin:
            cached.begin_at(len(sequence.tokens) - affordable)
        if len(sequence.tokens) - cached.begin >= self._max_tokens:
            return None
        num_prompt = max(0, sequence.prompt_length - cached.end)
        of_a_step = max(costs.affordable(step, num_prompt, num_rows), self._model.shape.tile_tokens, MIN_CHUNK_TOKENS)
        most = min(of_a_step, affordable, self._model.shape.max_prefill_tokens)
        logits = self._evaluate_missing(sequence, most, before_compute)
        cached.is_partial = logits is None
        return logits

    def _evaluate_missing(
        self, sequence: Sequence, max_tokens: int, before_compute: Hook
    ) -> NDArray[np.float32] | None:
        """Evaluate the next tokens that the cache lacks. Returns the logits after the newest token; None if that is not
        among them, or the draft model does not have one of them.

        No chunk of a prompt is a single token, and generated tokens are rows of one token each, as the model's own: the
        nearer a draft model is to the model, the more often the two agree.
        """
        cached, prompt_length = self._cached, sequence.prompt_length
        if cached.tokens and prompt_length - cached.end == 1 and not cached.has_state:
            del cached.tokens[-1]
        begin = cached.end
        end = min(begin + max_tokens, len(sequence.tokens))
        if prompt_length - end == 1:
            end -= 1
        tokens = sequence.tokens[begin:end]
        if max(tokens) >= self._model.vocab_size:
            return None
        is_whole = end == len(sequence.tokens)
        num_prompt = max(0, min(end, prompt_length) - begin)
        blocks = self._blocks_of(sequence)
        rows = _rows(sequence.id, tokens, num_prompt, begin - cached.begin, blocks, is_whole=is_whole)
        began = self._clock()
        logits = self._compute(rows, before_compute)
        seconds = self._clock() - began
        self._costs.observe(num_prompt, len(tokens) - num_prompt, seconds)
        if len(tokens) > MAX_MODEL_DRAFT_TOKENS:
            self._missing_seconds = max(0.0, seconds - self._costs.token)
        cached.tokens += tokens
        cached.num_compared = len(cached.tokens)
        return self._widened(logits) if is_whole else None

    def _evaluate_next(self, sequence: Sequence, token: int) -> NDArray[np.float32]:
        """Return the logits after a drafted token."""
        began = self._clock()
        logits = self._extend(sequence, token)
        self._costs.observe(0, 1, self._clock() - began)
        return self._widened(logits)

    def _compute(self, rows: ReadOnly[Row], before_compute: Hook) -> NDArray[np.float32]:
        """Return the logits of rows of a text."""
        return self._model.evaluate(rows, before_compute)

    def _blocks_of(self, sequence: Sequence) -> ReadOnly[int]:
        """Return the block table of rows of a sequence."""
        return self._blocks

    def _extend(self, sequence: Sequence, token: int) -> NDArray[np.float32]:
        """As `_evaluate_next`, without measuring."""
        position = len(self._cached.tokens)
        self._cached.tokens.append(token)
        return self._model.evaluate([Row(sequence.id, (token,), position, self._blocks, 1)])

    def _widened(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return logits, float32 [1, width], with the model's width."""
        width = min(logits.shape[1], self._padded.shape[1])
        if width == self._padded.shape[1]:
            return logits[:, :width]
        self._padded[:, :width] = logits
        return self._padded


class PredictorDrafts(DraftModel):
    """Drafts tokens with layers of the model itself that predict several. Drafted tokens that were accepted are
    evaluated again, now from the model's hidden states: no cached key or value is one of a draft."""

    _may_begin_anywhere = False

    def __init__(
        self, model: Predictor, vocab_size: int, sampler: Sampler, cost: StepCost, clock: Callable[[], float]
    ) -> None:
        super().__init__(model, vocab_size, sampler, cost, clock)
        self._predictor = model

    def _blocks_of(self, sequence: Sequence) -> ReadOnly[int]:
        return sequence.blocks

    def _extend(self, sequence: Sequence, token: int) -> NDArray[np.float32]:
        return self._predictor.extend(token)


class RecurrentDrafts(DraftModel):
    """Drafts tokens with a model whose sequences have states. One takes in tokens of the text alone, a copy of it those
    of a draft: accepted ones are evaluated again, together with what follows. Nothing is kept for a sequence that does
    not continue the text."""

    def __init__(
        self, model: RecurrentModel, vocab_size: int, sampler: Sampler, cost: StepCost, clock: Callable[[], float]
    ) -> None:
        super().__init__(model, vocab_size, sampler, cost, clock)
        self._cached = DraftCache(has_state=True)
        self._recurrent = model
        self._num_drafted = 0
        """Tokens that the copy has taken in after those of the text."""

    def _compute(self, rows: ReadOnly[Row], before_compute: Hook) -> NDArray[np.float32]:
        logits = super()._compute(rows, before_compute)
        if rows[-1].outputs:
            self._recurrent.copy_state(_STATE, _STATE_OF_DRAFTS)
            self._num_drafted = 0
        return logits

    def _extend(self, sequence: Sequence, token: int) -> NDArray[np.float32]:
        position = len(self._cached.tokens) + self._num_drafted
        self._num_drafted += 1
        return self._model.evaluate([Row(sequence.id, (token,), position, self._blocks, 1, state=_STATE_OF_DRAFTS)])


def drafting_with(
    model: ModelRunner, vocab_size: int, sampler: Sampler, cost: StepCost, clock: Callable[[], float]
) -> DraftModel:
    """Return what drafts with a model of its own, or with a `Predictor`, which is measured. `cost`: of the steps of the
    model."""
    drafting: DraftModel
    if isinstance(model, Predictor):
        drafting = PredictorDrafts(model, vocab_size, sampler, cost, clock)
    elif model.shape.states:
        drafting = RecurrentDrafts(cast(RecurrentModel, model), vocab_size, sampler, cost, clock)
    else:
        drafting = DraftModel(model, vocab_size, sampler, cost, clock)
    drafting.measure()
    return drafting


def _rows(
    sequence: int, tokens: ReadOnly[int], num_prompt: int, start: int, blocks: ReadOnly[int], *, is_whole: bool
) -> list[Row]:
    """Return the rows of tokens at positions from `start` on: one of the first `num_prompt`, and one of each other.
    `is_whole`: the logits after the last one are wanted."""
    rows = [Row(sequence, tokens[:num_prompt], start, blocks, 0)] if num_prompt else []
    for index in range(num_prompt, len(tokens)):
        rows.append(Row(sequence, (tokens[index],), start + index, blocks, 0))
    rows[-1].outputs = int(is_whole)
    return rows
