"""Drafts for the one sequence that decodes, by a small model with the same tokens, or by layers of the model itself.

The draft model has a KV cache of its own, with the tokens of one sequence: those that another one has in common with it
stay. It samples as the model will, by the sequence's own sampler: with the random number of each position, so the two
agree more often than if it drafted what it considers most likely.

Each drafted token costs a step of the draft model, so a draft is as long as is expected to pay, and what drafts have
saved, or cost, is counted: where they do not pay, they end until an occasional one does. They never change a token:
`step` accepts only what the sampler samples.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from onward.engine.drafter import Draft
from onward.engine.model import Hook, ModelRunner, Predictor, RecurrentModel, Row
from onward.engine.sequence import Sequence
from onward.sampling.sampler import Sampler

MAX_MODEL_DRAFT_TOKENS = 15
"""Maximum tokens of one draft."""
MIN_CHUNK_TOKENS = 2 * (MAX_MODEL_DRAFT_TOKENS + 1)
"""Fewest tokens to evaluate at once of those that the cache lacks: more than a draft has, so that their time shows what
a token costs."""
INITIAL_CREDIT, MAX_CREDIT = 20.0, 50.0
"""How many steps' time drafts may lose: at first, and after they have saved more."""
CREDIT_PER_TOKEN = 0.02
"""What is added to it with each token: the share of the time that trying drafts may cost where they do not pay."""
PROBE_INTERVAL_TOKENS, MAX_PROBE_INTERVAL_TOKENS = 50, 200
"""Where drafts do not pay, one is tried after so many tokens: twice as many after each one that changed nothing."""
_LEVELS = (-1.05, -0.43, -0.105)
"""Bounds of the draft model's log-probability of a token (35, 65 and 90 %), between which it is right about equally
often."""
_PRIOR_AGREEMENT = (0.25, 0.5, 0.75, 0.95)
_AGREEMENT_WEIGHT = 0.05
_COST_WEIGHT = 0.2
"""Weights of the newest token and round in the moving averages."""
_STATE, _STATE_OF_DRAFTS = 0, 1
"""Those of a draft model whose sequences have some."""


class Agreement:
    """How often the model samples what was drafted, by how likely the draft model considers a token."""

    def __init__(self) -> None:
        self.mean = 0.7
        """Of all tokens."""
        self._by_level = list(_PRIOR_AGREEMENT)

    def level(self, logprob: float) -> int:
        """Return which level a log-probability is in."""
        return sum(logprob >= bound for bound in _LEVELS)

    def expected(self, level: int) -> float:
        """Return the probability that a token of a level is accepted if those before it are."""
        return self._by_level[level]

    def learn(self, levels: list[int], num_accepted: int) -> None:
        """Learn from the levels of an evaluated draft: of those after the first rejected token nothing is known."""
        for index, level in enumerate(levels[: num_accepted + 1]):
            outcome = float(index < num_accepted)
            self.mean += _AGREEMENT_WEIGHT * (outcome - self.mean)
            self._by_level[level] += _AGREEMENT_WEIGHT * (outcome - self._by_level[level])


class Balance:
    """What drafts cost and save, in units of the time of a step without one."""

    def __init__(self) -> None:
        self.credit = INITIAL_CREDIT
        self._tokens, self._steps = 2.0, 1.5
        """Of a step with a draft: moving averages."""

    @property
    def saved(self) -> float:
        """How many steps a draft saves."""
        return self._tokens - self._steps

    @property
    def pace(self) -> float:
        """How many steps' time a token takes with drafts."""
        return self._steps / self._tokens

    @property
    def pays(self) -> bool:
        return self.saved > 0.0

    def earn(self) -> None:
        """A token has been generated, by whatever means."""
        self.credit = min(self.credit + CREDIT_PER_TOKEN, MAX_CREDIT)

    def spend(self, steps: float) -> None:
        self.credit -= steps

    def round(self, num_tokens: int, steps: float) -> None:
        """A step with a draft has yielded so many tokens, and took as long as so many steps without one."""
        self._tokens += _COST_WEIGHT * (num_tokens - self._tokens)
        self._steps += _COST_WEIGHT * (steps - self._steps)
        self.credit = min(self.credit + num_tokens - steps, MAX_CREDIT)


@dataclass(slots=True)
class _Round:
    """A step for which drafting was tried: the levels of the draft's tokens that the model evaluates, and how many it
    has accepted."""

    levels: list[int]
    num_accepted: int = 0


@dataclass(slots=True)
class _Cached:
    """The tokens whose keys and values are in the draft model's cache, and for which sequence they were compared."""

    tokens: list[int] = field(default_factory=list)
    sequence: int = -1
    salt: str = ""
    """That of its job: only jobs with the same one may find out, by the time they take, what others have sent."""
    num_compared: int = 0
    """The first tokens that are known to be those of that sequence."""
    has_state: bool = False
    """Whether a state has processed them, so that none is of use without the others."""

    def keep_common(self, sequence: Sequence) -> int:
        """Forget the tokens from the first one on that the sequence does not have, and its newest one, whose logits are
        wanted. Returns how many are left."""
        wanted = sequence.tokens
        if self.salt != sequence.job.salt:
            self.tokens.clear()
            self.salt = sequence.job.salt
        end = min(self.num_compared, len(self.tokens)) if self.sequence == sequence.id else 0
        limit = min(len(self.tokens), len(wanted) - 1)
        while end < limit and self.tokens[end] == wanted[end]:
            end += 1
        end = min(end, limit)
        if self.has_state and end < len(self.tokens):
            end = 0
        del self.tokens[end:]
        self.sequence, self.num_compared = sequence.id, end
        return end

    def evaluation_failed(self) -> None:
        """Forget what may not be there any more: a state may have processed tokens that are not among these."""
        if self.has_state:
            self.tokens.clear()


class DraftModel:
    """Drafts tokens with a model that it owns. Engine thread only.

    `sampler`: the engine's, for logits of `vocab_size`; those of the draft model may have another width, because
    vocabularies are padded. `clock` returns seconds.
    """

    def __init__(self, model: ModelRunner, vocab_size: int, sampler: Sampler, clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        """How long it has computed since the start."""
        self.balance = Balance()
        self._model = model
        self._sampler = sampler
        self._clock = clock
        self._agreement = Agreement()
        self._cached = _Cached()
        self._blocks = list(range(model.blocks))
        self._max_tokens = min(model.context_length, model.blocks * model.shape.block_tokens)
        self._padded = np.full((1, vocab_size), -np.inf, np.float32)
        self._step_seconds = self._row_seconds = 0.0
        """Seconds of a step of one row without a draft, and those that a token of a draft adds to it: moving averages,
        as the following; 0 before they were measured."""
        self._token_seconds = self._missing_seconds = 0.0
        """Seconds to draft a token, and per token of a sequence that the cache does not have."""
        self._num_since_round = 0
        self._probe_interval = PROBE_INTERVAL_TOKENS
        self._round: _Round | None = None
        self._round_seconds = 0.0

    def draft(self, sequence: Sequence, before_compute: Hook) -> Draft | None:
        """Return a draft for the sequence, the only one of the next step; None if none pays, or while its tokens are
        being evaluated: at most about a step's time at once. `before_compute`: see ModelRunner.evaluate."""
        self.balance.earn()
        self._num_since_round += 1
        room = min(sequence.draft_room, MAX_MODEL_DRAFT_TOKENS, self._max_tokens - len(sequence.tokens))
        if room <= 0 or sequence.constraint is not None or not self._step_seconds:
            return None
        num_missing = len(sequence.tokens) - self._cached.keep_common(sequence)
        if not self._is_worth_trying(sequence, num_missing):
            return None
        began = self._clock()
        try:
            draft = self._draft(sequence, room, before_compute)
        except MemoryError:
            draft = None
            self._cached.evaluation_failed()
        seconds = self._clock() - began
        self.seconds += seconds
        self._round_seconds = seconds
        if self._round is None:
            self.balance.spend(seconds / self._step_seconds)
        return draft

    def accepted(self, num_accepted: int, num_rejected: int) -> None:
        """The model has sampled the first tokens of the draft of this step, as far as it was evaluated."""
        if self._round is not None:
            del self._round.levels[num_accepted + num_rejected :]
            self._round.num_accepted = num_accepted

    def observe(self, seconds: float, num_rows: int) -> None:
        """A step of so many rows, which only decoded, has ended, and took so long without the time for its draft."""
        ended, self._round = self._round, None
        if num_rows == 1:
            self._step_seconds = _averaged(self._step_seconds, seconds)
        if ended is None:
            return
        self._num_since_round = 0
        if ended.levels:
            self._row_seconds = _averaged(self._row_seconds, max(0.0, seconds - self._step_seconds) / len(ended.levels))
        self._agreement.learn(ended.levels, ended.num_accepted)
        was_probe = not self.balance.pays
        self.balance.round(1 + ended.num_accepted, (seconds + self._round_seconds) / self._step_seconds)
        if self.balance.pays:
            self._probe_interval = PROBE_INTERVAL_TOKENS
        elif was_probe:
            self._probe_interval = min(2 * self._probe_interval, MAX_PROBE_INTERVAL_TOKENS)

    def close(self) -> None:
        """Free the model's memory. No call follows."""
        self._model.close()

    def _is_worth_trying(self, sequence: Sequence, num_missing: int) -> bool:
        """Return whether a draft is expected to save time, or is due to be tried, and the tokens that have to be
        evaluated for it do not cost more than drafts may, or than a quarter of what they can save."""
        balance = self.balance
        steps = (num_missing * self._missing_seconds + self._token_seconds) / self._step_seconds
        if not balance.pays:
            return self._num_since_round >= self._probe_interval and steps <= balance.credit
        gain = max(0.0, 1.0 - balance.pace) * sequence.draft_room / 4
        return num_missing <= MAX_MODEL_DRAFT_TOKENS or steps <= balance.credit + gain

    def _draft(self, sequence: Sequence, room: int, before_compute: Hook) -> Draft | None:
        """Evaluate what the cache lacks of the sequence, and draft at most `room` tokens; None if the time of a step is
        used up before that."""
        logits = self._evaluate_missing(sequence, before_compute)
        if logits is None:
            return None
        saved_seconds = min(1.0, self.balance.pace) * self._step_seconds  # by each accepted token
        sampler, job = sequence.sampler, sequence.job
        tokens: list[int] = []
        levels: list[int] = []
        probability = 1.0
        while True:
            num_generated = sequence.num_generated + len(tokens)
            banned = job.end_tokens if num_generated < job.min_tokens else None
            [sampled] = self._sampler.sample(logits, [0], [sampler], [banned])
            if sampled.token < 0:
                break
            [scored] = self._sampler.score(logits, 0, [sampled.token], 0)
            level = self._agreement.level(scored.logprob)
            probability *= self._agreement.expected(level)
            if probability * saved_seconds <= self._row_seconds:
                break
            tokens.append(sampled.token)
            levels.append(level)
            if len(tokens) == room or sampled.token in job.end_tokens or sampled.token >= self._model.vocab_size:
                break
            if probability * self._agreement.mean * saved_seconds <= self._row_seconds + self._token_seconds:
                break
            sampler = sampler.after((sampled.token,))
            logits = self._evaluate_next(sequence, sampled.token)
        self._round = _Round(levels)
        return Draft(tokens, "model") if tokens else None

    def _evaluate_missing(self, sequence: Sequence, before_compute: Hook) -> NDArray[np.float32] | None:
        """Return the logits after the newest token. None if part of the tokens before it is left for later steps, or
        the draft model does not have one of them.

        No chunk of a prompt is a single token, and generated tokens are rows of one token each, as the model's own: the
        nearer a draft model is to the model, the more often the two agree.
        """
        begin, prompt_length = len(self._cached.tokens), sequence.prompt_length
        if begin and prompt_length - begin == 1 and not self._cached.has_state:
            begin -= 1
            del self._cached.tokens[begin:]
        end = min(begin + self._chunk_tokens(), len(sequence.tokens))
        if prompt_length - end == 1:
            end -= 1
        tokens = sequence.tokens[begin:end]
        if max(tokens) >= self._model.vocab_size:
            return None
        is_whole = end == len(sequence.tokens)
        num_prompt = max(0, min(end, prompt_length) - begin)
        blocks = self._blocks_of(sequence)
        rows = [Row(sequence.id, tokens[:num_prompt], begin, blocks, 0)] if num_prompt else []
        rows += [
            Row(sequence.id, (token,), position, blocks, int(is_whole and position == end - 1))
            for position, token in enumerate(tokens[num_prompt:], begin + num_prompt)
        ]
        began = self._clock()
        logits = self._model.evaluate(rows, before_compute)
        if len(tokens) > MAX_MODEL_DRAFT_TOKENS:  # a few tokens take nearly as long as one
            self._missing_seconds = _averaged(self._missing_seconds, (self._clock() - began) / len(tokens))
        self._cached.tokens += tokens
        self._cached.num_compared = end
        return self._widened(logits) if is_whole else None

    def _chunk_tokens(self) -> int:
        """Return how many tokens to evaluate at once: about as many as take the time of a step."""
        shape = self._model.shape
        affordable = int(self._step_seconds / self._missing_seconds) if self._missing_seconds else 0
        return min(max(affordable, shape.tile_tokens, MIN_CHUNK_TOKENS), shape.max_prefill_tokens)

    def _evaluate_next(self, sequence: Sequence, token: int) -> NDArray[np.float32]:
        """Return the logits after a drafted token."""
        began = self._clock()
        logits = self._extend(sequence, token)
        self._token_seconds = _averaged(self._token_seconds, self._clock() - began)
        return self._widened(logits)

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

    def __init__(self, model: Predictor, vocab_size: int, sampler: Sampler, clock: Callable[[], float]) -> None:
        super().__init__(model, vocab_size, sampler, clock)
        self._predictor = model

    def _blocks_of(self, sequence: Sequence) -> ReadOnly[int]:
        return sequence.blocks

    def _extend(self, sequence: Sequence, token: int) -> NDArray[np.float32]:
        return self._predictor.extend(token)


class RecurrentDrafts(DraftModel):
    """Drafts tokens with a model whose sequences have states. One takes in tokens of the text alone, a copy of it those
    of a draft: accepted ones are evaluated again, together with what follows. A sequence that does not continue the
    text is computed from its first token."""

    def __init__(self, model: RecurrentModel, vocab_size: int, sampler: Sampler, clock: Callable[[], float]) -> None:
        super().__init__(model, vocab_size, sampler, clock)
        self._cached = _Cached(has_state=True)
        self._recurrent = model
        self._num_drafted = 0
        """Tokens that the copy has taken in after those of the text."""

    def _evaluate_missing(self, sequence: Sequence, before_compute: Hook) -> NDArray[np.float32] | None:
        logits = super()._evaluate_missing(sequence, before_compute)
        if logits is not None:
            self._recurrent.copy_state(_STATE, _STATE_OF_DRAFTS)
            self._num_drafted = 0
        return logits

    def _extend(self, sequence: Sequence, token: int) -> NDArray[np.float32]:
        position = len(self._cached.tokens) + self._num_drafted
        self._num_drafted += 1
        return self._model.evaluate([Row(sequence.id, (token,), position, self._blocks, 1, state=_STATE_OF_DRAFTS)])


def drafting_with(model: ModelRunner, vocab_size: int, sampler: Sampler, clock: Callable[[], float]) -> DraftModel:
    """Return what drafts with a model of its own, or with a `Predictor`."""
    if isinstance(model, Predictor):
        return PredictorDrafts(model, vocab_size, sampler, clock)
    if model.shape.states:
        return RecurrentDrafts(cast(RecurrentModel, model), vocab_size, sampler, clock)
    return DraftModel(model, vocab_size, sampler, clock)


def _averaged(average: float, newest: float) -> float:
    return newest if not average else average + _COST_WEIGHT * (newest - average)
