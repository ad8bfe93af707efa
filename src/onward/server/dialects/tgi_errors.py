"""The errors of text-generation-inference (ErrorResponse in router/src/lib.rs, statuses in infer/mod.rs, messages in
validation.rs)."""

from __future__ import annotations

import msgspec

from onward.api.errors import ErrorWords
from onward.api.openai.words import openai_error
from onward.completions.rejections import ContextExceeded
from onward.errors import ApiError, EngineStopped, InvalidRequest, Overloaded, RequestRejected
from onward.protocol.error_body import MAX_FIELD_CHARS
from onward.protocol.sse import data_event


def say(fact: RequestRejected) -> ApiError:
    """Return the error of a request that cannot be completed: the router's where it has one."""
    match fact:
        case ContextExceeded(prompt_tokens, 0, limit):
            return InvalidRequest(f"`inputs` must have less than {limit} tokens. Given: {prompt_tokens}")
        case ContextExceeded(prompt_tokens, max_tokens, limit):
            at_least = "at least " if fact.is_minimum else ""
            return InvalidRequest(
                f"`inputs` tokens + `max_new_tokens` must be <= {limit}. Given: {at_least}{prompt_tokens} `inputs` "
                f"tokens and {max_tokens} `max_new_tokens`"
            )
    return openai_error(fact)


def error_object(error: ApiError) -> dict[str, str]:
    """Return error and error_type."""
    message = error.message[:MAX_FIELD_CHARS]
    match error:
        case InvalidRequest():
            return {"error": f"Input validation error: {message}", "error_type": "validation"}
        case EngineStopped():
            return {"error": message, "error_type": "unhealthy"}
        case Overloaded():
            return {"error": message, "error_type": "overloaded"}
    return {"error": message, "error_type": "generation" if error.status >= 500 else "request"}


def _body(error: ApiError) -> tuple[int, bytes, str]:
    """Invalid requests are 422. Where there is no room the status is 429, which has Retry-After."""
    status = error.status
    if isinstance(error, InvalidRequest):
        status = 422
    elif isinstance(error, Overloaded) and not isinstance(error, EngineStopped):
        status = 429
    elif status == 500:
        status = 424
    return status, msgspec.json.encode(error_object(error)), "application/json"


def _event(error: ApiError) -> bytes:
    return data_event(error_object(error))


ERRORS = ErrorWords(say, _body, _event)
