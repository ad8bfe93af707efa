"""How errors are written, as an HTTP body and as an event of a stream (spec/completions §11, wire-rules 2, 6)."""

from __future__ import annotations

import msgspec

from onward.errors import (
    ApiError,
    AuthenticationFailed,
    BodyTimeout,
    HeadTooLarge,
    MethodNotAllowed,
    NotFound,
    RequestTooLarge,
    ServerError,
    UnreadableBody,
    UnsupportedContentType,
)

LONGEST = 2000
"""Characters of an error's message, and of its `param`: both may name what a client made up."""
_GATEWAY = (
    AuthenticationFailed,
    BodyTimeout,
    NotFound,
    MethodNotAllowed,
    RequestTooLarge,
    HeadTooLarge,
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
    message, param = _cut(error.message), error.param and _cut(error.param)
    if error.code == "unknown_url":  # recorded with its keys in this order
        return {"type": error.type, "code": error.code, "message": message, "param": param}
    return {"message": message, "type": error.type, "param": param, "code": error.code}


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
