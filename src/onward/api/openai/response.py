"""Response objects. A completion and a streamed chunk share the type Choice, complete or partial."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "content_filter"]


class WireObject(msgspec.Struct):
    """Base class: attribute access in Python, the API's JSON on the wire, and the conversions of OpenAI's SDK."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object as dicts and lists, as on the wire."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return plain

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the object as JSON; with `indent` None, on one line."""
        encoded = msgspec.json.encode(self)
        return (encoded if indent is None else msgspec.json.format(encoded, indent=indent)).decode()

    model_dump = to_dict

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """Return the object as JSON; with `indent` None, on one line."""
        return self.to_json(indent=indent)


class Logprobs(WireObject, kw_only=True):
    """Four lists of equal length, with one entry per token (behaviour §2.7).

    `text_offset` is in Unicode code points from the start of prompt and completion together. For the first token of an
    echoed prompt, `token_logprobs` and `top_logprobs` contain None. `top_logprobs` is None for logprobs=0.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptLogprob(WireObject, gc=False):
    """One token that may stand in a place of the prompt: a log probability, the token's rank among all there, from 1,
    and its text as in `Logprobs.tokens`."""

    logprob: float
    rank: int
    decoded_token: str


class Choice(WireObject, kw_only=True):
    """One choice, complete, or the part of it in one chunk."""

    text: str
    index: int
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    """With `return_token_ids`: the generated tokens of this choice or part, with those that ended it."""
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    """With `return_token_ids`, in the first part of a choice: the tokens that the model was prompted with."""
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | msgspec.UnsetType = msgspec.UNSET
    """With `prompt_logprobs`, in the first part of a choice: an entry per token that the model was prompted with, by
    token id the token itself, then the most likely ones; None for the first."""


class PromptTokensDetails(WireObject, kw_only=True):
    """Details of `Usage.prompt_tokens`. `cached_tokens` were found in the prefix cache, `cache_write_tokens` added to
    it (UNSET: another server computes the model, and does not say)."""

    cached_tokens: int = 0
    audio_tokens: int = 0
    text_tokens: int = 0
    image_tokens: int = 0
    cache_write_tokens: int | msgspec.UnsetType = 0


class CompletionTokensDetails(WireObject, kw_only=True):
    """Details of `Usage.completion_tokens`. Rejected prediction tokens are not part of it."""

    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    text_tokens: int = 0


class Usage(WireObject, kw_only=True):
    """Token counts: each prompt once, every generated candidate; end and stop tokens do not count."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Completion(WireObject, kw_only=True):
    """The response to a request without `stream`. The order of fields is that of the wire."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: list[Choice]
    usage: Usage


class Chunk(WireObject, kw_only=True, omit_defaults=True):
    """One event of a stream. UNSET fields are omitted on the wire (behaviour §4)."""

    id: str
    object: str
    created: int
    choices: list[Choice]
    model: str
    system_fingerprint: str | msgspec.UnsetType = msgspec.UNSET
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET
