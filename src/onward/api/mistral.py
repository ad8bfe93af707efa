"""Mistral's /v1/fim/completions (FIMCompletionRequest, FIMCompletionResponse and CompletionEvent of its Python client,
mistralai 3.7.0), which Continue calls too."""

from __future__ import annotations

from typing import Any

import msgspec

from onward.api.decoder import UNLIMITED_TOKENS, request_fields
from onward.api.errors import ErrorWords
from onward.api.fields import own, same, shared, unused
from onward.api.openai.errors import MAX_FIELD_CHARS
from onward.api.openai.reply import Identity
from onward.api.parameter import FieldTable
from onward.api.reply import OneChoice
from onward.api.routes import EVENTS, JSON, Exchange, Route, Services, with_words
from onward.api.sse import DONE, KEEP_ALIVE, data_event
from onward.completions.answer import Delta, TokenCounts
from onward.completions.request import CompletionRequest
from onward.errors import ApiError, InvalidRequest

Object = dict[str, Any]
NAME = "mistral"

FIM = FieldTable.with_whole_floats(
    same("model", "model", NAME, required=True, help="A model: an id or alias from the models endpoint."),
    own("prompt", "string", NAME, "The text before the completion.", required=True, example="def add(a, b):\n    "),
    same("suffix", "suffix", NAME),
    same("temperature", "temperature", NAME, default=0.7),
    same("top_p", "top_p", NAME),
    own(
        "max_tokens", "integer", NAME,
        "Maximum number of tokens to generate; by default as many as the context has room for.", minimum=0, example=64,
    ),
    own("max_completion_tokens", "integer", NAME, "Another name of `max_tokens`.", minimum=0, alias_of="max_tokens"),
    same("min_tokens", "min_tokens", NAME),
    same("stream", "stream", NAME, help="Send the completion while it is generated, as server-sent events."),
    same("stop", "stop", NAME, max_items=64, lenient_max_items=64),
    same("random_seed", "seed", NAME),
    *shared(NAME, "presence_penalty", "frequency_penalty"),
    unused("metadata", "object", NAME, "requests are not stored."),
    unused("prompt_cache_key", "string", NAME, "the prefix cache is always used, and finds what prompts share."),
)  # fmt: skip


def error_object(error: ApiError) -> Object:
    """Return Mistral's error object."""
    message = error.message[:MAX_FIELD_CHARS]
    return {"object": "error", "message": message, "type": error.type, "param": error.param, "code": error.code}


def error_body(error: ApiError) -> tuple[int, bytes, str]:
    """Return status, body and content type. Invalid fields are 422, with a list of what is wrong."""
    if not isinstance(error, InvalidRequest):
        return error.status, msgspec.json.encode(error_object(error)), "application/json"
    place = ["body", *([error.param] if error.param else [])]
    detail = {"loc": place, "msg": error.message[:MAX_FIELD_CHARS], "type": error.code or "value_error"}
    return 422, msgspec.json.encode({"detail": [detail]}), "application/json"


def _error_event(error: ApiError) -> bytes:
    return data_event(error_object(error))


ERRORS = ErrorWords(body=error_body, event=_error_event)


async def complete(services: Services, exchange: Exchange) -> None:
    """Complete what is between prompt and suffix."""
    request = _request(await services.fields(exchange, FIM))
    await services.complete(exchange, request, FimReply(request))


def _request(checked: Object) -> CompletionRequest:
    limit = checked.get("max_tokens")
    request = CompletionRequest(
        **request_fields(checked, "max_tokens", "prompt"),
        prompt=checked.get("prompt") or "",
        max_tokens=UNLIMITED_TOKENS if limit is None else limit,
        fill_context=limit is None,
    )
    if limit is not None and request.min_tokens > limit:
        raise InvalidRequest(f"'min_tokens' is above 'max_tokens', which is {limit}.", param="min_tokens")
    return request


class FimReply(OneChoice):
    """Writes one answer in the shape of a chat."""

    keep_alive = KEEP_ALIVE

    def __init__(self, request: CompletionRequest) -> None:
        super().__init__(is_stream=request.stream)
        self._request = request
        self._identity = Identity()
        self._finish = "stop"
        self._has_begun = False

    def write(self, delta: Delta, counts: TokenCounts) -> bytes:
        self._texts.append(delta.text)
        reason = None if delta.finish is None else delta.finish.reason
        self._finish = reason or self._finish
        if not self.is_stream or not (delta.text or reason):
            return b""
        content: Object = {"content": delta.text}
        if not self._has_begun:
            self._has_begun = True
            content = {"role": "assistant", **content}
        choice = {"index": 0, "delta": content, "finish_reason": reason}
        more = {"usage": _usage(counts)} if reason else {}
        return data_event({**self._head("chat.completion.chunk"), "choices": [choice], **more})

    def finish(self, counts: TokenCounts) -> bytes:
        if self.is_stream:
            return DONE
        message = {"role": "assistant", "content": "".join(self._texts), "tool_calls": None}
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return msgspec.json.encode({**self._head("chat.completion"), "choices": [choice], "usage": _usage(counts)})

    def _head(self, kind: str) -> Object:
        identity = self._identity
        return {"id": identity.id, "object": kind, "created": identity.created, "model": self._model}


def _usage(counts: TokenCounts) -> Object:
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
    }


_EXAMPLE: dict[str, Any] = {
    "id": "cmpl-C47L3RG6ICY37W3Q0flVHr4BPTPMS",
    "object": "chat.completion",
    "created": 1755097557,
    "model": "storyteller",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": " a time,"}, "finish_reason": "length"},
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
}

_STREAM_EXAMPLE = (
    'data: {"id":"cmpl-C47L3RG6ICY37W3Q0flVHr4BPTPMS","object":"chat.completion.chunk","model":"storyteller",'
    '"choices":[{"index":0,"delta":{"content":" a"},"finish_reason":null}]}\n\ndata: [DONE]\n\n'
)

ROUTES = with_words(
    ERRORS,
    Route(
        "POST",
        "/v1/fim/completions",
        complete,
        "mistralFim",
        "Complete what is between two texts.",
        body=FIM,
        stream=EVENTS,
        example={JSON: _EXAMPLE, EVENTS: _STREAM_EXAMPLE},
    ),
)
