"""What is answered: a whole completion and a streamed chunk share one Choice, whole or partial."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "content_filter"]


class WireObject(msgspec.Struct):
    """Attribute access in Python, the API's JSON on the wire, and the conversions that SDK users know."""

    def to_dict(self) -> dict[str, Any]:
        """The object as plain dicts and lists, as the wire shows it."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def to_json(self, *, indent: int | None = 2) -> str:
        """The object as JSON text; `indent` None writes it on one line."""
        encoded = msgspec.json.encode(self)
        return (encoded if indent is None else msgspec.json.format(encoded, indent=indent)).decode()

    model_dump = to_dict

    def model_dump_json(self, *, indent: int | None = None) -> str:
        return self.to_json(indent=indent)


class Logprobs(WireObject, kw_only=True):
    """Four lists of equal length, an entry a token (spec/completions §2.7).

    `text_offset` counts Unicode code points from the start of prompt and completion together. The first entry
    of an echoed prompt has None in `token_logprobs` and `top_logprobs`. `top_logprobs` is None when the
    request asked for logprobs=0.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class Choice(WireObject, kw_only=True):
    """One choice, whole, or the part of it that one chunk carries."""

    text: str
    index: int
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None


class PromptTokensDetails(WireObject, kw_only=True):
    cached_tokens: int = 0
    audio_tokens: int = 0


class CompletionTokensDetails(WireObject, kw_only=True):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(WireObject, kw_only=True):
    """Tokens billed: each prompt once, each generated candidate whole, end and stop tokens not at all."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Completion(WireObject, kw_only=True):
    """The answer to a request that does not stream. Field order is the wire's."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: list[Choice]
    usage: Usage


class Chunk(WireObject, kw_only=True, omit_defaults=True):
    """One event of a stream. Fields at UNSET do not appear on the wire (spec/completions §4)."""

    id: str
    object: str
    created: int
    choices: list[Choice]
    model: str
    system_fingerprint: str | msgspec.UnsetType = msgspec.UNSET
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET
