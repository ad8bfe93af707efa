"""Mistral's /v1/fim/completions (mistralai 3.7.0: FIMCompletionResponse, CompletionEvent), which Continue calls too."""

from __future__ import annotations

from typing import Any

import msgspec

from onward.api.errors import ErrorWords
from onward.api.openai.fold import Identity
from onward.api.reply import OneChoice
from onward.completions.delta import Delta, TokenCounts
from onward.completions.request import CompletionRequest
from onward.errors import ApiError, InvalidRequest
from onward.protocol.dialects.decode import check_fields, request_fields
from onward.protocol.dialects.mistral import FIM
from onward.protocol.dialects.rows import UNLIMITED_TOKENS
from onward.protocol.error_body import MAX_FIELD_CHARS
from onward.protocol.sse import DONE, KEEP_ALIVE, data_event
from onward.server.dialects.services import Services
from onward.server.exchange import Exchange
from onward.server.routes import Route

Object = dict[str, Any]


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


class Mistral:
    """The endpoint."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        return [Route("POST", "/v1/fim/completions", self.complete, words=ERRORS)]

    async def complete(self, exchange: Exchange, _: str | None = None) -> None:
        """Complete what is between prompt and suffix."""
        profile = self._services.profile
        request = await self._services.decode(exchange, lambda fields: _request(check_fields(fields, FIM, profile)))
        await self._services.complete(exchange, request, FimReply(request))


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
