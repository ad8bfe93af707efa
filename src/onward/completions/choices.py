"""Converts engine events to deltas: filters, best_of and token counts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from onward.completions.answer import Delta, PromptRecord, TokenCounts
from onward.completions.filters import ContentFilters, FilterStream
from onward.completions.plan import Plan, PlannedPrompt
from onward.completions.reasoning import Markers, ReasoningCounter
from onward.completions.text_deltas import ChoiceText, TextDelta
from onward.engine.events import Decoded, Prefilled
from onward.engine.model import Vocabulary


@dataclass(slots=True)
class _Candidate:
    """A candidate of `best_of`, kept until all candidates of its prompt have ended."""

    deltas: list[Delta] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def mean_logprob(self) -> float:
        """Mean log probability of the completion tokens, without end and stop tokens; minus infinity without any."""
        counted = self.logprobs[: self.num_tokens]
        return math.fsum(counted) / len(counted) if counted else -math.inf


@dataclass(slots=True)
class _PromptState:
    prompt: PlannedPrompt
    first_index: int
    record: PromptRecord | None
    """What its choices share, until the last one has it: scores can have megabytes."""
    texts: dict[int, ChoiceText | None] = field(default_factory=dict)
    """The text of each choice, None once it has ended."""
    begun: set[int] = field(default_factory=set)
    """Choices whose first delta has been returned."""
    candidates: dict[int, _Candidate] = field(default_factory=dict)
    num_ended: int = 0
    reasoning_counters: dict[int, ReasoningCounter] = field(default_factory=dict)
    filter_streams: dict[int, FilterStream] = field(default_factory=dict)


class ChoiceStream:
    """Converts the events of a plan's jobs to deltas, in order; the last one of an index has a `finish`.

    With best_of > n, a prompt's n best candidates are returned, complete, when all its candidates have ended.
    """

    def __init__(self, plan: Plan, vocabulary: Vocabulary, filters: ContentFilters | None = None) -> None:
        request = plan.request
        self._request = request
        self._vocabulary = vocabulary
        self._filters = filters or ContentFilters()
        self._reasoning_markers = plan.reasoning_markers
        self._reasoning_tokens = 0
        self.ended_early: list[tuple[int, int]] = []
        """Choices that ended here before they did in the engine, which is still generating them (see
        `take_ended_early`)."""
        self._ranks_candidates = request.candidates > request.n
        self._prompts = {
            prompt.job.id: _PromptState(prompt, index * request.n, self._record(prompt))
            for index, prompt in enumerate(plan.prompts)
        }
        self._prompt_tokens = sum(prompt.num_prompt_tokens for prompt in plan.prompts)
        self._cached_tokens = 0
        self._written_tokens: int | None = 0
        self._completion_tokens = 0
        self._computed_tokens = 0
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
    def counts(self) -> TokenCounts:
        """Token counts so far."""
        return TokenCounts(
            self._prompt_tokens,
            self._completion_tokens,
            self._cached_tokens,
            self._reasoning_tokens,
            self._accepted,
            self._rejected,
            self._written_tokens,
            self._computed_tokens,
        )

    def _record(self, prompt: PlannedPrompt) -> PromptRecord:
        keep = self._filters.unflagged if self._filters else None
        return PromptRecord(
            prompt.text, prompt.job.prompt, prompt.token_bytes, None, self._vocabulary.token_bytes, keep
        )

    def accept(self, events: Iterable[Prefilled | Decoded]) -> list[Delta]:
        """Process events of this plan's jobs and return the deltas that they complete."""
        deltas: list[Delta] = []
        for event in events:
            state = self._prompts[event.job]
            if isinstance(event, Prefilled):
                self._cached_tokens += event.num_cached_tokens
                self._count_written(event)
                if state.record is not None:
                    state.record.scores = event.scores
            else:
                deltas += self._decoded(state, event)
        return deltas

    def _count_written(self, event: Prefilled) -> None:
        if event.num_written_tokens is None or self._written_tokens is None:
            self._written_tokens = None
        else:
            self._written_tokens += event.num_written_tokens

    def take_ended_early(self) -> list[tuple[int, int]]:
        """Return the choices (job, choice) that have ended here and not in the engine since the last call."""
        ended, self.ended_early = self.ended_early, []
        return ended

    def _decoded(self, state: _PromptState, event: Decoded) -> list[Delta]:
        """Return the deltas that the tokens of one step add to a choice."""
        self._computed_tokens += len(event.tokens)
        self._cached_tokens += event.num_cached_tokens
        text = self._text(state, event.choice)
        if text is None:
            return []
        deltas: list[Delta] = []
        num_completion_tokens, num_used = None, 0
        for index, unfiltered in enumerate(text.feed(event), 1):
            delta = self._filter(state, unfiltered) if self._filters.all else unfiltered
            if delta is None:
                continue
            num_completion_tokens, num_used = delta.num_completion_tokens, index
            if self._reasoning_markers is not None:
                self._count_reasoning(state, delta, self._reasoning_markers)
            if self._ranks_candidates:
                deltas += self._collect(state, delta)
            else:
                deltas.append(self._delta(state, delta, state.first_index + delta.choice))
            if delta.finish:
                state.texts[event.choice] = None
                if not event.finish_reason:
                    self.ended_early.append((event.job, event.choice))
        if event.num_accepted_prediction_tokens or event.num_rejected_prediction_tokens:
            self._count_drafts(event, num_completion_tokens, num_used)
        return deltas

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
        return filtered if filtered.text or filtered.records or filtered.finish else None

    def _count_reasoning(self, state: _PromptState, delta: TextDelta, markers: Markers) -> None:
        counter = state.reasoning_counters.get(delta.choice)
        if counter is None:
            counter = state.reasoning_counters[delta.choice] = ReasoningCounter(markers, state.prompt.tokens)
        self._reasoning_tokens += counter.count(delta.records, delta.num_completion_tokens)

    def _count_drafts(self, event: Decoded, num_completion_tokens: int | None, num_used: int) -> None:
        """Update the counts of drafted tokens. Accepted tokens that are not in the completion count as rejected where a
        filter cut them off, and not at all where they only end the text.

        Of the event's tokens, those after the first `num_used` were cut off. `num_completion_tokens` is that of the
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

    def _delta(self, state: _PromptState, delta: TextDelta, index: int) -> Delta:
        """Return a text delta as one of the choice `index`, and count its tokens."""
        choice = (delta.job, delta.choice)
        self._completion_tokens += delta.num_completion_tokens - self._num_tokens.get(choice, 0)
        self._num_tokens[choice] = delta.num_completion_tokens
        self._num_open -= delta.finish is not None
        if delta.choice in state.begun:
            return Delta(index, delta.text, delta.records, delta.finish)
        state.begun.add(delta.choice)
        record = state.record
        if len(state.begun) == self._request.candidates:
            state.record = None
        return Delta(index, delta.text, delta.records, delta.finish, record)

    def _collect(self, state: _PromptState, delta: TextDelta) -> list[Delta]:
        """Add a delta to its candidate. Return the best candidates when all have ended, else nothing."""
        candidate = state.candidates.setdefault(delta.choice, _Candidate())
        candidate.deltas.append(self._delta(state, delta, delta.choice))
        candidate.logprobs += [record.logprob for record in delta.records]
        candidate.num_tokens = delta.num_completion_tokens
        state.num_ended += delta.finish is not None
        if state.num_ended < self._request.candidates:
            return []
        return self._best(state)

    def _best(self, state: _PromptState) -> list[Delta]:
        """Return the n candidates with the highest mean log probability, renumbered, best first."""
        ranked = sorted(state.candidates.items(), key=lambda item: (-item[1].mean_logprob, item[0]))
        deltas: list[Delta] = []
        for rank, (_, candidate) in enumerate(ranked[: self._request.n]):
            for delta in candidate.deltas:
                delta.index = state.first_index + rank
                deltas.append(delta)
        state.candidates.clear()
        return deltas
