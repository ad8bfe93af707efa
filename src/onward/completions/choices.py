"""Converts engine events to partial choices: echo, log probabilities, best_of and usage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from onward.completions.filters import ContentFilters, FilterStream
from onward.completions.logprobs import LogprobsBuilder, extend
from onward.completions.plan import Plan, PlannedPrompt
from onward.completions.prompt_logprobs import PromptLogprobs, PromptLogprobsBuilder
from onward.completions.reasoning import Markers, ReasoningCounter
from onward.completions.text_deltas import ChoiceText, TextDelta
from onward.engine.events import Decoded, Event, Prefilled
from onward.engine.model import Vocabulary
from onward.protocol.response import (
    Choice,
    CompletionTokensDetails,
    Logprobs,
    PromptTokensDetails,
    Usage,
)
from onward.sampling.outputs import Sampled
from onward.text.assembler import TokenRecord


@dataclass(slots=True)
class _Candidate:
    """A candidate of `best_of`, kept until all candidates of its prompt have ended."""

    parts: list[Choice] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def mean_logprob(self) -> float:
        """Mean log probability of the completion tokens, without end and stop tokens; minus infinity without any."""
        counted = self.logprobs[: self.num_tokens]
        return sum(counted) / len(counted) if counted else -math.inf


@dataclass(slots=True)
class _PromptState:
    prompt: PlannedPrompt
    first_index: int
    logprobs: Logprobs | None = None
    """The echoed prompt's log probabilities, which its choices share, until the last one has them."""
    prompt_logprobs: PromptLogprobs | None = None
    """Those that the request asked for by this name, likewise."""
    texts: dict[int, ChoiceText | None] = field(default_factory=dict)
    """The text of each choice, None once it has ended."""
    begun: set[int] = field(default_factory=set)
    """Choices whose first part has been returned."""
    candidates: dict[int, _Candidate] = field(default_factory=dict)
    num_ended: int = 0
    reasoning_counters: dict[int, ReasoningCounter] = field(default_factory=dict)
    filter_streams: dict[int, FilterStream] = field(default_factory=dict)


class ChoiceStream:
    """Converts the events of a plan's jobs to partial choices, in order; the last one of an index has a finish_reason.

    With best_of > n, a prompt's n best candidates are returned, complete, when all its candidates have ended.
    """

    def __init__(self, plan: Plan, vocabulary: Vocabulary, filters: ContentFilters | None = None) -> None:
        request = plan.request
        self._request = request
        self._vocabulary = vocabulary
        self._filters = filters or ContentFilters()
        self._reasoning_markers = plan.reasoning_markers
        self._reasoning_tokens = 0
        self._ended_early: list[tuple[int, int]] = []
        """Choices that ended here before they did in the engine, which is still generating them (see
        `take_ended_early`)."""
        self._ranks_candidates = request.candidates > request.n
        self._builder = (
            None
            if request.logprobs is None
            else LogprobsBuilder(
                request.logprobs, request.return_tokens_as_token_ids, vocabulary.token_bytes, self._filters
            )
        )
        self._prompt_builder = (
            None
            if request.prompt_logprobs is None
            else PromptLogprobsBuilder(request.prompt_logprobs, vocabulary.token_bytes, self._filters)
        )
        self._prompts = {
            prompt.job.id: _PromptState(prompt, index * request.n) for index, prompt in enumerate(plan.prompts)
        }
        self._prompt_tokens = sum(prompt.num_prompt_tokens for prompt in plan.prompts)
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._num_tokens: dict[tuple[int, int], int] = {}
        self._drafted: dict[tuple[int, int], tuple[int, int, int]] = {}
        """Tokens drafted from the prediction, by job and choice: accepted in the engine, counted as accepted, counted
        as rejected."""
        self._accepted = self._rejected = 0
        self._num_open = len(self._prompts) * request.candidates

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return self._num_open == 0

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=self._prompt_tokens + self._completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self._cached_tokens),
            completion_tokens_details=CompletionTokensDetails(
                reasoning_tokens=self._reasoning_tokens,
                accepted_prediction_tokens=self._accepted,
                rejected_prediction_tokens=self._rejected,
            ),
        )

    def num_logprobs(self, events: Iterable[Event]) -> int:
        """Return how many log probabilities of prompts the events contain, for `prepare`."""
        per_token = 0 if self._prompt_builder is None else self._prompt_builder.num_per_token
        if self._request.echo and self._builder is not None:
            per_token += 1 + (self._request.logprobs or 0)
        return sum(len(event.scores) * per_token for event in events if isinstance(event, Prefilled) and event.scores)

    def prepare(self, events: Iterable[Event]) -> None:
        """Build the log probabilities of prompts, which takes a microsecond for each: `accept` then takes no longer
        than for other events. May run on another thread while nothing else uses this object."""
        for event in events:
            if isinstance(event, Prefilled) and event.scores:
                self._score_prompt(self._prompts[event.job], event.scores)

    def accept(self, events: Iterable[Prefilled | Decoded]) -> list[Choice]:
        """Process events of this plan's jobs and return the partial choices that they complete."""
        choices: list[Choice] = []
        for event in events:
            state = self._prompts[event.job]
            if isinstance(event, Prefilled):
                self._cached_tokens += event.num_cached_tokens
                if event.scores is not None:
                    self._score_prompt(state, event.scores)
            else:
                choices += self._decoded(state, event)
        return choices

    def take_ended_early(self) -> list[tuple[int, int]]:
        """Return the choices (job, choice) that have ended here and not in the engine since the last call."""
        ended, self._ended_early = self._ended_early, []
        return ended

    def _decoded(self, state: _PromptState, event: Decoded) -> list[Choice]:
        """Return the partial choices that the tokens of one step add to a choice."""
        text = self._text(state, event.choice)
        if text is None:
            return []
        choices: list[Choice] = []
        num_completion_tokens, num_used = None, 0
        for index, unfiltered in enumerate(text.feed(event), 1):
            delta = self._filter(state, unfiltered) if self._filters.all else unfiltered
            if delta is None:
                continue
            num_completion_tokens, num_used = delta.num_completion_tokens, index
            if self._reasoning_markers is not None:
                self._count_reasoning(state, delta, self._reasoning_markers)
            if self._ranks_candidates:
                choices += self._collect(state, delta)
            else:
                choices += self._parts(state, delta, state.first_index + delta.choice)
            if delta.finish_reason:
                state.texts[event.choice] = None
                if not event.finish_reason:
                    self._ended_early.append((event.job, event.choice))
        if event.num_accepted_prediction_tokens or event.num_rejected_prediction_tokens:
            self._count_drafts(event, num_completion_tokens, num_used)
        return choices

    def _text(self, state: _PromptState, choice: int) -> ChoiceText | None:
        """Return the text of a choice, None if it has ended."""
        if choice not in state.texts:
            prompt = state.prompt
            state.texts[choice] = ChoiceText(prompt.job, choice, self._vocabulary, len(prompt.text))
        return state.texts[choice]

    def _filter(self, state: _PromptState, delta: TextDelta) -> TextDelta | None:
        """Return the delta after the content filters; None if nothing is left of it."""
        stream = state.filter_streams.get(delta.choice)
        if stream is None:
            stream = state.filter_streams[delta.choice] = FilterStream(self._filters, len(state.prompt.text))
        if stream.ended:
            return None
        filtered = stream.feed(delta)
        return filtered if filtered.text or filtered.records or filtered.finish_reason else None

    def _count_reasoning(self, state: _PromptState, delta: TextDelta, markers: Markers) -> None:
        counter = state.reasoning_counters.get(delta.choice)
        if counter is None:
            counter = state.reasoning_counters[delta.choice] = ReasoningCounter(markers, state.prompt.tokens)
        self._reasoning_tokens += counter.count(delta.records, delta.num_completion_tokens)

    def _count_drafts(self, event: Decoded, num_completion_tokens: int | None, num_used: int) -> None:
        """Update the counts of drafted tokens. Accepted tokens that are not in the completion count as rejected where a
        filter cut them off, and not at all where they only end the text.

        Of the event's tokens, those behind the first `num_used` were cut off. `num_completion_tokens` is that of the
        choice now, None if the event added nothing to it.
        """
        choice = (event.job, event.choice)
        before, accepted, rejected = self._drafted.get(choice, (0, 0, 0))
        new_accepted, new_rejected = accepted, rejected
        if num_completion_tokens is not None:
            kept = min(event.num_accepted_prediction_tokens, before + num_used)
            new_accepted = min(kept, num_completion_tokens)
            new_rejected = event.num_rejected_prediction_tokens + event.num_accepted_prediction_tokens - kept
        self._drafted[choice] = event.num_accepted_prediction_tokens, new_accepted, new_rejected
        self._accepted += new_accepted - accepted
        self._rejected += new_rejected - rejected

    def _parts(self, state: _PromptState, delta: TextDelta, index: int) -> list[Choice]:
        """Return a delta as one partial choice, or two: `stop` comes in one of its own (behaviour §4)."""
        choice = (delta.job, delta.choice)
        self._completion_tokens += delta.num_completion_tokens - self._num_tokens.get(choice, 0)
        self._num_tokens[choice] = delta.num_completion_tokens
        text = delta.text
        logprobs = None if self._builder is None else self._builder.generated(self._listed(delta.records))
        is_first = delta.choice not in state.begun
        state.begun.add(delta.choice)
        if self._request.echo and is_first:
            text = state.prompt.text + text
            logprobs = self._with_prompt(state, logprobs)
        if delta.finish_reason:
            self._num_open -= 1
        if delta.finish_reason != "stop" or not (text or delta.records):
            parts = [Choice(text=text, index=index, logprobs=logprobs, finish_reason=delta.finish_reason)]
        else:
            closing = None if self._builder is None else self._builder.empty()
            parts = [
                Choice(text=text, index=index, logprobs=logprobs),
                Choice(text="", index=index, logprobs=closing, finish_reason="stop"),
            ]
        if self._request.return_token_ids:
            for part in parts:
                part.token_ids = []
            parts[0].token_ids = [record.token for record in delta.records]
        if is_first:
            self._add_prompt(state, parts[0])
        return parts

    def _listed(self, records: list[TokenRecord]) -> list[TokenRecord]:
        """Return the records that `logprobs` lists: those after the end of the text only with `echo`."""
        return records if self._request.echo else [record for record in records if not record.is_terminator]

    def _add_prompt(self, state: _PromptState, part: Choice) -> None:
        """Add to a choice's first part what the request wants to know of the prompt's tokens."""
        if self._request.return_token_ids:
            part.prompt_token_ids = list(state.prompt.job.prompt)
        if state.prompt_logprobs is not None:
            part.prompt_logprobs = list(state.prompt_logprobs)
            if len(state.begun) == self._request.candidates:
                state.prompt_logprobs = None  # of megabytes

    def _score_prompt(self, state: _PromptState, scores: Sequence[Sampled | None]) -> None:
        """Build the log probabilities of a prompt, unless they have been built."""
        prompt = state.prompt
        if state.logprobs is None and self._request.echo and self._builder is not None:
            state.logprobs = self._builder.prompt(
                prompt.tokens, prompt.token_bytes, scores[prompt.num_implicit_tokens :]
            )
        if state.prompt_logprobs is None and self._prompt_builder is not None:
            state.prompt_logprobs = self._prompt_builder.build(scores)

    def _with_prompt(self, state: _PromptState, logprobs: Logprobs | None) -> Logprobs | None:
        """Return the prompt's log probabilities followed by those of the completion."""
        if logprobs is None or self._builder is None or state.logprobs is None:
            return logprobs
        whole = self._builder.empty()
        extend(whole, state.logprobs)
        extend(whole, logprobs)
        if len(state.begun) == self._request.candidates:
            state.logprobs = None  # of megabytes
        return whole

    def _collect(self, state: _PromptState, delta: TextDelta) -> list[Choice]:
        """Add a delta to its candidate. Return the best candidates when all have ended, else nothing."""
        candidate = state.candidates.setdefault(delta.choice, _Candidate())
        candidate.parts += self._parts(state, delta, delta.choice)
        candidate.logprobs += [record.logprob for record in delta.records]
        candidate.num_tokens = delta.num_completion_tokens
        state.num_ended += delta.finish_reason is not None
        if state.num_ended < self._request.candidates:
            return []
        return self._best(state)

    def _best(self, state: _PromptState) -> list[Choice]:
        """Return the n candidates with the highest mean log probability, renumbered, best first."""
        ranked = sorted(state.candidates.items(), key=lambda item: (-item[1].mean_logprob, item[0]))
        choices: list[Choice] = []
        for rank, (_, candidate) in enumerate(ranked[: self._request.n]):
            for part in candidate.parts:
                part.index = state.first_index + rank
                choices.append(part)
        state.candidates.clear()
        return choices
