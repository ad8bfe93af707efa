"""Engine events become partial choices: echo, log-probabilities, best_of, and what is billed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from onward.completions.filters import ContentFilters, Screen, Screened
from onward.completions.logprobs import LogprobsWriter, PieceOf, extend
from onward.completions.plan import Plan, PlannedPrompt
from onward.completions.thinking import ThoughtCounter
from onward.engine.events import Piece, Prefilled
from onward.protocol.response import (
    Choice,
    CompletionTokensDetails,
    Logprobs,
    PromptTokensDetails,
    Usage,
)
from onward.sampling.outputs import Sampled


@dataclass(slots=True)
class _Candidate:
    """A candidate of `best_of`, kept until all of its prompt are done."""

    parts: list[Choice] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    billed: int = 0

    @property
    def mean_logprob(self) -> float:
        """Mean over the completion tokens (end and stop tokens left out); an empty candidate ranks last."""
        counted = self.logprobs[: self.billed]
        return sum(counted) / len(counted) if counted else -math.inf


@dataclass(slots=True)
class _PromptState:
    prompt: PlannedPrompt
    first_index: int
    scores: Sequence[Sampled | None] | None = None
    written: Logprobs | None = None
    """The echoed prompt's log-probabilities, written once for all its choices."""
    echoed: set[int] = field(default_factory=set)
    candidates: dict[int, _Candidate] = field(default_factory=dict)
    ended: int = 0
    thoughts: dict[int, ThoughtCounter] = field(default_factory=dict)
    screens: dict[int, Screen] = field(default_factory=dict)


class ChoiceStream:
    """Turns a plan's events into partial choices, in order, each index closed by its finish_reason.

    With best_of > n nothing comes until all candidates of a prompt are done; then its n best do, whole.
    """

    def __init__(self, plan: Plan, piece_of: PieceOf, filters: ContentFilters | None = None) -> None:
        request = plan.request
        self._request = request
        self._filters = filters or ContentFilters()
        self._think = plan.think
        self._reasoning_tokens = 0
        self.cut_short = False
        """Whether a content filter ended a choice before the engine did: work for it may be left."""
        self._rank = request.candidates > request.n
        self._writer = (
            None
            if request.logprobs is None
            else LogprobsWriter(request.logprobs, request.return_tokens_as_token_ids, piece_of, self._filters)
        )
        self._prompts = {
            prompt.job.id: _PromptState(prompt, index * request.n) for index, prompt in enumerate(plan.prompts)
        }
        self._prompt_tokens = sum(prompt.billed for prompt in plan.prompts)
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._billed: dict[tuple[int, int], int] = {}
        self._drafted: dict[tuple[int, int], tuple[int, int]] = {}
        self._accepted = self._rejected = 0
        """Tokens drafted from the prediction; by job and choice in `_drafted`."""
        self._open = len(self._prompts) * request.candidates

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return self._open == 0

    @property
    def usage(self) -> Usage:
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

    def accept(self, events: Iterable[Prefilled | Piece]) -> list[Choice]:
        """Take events of this plan's jobs; give the partial choices they make ready."""
        choices: list[Choice] = []
        for event in events:
            state = self._prompts[event.job]
            if isinstance(event, Prefilled):
                self._cached_tokens += event.cached
                state.scores = event.scores
                continue
            piece = self._screened(state, event)
            if piece is None:
                continue
            if event.foretold or event.mistaken:
                self._count_drafts(event, piece.billed)
            self._count_thoughts(state, piece)
            if self._rank:
                choices += self._collect(state, piece)
            else:
                choices += self._parts(state, piece, state.first_index + piece.choice)
        return choices

    def _screened(self, state: _PromptState, piece: Piece) -> Piece | Screened | None:
        """What the filters leave of a piece; None where there is nothing to tell, or a filter ended the choice."""
        if not self._filters:
            return piece
        screen = state.screens.get(piece.choice)
        if screen is None:
            screen = state.screens[piece.choice] = Screen(self._filters, state.prompt.job.text_base)
        if screen.ended:
            return None
        screened = screen.feed(piece)
        self.cut_short |= screen.ended and piece.ending is None
        return screened if screened.text or screened.records or screened.ending else None

    def _count_thoughts(self, state: _PromptState, piece: Piece | Screened) -> None:
        if self._think is None:
            return
        counter = state.thoughts.get(piece.choice)
        if counter is None:
            counter = state.thoughts[piece.choice] = ThoughtCounter(self._think, state.prompt.tokens)
        self._reasoning_tokens += counter.count(piece.records, piece.billed)

    def _count_drafts(self, piece: Piece, billed: int) -> None:
        """No more is accepted than is billed: an end, a stop and what a filter cuts off are not in the completion."""
        choice = (piece.job, piece.choice)
        accepted, rejected = self._drafted.get(choice, (0, 0))
        self._drafted[choice] = now = min(piece.foretold, billed), piece.mistaken
        self._accepted += now[0] - accepted
        self._rejected += now[1] - rejected

    def _parts(self, state: _PromptState, piece: Piece | Screened, index: int) -> list[Choice]:
        """A piece as one partial choice, or two: a stop comes in a part of its own (spec/completions §4)."""
        choice = (piece.job, piece.choice)
        self._completion_tokens += piece.billed - self._billed.get(choice, 0)
        self._billed[choice] = piece.billed
        text = piece.text
        logprobs = None if self._writer is None else self._writer.generated(piece.records)
        if self._request.echo and piece.choice not in state.echoed:
            state.echoed.add(piece.choice)
            text = state.prompt.text + text
            logprobs = self._with_prompt(state, logprobs)
        if piece.ending:
            self._open -= 1
        if piece.ending != "stop" or not (text or piece.records):
            return [Choice(text=text, index=index, logprobs=logprobs, finish_reason=piece.ending)]
        closing = None if self._writer is None else self._writer.empty()
        return [
            Choice(text=text, index=index, logprobs=logprobs),
            Choice(text="", index=index, logprobs=closing, finish_reason="stop"),
        ]

    def _with_prompt(self, state: _PromptState, logprobs: Logprobs | None) -> Logprobs | None:
        if logprobs is None or self._writer is None or state.scores is None:
            return logprobs
        prompt = state.prompt
        if state.written is None:
            state.written = self._writer.prompt(prompt.tokens, prompt.pieces, state.scores[prompt.hidden :])
        whole = self._writer.empty()
        extend(whole, state.written)
        extend(whole, logprobs)
        return whole

    def _collect(self, state: _PromptState, piece: Piece | Screened) -> list[Choice]:
        candidate = state.candidates.setdefault(piece.choice, _Candidate())
        candidate.parts += self._parts(state, piece, piece.choice)
        candidate.logprobs += [record.logprob for record in piece.records]
        candidate.billed = piece.billed
        state.ended += piece.ending is not None
        if state.ended < self._request.candidates:
            return []
        return self._best(state)

    def _best(self, state: _PromptState) -> list[Choice]:
        """The n candidates with the highest log-probability a token, renumbered, best first."""
        ranked = sorted(state.candidates.items(), key=lambda item: (-item[1].mean_logprob, item[0]))
        choices: list[Choice] = []
        for rank, (_, candidate) in enumerate(ranked[: self._request.n]):
            for part in candidate.parts:
                part.index = state.first_index + rank
                choices.append(part)
        state.candidates.clear()
        return choices
