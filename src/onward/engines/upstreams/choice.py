"""A job that an upstream computes, and one choice of it: which segment to ask for next, when it has ended, and what its
grammar allows.

Where it ends is found by its tokens, as in the engine (`engine.choice_end`). An upstream that ends for a reason of its
own is asked to continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from onward.constraints.choice import ChoiceConstraint
from onward.constraints.grammars import Grammars
from onward.constraints.lark import ending_with
from onward.constraints.process.masks import RemoteChoice, RemoteGrammars
from onward.engine.choice_end import ChoiceEnd
from onward.engine.events import EngineFinishReason
from onward.engine.job import Job
from onward.engine.model import Tokenizer, Vocabulary
from onward.engines.upstreams.base import AnswerPart, Segment, Traits, Upstream, UpstreamError
from onward.engines.upstreams.pool import Place
from onward.fair_pool import FairPool
from onward.sampling.choice import ChoiceSampler
from onward.sampling.filters import COMMON, is_in_usual_order
from onward.sampling.masks import Mask, unpack_mask
from onward.sampling.outputs import FAILURES, NO_TOKEN_LEFT, Sampled
from onward.sampling.reference import ReferenceSampler
from onward.sampling.rng import GOLDEN_GAMMA, mix

WHOLE_TOKENS = 8
"""Tokens of a segment that is asked for in one piece, because a stream would not report all ids."""
WIDER_THERE = "whitespace_pattern"
"""An option of JSON in grammars that older releases of the library do not know: they allow any white space."""
_SEED_MASK = (1 << 32) - 2
"""llama-server takes 2**32 - 1 as "choose one"."""


class UpstreamGrammars:
    """The grammars of one model. Its coroutines may run at the same time, on one event loop. From the first grammar on
    it owns processes and threads that wait for them; `close` ends them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._remote = RemoteGrammars(tokenizer.size, tokenizer)
        self._grammars = Grammars(self._remote.compile)
        self._threads = FairPool("onward-grammars", max_threads=2, max_per_owner=1)

    async def constraint_of(self, job: Job) -> ChoiceConstraint | None:
        """Return a constraint for one choice before its first token, None for a job without a grammar. Raises
        GrammarError."""
        if not job.grammar:
            return None
        compile = partial(self._grammars.compiled, job.grammar, job.end_tokens)
        compiled = await asyncio.wrap_future(self._threads.submit(str(job.client), compile))
        return compiled.begin()

    @staticmethod
    async def wait_for(constraint: ChoiceConstraint) -> None:
        """Wait until the constraint can be settled."""
        if constraint.pending is not None:
            await asyncio.wait([asyncio.wrap_future(constraint.pending)])

    @staticmethod
    def mask_of(constraint: ChoiceConstraint | None) -> Mask | None:
        """Return what may come next, None if anything. The constraint is settled."""
        if constraint is None:
            return None
        known = constraint.known_masks(1)
        mask: Mask = (constraint.first if known is None else known)[0]
        return mask

    @staticmethod
    def takes_long(constraint: ChoiceConstraint) -> bool:
        """Whether masks of its grammar take long to compute: an upstream would let all its other rows wait for them."""
        return isinstance(constraint, RemoteChoice) and constraint.compiled.is_slow

    def close(self) -> None:
        """End the processes and the threads without waiting for them."""
        self._threads.close()
        self._remote.close()


class JobRun:
    """A job and the tasks of its unfinished choices."""

    __slots__ = (
        "_asking",
        "_keeps_grammar",
        "first_choice",
        "job",
        "num_cached",
        "place",
        "scoring",
        "tasks",
    )

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.place = Place(job.prompt, len(job.unfinished_choices))
        self.scoring = asyncio.Lock()
        self.first_choice: int | None = None
        """The choice that was sent first. The others find the prompt in the cache that it has filled."""
        self.num_cached: int | None = None
        """The fewest cached tokens of the prompt that an answer to the first choice has reported, where that comes with
        the last token."""
        self._asking = asyncio.Lock()
        self._keeps_grammar: bool | None = None
        """Whether the upstream takes the job's grammar, None: it has not answered yet."""

    async def with_grammar(self, parts: AsyncGenerator[AnswerPart], state: ChoiceRun) -> AsyncGenerator[AnswerPart]:
        """Yield the parts of an answer to a request with the job's grammar. The first choice asks whether the upstream
        takes it, and the others wait for that: where it does not, they ask token by token. Raises UpstreamError."""
        first: AnswerPart | None = None
        async with aclosing(parts):
            if self._keeps_grammar is None:
                async with self._asking:
                    if self._keeps_grammar is None:
                        first = await self._answer_to_grammar(parts)
            if not self._keeps_grammar:
                state.keep_grammar_here()
                return
            if first is not None:
                yield first
            async for part in parts:
                yield part

    async def _answer_to_grammar(self, parts: AsyncGenerator[AnswerPart]) -> AnswerPart | None:
        """Return the first part of an answer, if it has any. Raises UpstreamError."""
        try:
            first = await anext(parts, None)
        except UpstreamError as error:
            if error.is_request:
                self._keeps_grammar = False
            raise
        self._keeps_grammar = True
        return first

    def note_cached(self, part: AnswerPart, segment: Segment, choice: int) -> None:
        """Note the reported number of cached tokens, if it concerns the prompt alone, of the first choice that computes
        it."""
        is_first = choice == self.first_choice and not segment.num_generated and self.job.score_top is None
        if part.num_cached is not None and is_first:
            known = part.num_cached if self.num_cached is None else self.num_cached
            self.num_cached = min(part.num_cached, known)


class ChoiceRun:
    """The state of one choice. `generated`: its tokens so far, a list to which whoever records them appends.
    `constraint`: the state in the job's grammar, if it has one. Not thread-safe."""

    def __init__(
        self,
        job: Job,
        choice: int,
        vocabulary: Vocabulary,
        traits: Traits,
        generated: list[int],
        constraint: ChoiceConstraint | None = None,
    ) -> None:
        self.job = job
        self.traits = traits
        self.choice = choice
        self.constraint = constraint
        self.generated = generated
        self._vocab_size = vocabulary.size
        self._has_own_ends = {token for token in vocabulary.end_tokens if token < vocabulary.size} <= job.end_tokens
        self._bans_ends_there = traits.has_min_tokens and self._has_own_ends
        self._sampler = ChoiceSampler(job.sampling, choice, job.prompt if job.sampling.dry else ())
        self._unpenalized = job.sampling
        if job.sampling.presence_penalty or job.sampling.frequency_penalty:
            self._unpenalized = replace(job.sampling, presence_penalty=0.0, frequency_penalty=0.0)
        self._end = ChoiceEnd(job, vocabulary, constraint)
        self._needs_whole = False
        self._grammar_there = self._grammar_to_leave()
        self._reference = ReferenceSampler(self._vocab_size) if self.needs_distribution else None
        for token in generated:
            self.take(token)
        if (resumed := job.resumed(choice)) is not None:
            self._sampler.restore(resumed.mu)

    def next_segment(self, mask: Mask | None = None) -> Segment:
        """Return what to ask for next: as much as can be sampled under the same rules. `mask`: what the constraint
        allows next. Raises UpstreamError if no token is left."""
        job, count = self.job, len(self.generated)
        banned, limit, sampling = self._sampler.bans(), job.max_tokens - count, job.sampling
        penalties = list(_pairs(*self._sampler.repetitions()))
        if self._has_penalties_as_biases:
            penalties += _pairs(*self._counted_penalties())
        if self._has_penalties_as_biases or not self._sampler.has_penalties:
            sampling = self._unpenalized
        num_without_end = max(0, job.min_tokens - count)
        if num_without_end and job.end_tokens and not self._bans_ends_there:
            banned, limit = banned | job.end_tokens, min(limit, num_without_end)
        grammar = self._grammar_there = "" if count else self._grammar_there  # no request continues one half-way
        one_by_one = self._changes_with_each_token and not grammar
        whole = one_by_one or self._needs_whole
        if whole:
            limit = 1 if one_by_one or job.sampling.logprobs is not None else min(limit, WHOLE_TOKENS)
        self._needs_whole = False
        tokens = (*job.prompt, *self.generated)
        return Segment(
            tokens,
            count,
            limit,
            sampling,
            self._seed(count),
            banned,
            whole,
            job.end_tokens,
            min(num_without_end, limit) if self._bans_ends_there else 0,
            None if grammar else self._allowed(mask, banned),
            tuple(penalties),
            job.salt,
            grammar,
            self._has_own_ends,
        )

    @property
    def needs_distribution(self) -> bool:
        """Whether Onward samples each token, from the probabilities of all: the upstream does not have the samplers."""
        params = self.job.sampling
        if not self.traits.has_distribution or params.is_greedy:
            return False
        has_others = bool(params.mirostat) or any(name not in COMMON for name in params.chain)
        return has_others or not is_in_usual_order(params.chain)

    @property
    def mu(self) -> float | None:
        """Mirostat's state after the tokens taken."""
        return self._sampler.mu

    async def sampled_here(self, upstream: Upstream, segment: Segment, mask: Mask | None) -> AnswerPart | None:
        """Return the next token where the upstream need not sample it: the only one that is allowed, or one that is
        sampled from the probabilities of all. Raises UpstreamError."""
        samples_here = self.needs_distribution
        moves_mu = samples_here and bool(self.job.sampling.mirostat)  # by a token that is forced, too
        if segment.forced_token is not None and not moves_mu:
            await asyncio.sleep(0)  # others are next: thousands of tokens may be forced
            return AnswerPart([Sampled(segment.forced_token, float("nan"), ())])
        if not samples_here:
            return None
        logprobs, num_cached = await upstream.distribution(segment, self._vocab_size)
        return AnswerPart([await asyncio.to_thread(self._sample, logprobs, mask)], num_cached)

    def _sample(self, logprobs: NDArray[np.float32], mask: Mask | None) -> Sampled:
        """Sample the next token from log-probabilities of all tokens, float32 [vocabulary]. Raises UpstreamError if no
        token is left."""
        assert self._reference is not None
        is_short = len(self.generated) < self.job.min_tokens
        banned = self.job.end_tokens if is_short else None
        [sampled] = self._reference.sample(logprobs[None], [0], [self._sampler], [banned], [mask])
        if sampled.token < 0:
            raise UpstreamError(FAILURES[sampled.token], is_request=True)
        return sampled

    @property
    def _changes_with_each_token(self) -> bool:
        """Whether what may be sampled depends on the token before in a way that upstreams do not know."""
        sampling = self.job.sampling
        counts = self._sampler.has_penalties and self.traits.counts_prompt
        has_rules = bool(sampling.banned_sequences or sampling.dry) or self.constraint is not None
        return counts or has_rules or self._has_penalties_as_biases

    def _grammar_to_leave(self) -> str:
        """Return the grammar that the upstream itself is to keep to from the first token on, as it is written there; ""
        where that would mean something else: its log-probabilities are those after the mask. Where the masks take
        long, other rows of the upstream would wait for them."""
        job, traits = self.job, self.traits
        if self.constraint is None or not traits.has_grammars or UpstreamGrammars.takes_long(self.constraint):
            return ""
        is_reported = job.sampling.logprobs is not None
        if is_reported or job.sampling.dry or self._has_penalties_as_biases or self.needs_distribution:
            return ""
        if WIDER_THERE in job.grammar and not (job.sampling.is_greedy or {*job.sampling.chain} <= {"temperature"}):
            return ""  # a token that is refused here is sampled again: the same, unless filters come after the mask
        return ending_with(job.grammar, job.end_tokens)

    @property
    def leaves_grammar(self) -> bool:
        """Whether the upstream itself keeps to the grammar in this segment."""
        return bool(self._grammar_there)

    def keep_grammar_here(self) -> bool:
        """Ask token by token from now on. Returns whether the upstream was to keep to the grammar until now."""
        was_left, self._grammar_there = self.leaves_grammar, ""
        self._needs_whole = self._needs_whole or was_left
        return was_left

    async def take_checked(self, tokens: list[Sampled]) -> tuple[list[Sampled], EngineFinishReason | None]:
        """Take tokens of an upstream that keeps to the grammar, as many as the masks here allow, too; and the finish
        reason. Keeps to it here from then on where one was not allowed, or takes long. Raises GrammarError."""
        assert self.constraint is not None
        taken: list[Sampled] = []
        for sampled in tokens:
            mask = UpstreamGrammars.mask_of(self.constraint)
            is_allowed = mask is None or bool(mask[sampled.token // 32] >> np.uint32(sampled.token % 32) & 1)
            if not is_allowed or UpstreamGrammars.takes_long(self.constraint):
                self.keep_grammar_here()
                break
            taken.append(sampled)
            finish = self.take(sampled.token)
            if finish is None and self.constraint.is_unsettled:
                await UpstreamGrammars.wait_for(self.constraint)
                finish = self.settle()
            if finish is not None:
                return taken, finish
        return taken, None

    @property
    def _has_penalties_as_biases(self) -> bool:
        """Whether penalties are sent as biases: the upstream would not count the tokens that were generated before this
        segment, or the last one, or knows neither a window nor tokens that are not penalised. They are sums where this
        is so: it lacks `repetition_penalty`."""
        if self.traits.counts_prompt or not self._sampler.has_penalties:
            return False
        params = self.job.sampling
        has_window = 0 <= params.penalty_last_n < self.job.max_tokens
        return bool(self.generated or params.unpenalized_tokens) or has_window or self.traits.counts_late

    def _counted_penalties(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the tokens that presence and frequency penalties count, and what to add to their logits."""
        params, counts = self.job.sampling, self._sampler.counts
        return counts.ids, -(params.presence_penalty + params.frequency_penalty * counts.counts)

    def _allowed(self, mask: Mask | None, banned: frozenset[int]) -> NDArray[np.bool_] | None:
        """Return which tokens may be sampled, None if all but the banned ones. Raises UpstreamError if none is left."""
        size = self._vocab_size
        mask = self._sampler.mask(size) if mask is None else mask
        if mask is None:
            return None
        allowed = unpack_mask(mask, size)
        allowed[[token for token in banned if token < size]] = False
        if not allowed.any():
            raise UpstreamError(FAILURES[NO_TOKEN_LEFT], is_request=True)
        return allowed

    @property
    def needs_whole(self) -> bool:
        """Whether the next segment will be whole, because ids were missing from the last one."""
        return self._needs_whole

    def ask_in_one_piece(self) -> None:
        """Let the next segment be whole: ids were missing from a stream."""
        self._needs_whole = True

    def take(self, token: int) -> EngineFinishReason | None:
        """Take a token, which is recorded after that. Returns the finish reason, None if the choice continues."""
        self._sampler.accept(token)
        return self._end.take(token)

    def settle(self) -> EngineFinishReason | None:
        """Return the finish reason after the tokens taken, for a constraint that was unsettled. Raises
        GrammarError."""
        return self._end.settle()

    def _seed(self, position: int) -> int:
        """Return a seed that depends on the job's seed, the choice and the position only."""
        state = mix(self.job.sampling.seed)
        for counter in (self.choice, position):
            state = mix((state + GOLDEN_GAMMA * (counter + 1)) & ((1 << 64) - 1))
        return state & _SEED_MASK


def _pairs(ids: NDArray[np.int64], values: NDArray[np.float64]) -> Iterator[tuple[int, float]]:
    return zip(ids.tolist(), values.tolist(), strict=True)
