"""The limits of one request that depend on the model or on how much work and memory its answer takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from onward.errors import InvalidRequest
from onward.protocol.request import CompletionRequest
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

    def check_choices(self, num_prompts: int, request: CompletionRequest) -> None:
        """Raise InvalidRequest if there are too many choices, or too many log probabilities of generated tokens."""
        _check_parallel(num_prompts, request, self.max_parallel)
        self._check_logprobs(request, num_prompts * request.candidates * request.max_tokens)

    def check_prompts(self, num_prompts: int, num_tokens: int, request: CompletionRequest) -> None:
        """Raise InvalidRequest if the prompts have too many tokens together, or too many log probabilities are returned
        for them.

        `num_tokens` is that of all prompts, or of those that have been tokenized so far.
        """
        if num_tokens > self.max_prompt_tokens:
            raise InvalidRequest(
                f"The prompts of this request have at least {num_tokens} tokens together, but this server accepts at "
                f"most {self.max_prompt_tokens} per request. Send the prompts in several requests.",
                param="prompt",
            )
        echoed = num_tokens * request.n if request.echo else 0
        generated = num_prompts * request.candidates * request.max_tokens
        self._check_logprobs(request, generated + echoed, num_tokens * request.n)

    def _check_logprobs(self, request: CompletionRequest, num_tokens: int, num_scored: int = 0) -> None:
        """Raise InvalidRequest if there are too many log probabilities: those of `num_tokens` tokens with `logprobs`,
        and of `num_scored` with `prompt_logprobs`."""
        wanted = [("logprobs", request.logprobs, num_tokens), ("prompt_logprobs", request.prompt_logprobs, num_scored)]
        parts = [(count * (1 + top), name, top, count) for name, top, count in wanted if top is not None]
        num_logprobs = sum(part[0] for part in parts)
        if num_logprobs > self.max_answer_logprobs:
            _, name, top, count = max(parts)
            lower = f"'{name}', 'max_tokens' or 'n'" if name == "logprobs" else f"'{name}' or 'n'"
            raise InvalidRequest(
                f"The answer to this request could contain {num_logprobs} log probabilities ({count} tokens, each "
                f"with its own and {top} alternatives), but this server returns at most "
                f"{self.max_answer_logprobs} per request. Lower {lower}, or send fewer prompts.",
                param=name,
            )


def context_exceeded(prompt_tokens: int, max_tokens: int, context_length: int, *, is_minimum: bool) -> InvalidRequest:
    """Return the error of a request that does not fit, with OpenAI's message and punctuation (behaviour §2.3).

    `is_minimum`: the prompt has at least `prompt_tokens` tokens; it was too long to be tokenized.
    """
    at_least = "at least " if is_minimum else ""
    return InvalidRequest(
        f"This model's maximum context length is {context_length} tokens, however you requested "
        f"{at_least}{prompt_tokens + max_tokens} tokens ({at_least}{prompt_tokens} in your prompt; {max_tokens} for "
        "the completion). Please reduce your prompt; or completion length."
    )


def _check_parallel(num_prompts: int, request: CompletionRequest, max_parallel: int) -> None:
    """Raise InvalidRequest with OpenAI's message (behaviour §2.2). Its hint applies here, too."""
    is_scoring = request.max_tokens == 0
    max_parallel *= SCORING_PARALLEL_FACTOR if is_scoring else 1
    if num_prompts * request.candidates > max_parallel:
        hint = (
            " (HINT: if you want to just evaluate probabilities without generating new text, you can submit more "
            "prompts if you set 'max_tokens' to 0.)"
        )
        raise InvalidRequest(
            f"Too many parallel completions requested. You submitted {num_prompts} prompts with "
            f"{request.candidates} completions each, but you can currently request up to at most a total of "
            f"{max_parallel}.{'' if is_scoring else hint}"
        )
