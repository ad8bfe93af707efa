"""How errors are written, as an HTTP body and as an event of a stream (spec/completions §11, wire-rules 2, 6)."""

from __future__ import annotations

import msgspec

from onward.errors import (
    ApiError,
    AuthenticationFailed,
    BodyTimeout,
    MethodNotAllowed,
    NotFound,
    RequestTooLarge,
    ServerError,
    UnreadableBody,
    UnsupportedContentType,
)

_GATEWAY = (
    AuthenticationFailed,
    BodyTimeout,
    NotFound,
    MethodNotAllowed,
    RequestTooLarge,
    UnreadableBody,
    UnsupportedContentType,
)


def error_envelope(error: ApiError) -> tuple[bytes, str]:
    """Body and content type of an error answer. All four keys are always there.

    As OpenAI's two layers write them: the gateway (key, URL, method, content type, unreadable JSON) indents by
    four, ends with a newline, escapes `<`, `>` and `&`, and names the charset; the engine indents by two.
    """
    body = msgspec.json.encode({"error": _fields(error)})
    if isinstance(error, _GATEWAY):
        pretty = msgspec.json.format(body, indent=4) + b"\n"
        for raw, escaped in ((b"<", rb"\u003c"), (b">", rb"\u003e"), (b"&", rb"\u0026")):
            pretty = pretty.replace(raw, escaped)
        return pretty, "application/json; charset=utf-8"
    return msgspec.json.format(body, indent=2), "application/json"


def error_event(error: ApiError) -> bytes:
    """One event of a stream that has already begun; the stream ends after it."""
    return b"data: " + msgspec.json.encode({"error": _fields(error)}) + b"\n\n"


def to_api_error(exception: BaseException) -> ApiError:
    """The error to tell a client. What is not meant for clients becomes a ServerError with OpenAI's words;
    the exception itself stays reachable as its `__cause__`, for the log."""
    if isinstance(exception, ApiError):
        return exception
    error = ServerError()
    error.__cause__ = exception
    return error


def _fields(error: ApiError) -> dict[str, str | None]:
    if error.code == "unknown_url":  # recorded with its keys in this order
        return {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
