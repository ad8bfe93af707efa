"""What is answered: a whole completion and a streamed chunk share one Choice, whole or partial."""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "content_filter"]


class Logprobs(msgspec.Struct, kw_only=True):
    """Four lists of equal length, an entry a token (spec/completions §2.7).

    `text_offset` counts Unicode code points from the start of prompt and completion together. The first entry
    of an echoed prompt has None in `token_logprobs` and `top_logprobs`. `top_logprobs` is None when the
    request asked for logprobs=0.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class Choice(msgspec.Struct, kw_only=True):
    """One choice, whole, or the part of it that one chunk carries."""

    text: str
    index: int
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int = 0
    audio_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct, kw_only=True):
    """Tokens billed: each prompt once, each generated candidate whole, end and stop tokens not at all."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Completion(msgspec.Struct, kw_only=True):
    """The answer to a request that does not stream. Field order is the wire's."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: list[Choice]
    usage: Usage


class Chunk(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One event of a stream. Fields at UNSET do not appear on the wire (spec/completions §4)."""

    id: str
    object: str
    created: int
    choices: list[Choice]
    model: str
    system_fingerprint: str | msgspec.UnsetType = msgspec.UNSET
    usage: Usage | None | msgspec.UnsetType = msgspec.UNSET
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET
