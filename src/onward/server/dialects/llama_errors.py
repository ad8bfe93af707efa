"""llama.cpp's errors (format_error_response in tools/server/server-common.cpp)."""

from __future__ import annotations

import msgspec

from onward.api.errors import ErrorWords
from onward.api.openai.words import openai_error
from onward.completions.rejections import ContextExceeded
from onward.errors import ApiError, InvalidRequest, RequestRejected
from onward.protocol.error_body import MAX_FIELD_CHARS
from onward.protocol.sse import data_event

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "unavailable_error",
}


class ContextTooSmall(InvalidRequest):
    """ERROR_TYPE_EXCEED_CONTEXT_SIZE, which has its own fields."""

    def __init__(self, num_prompt_tokens: int, context_length: int) -> None:
        super().__init__(
            f"request ({num_prompt_tokens} tokens) exceeds the available context size ({context_length} tokens), "
            "try increasing it"
        )
        self.fields = {"n_prompt_tokens": num_prompt_tokens, "n_ctx": context_length}


def say(fact: RequestRejected) -> ApiError:
    """Return the error of a request that cannot be completed: llama.cpp's where it has one."""
    match fact:
        case ContextExceeded(prompt_tokens, _, limit):
            return ContextTooSmall(prompt_tokens, limit)
    return openai_error(fact)


def error_object(error: ApiError) -> dict[str, object]:
    """Return code, message and type."""
    message = error.message[:MAX_FIELD_CHARS]
    if isinstance(error, ContextTooSmall):
        return {"code": 400, "message": message, "type": "exceed_context_size_error", **error.fields}
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"code": error.status, "message": message, "type": kind}


def _body(error: ApiError) -> tuple[int, bytes, str]:
    return error.status, msgspec.json.encode({"error": error_object(error)}), "application/json; charset=utf-8"


def _event(error: ApiError) -> bytes:
    return data_event({"error": error_object(error)})


ERRORS = ErrorWords(say, _body, _event)
