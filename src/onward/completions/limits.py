"""The limits of one request that depend on the model or on how much work and memory its answer takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from onward.completions.rejections import TooManyChoices, TooManyLogprobs, TooManyPromptTokens
from onward.completions.request import CompletionRequest
from onward.settings import Settings

SCORING_PARALLEL_FACTOR = 8
"""Factor of the maximum number of choices for requests that generate nothing."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What the operator allows one request; see the settings of the same names."""

    max_parallel: int = 2048
    max_prompt_tokens: int = 524_288
    max_answer_logprobs: int = 1_048_576

    @classmethod
    def create(cls, settings: Settings) -> Self:
        """Return the limits of the settings."""
        return cls(settings.max_parallel, settings.max_prompt_tokens, settings.max_answer_logprobs)

    @property
    def max_prompts(self) -> int:
        """Maximum number of prompts of any request: one that generates nothing, with one choice each."""
        return self.max_parallel * SCORING_PARALLEL_FACTOR

    def check_choices(self, num_prompts: int, request: CompletionRequest, context_length: int) -> None:
        """Raise RequestRejected if there are too many choices, or too many log probabilities of generated tokens, of
        which no choice has more than the model's context: a request for more is refused for that reason."""
        _check_parallel(num_prompts, request, self.max_parallel)
        self._check_logprobs(request, num_prompts * request.candidates * min(request.max_tokens, context_length))

    def check_prompts(self, num_prompts: int, num_tokens: int, request: CompletionRequest) -> None:
        """Raise RequestRejected if the prompts have too many tokens together, or too many log probabilities are
        returned for them.

        `num_tokens` is that of all prompts, or of those that have been tokenized so far.
        """
        if num_tokens > self.max_prompt_tokens:
            raise TooManyPromptTokens(num_tokens, self.max_prompt_tokens)
        echoed = num_tokens * request.n if request.echo else 0
        generated = num_prompts * request.candidates * request.max_tokens
        self._check_logprobs(request, generated + echoed, num_tokens * request.n)

    def _check_logprobs(self, request: CompletionRequest, num_tokens: int, num_scored: int = 0) -> None:
        """Raise RequestRejected if there are too many log probabilities: those of `num_tokens` tokens with `logprobs`,
        and of `num_scored` with `prompt_logprobs`."""
        wanted = [("logprobs", request.logprobs, num_tokens), ("prompt_logprobs", request.prompt_logprobs, num_scored)]
        parts = [(count * (1 + top), name, top, count) for name, top, count in wanted if top is not None]
        num_logprobs = sum(part[0] for part in parts)
        if num_logprobs > self.max_answer_logprobs:
            _, name, top, count = max(parts)
            raise TooManyLogprobs(name, num_logprobs, count, top, self.max_answer_logprobs)


def _check_parallel(num_prompts: int, request: CompletionRequest, max_parallel: int) -> None:
    """Raise TooManyChoices for more choices than the limit, or than its multiple where nothing is generated."""
    is_scoring = request.max_tokens == 0
    limit = max_parallel * (SCORING_PARALLEL_FACTOR if is_scoring else 1)
    if num_prompts * request.candidates > limit:
        raise TooManyChoices(num_prompts, request.candidates, limit, is_scoring)
