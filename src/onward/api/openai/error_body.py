"""Encodes errors as HTTP bodies and as stream events (behaviour §11, W2, W6)."""

from __future__ import annotations

import msgspec

from onward.errors import (
    ApiError,
    AuthenticationFailed,
    BodyTimeout,
    Forbidden,
    HeadTooLarge,
    MethodNotAllowed,
    NotFound,
    RateLimited,
    RequestTooLarge,
    UnreadableBody,
    UnsupportedContentType,
    UnsupportedEncoding,
)

MAX_FIELD_CHARS = 2000
"""Maximum length of an error's `message` and `param`: both can contain text from the request."""
_GATEWAY = (
    AuthenticationFailed,
    BodyTimeout,
    Forbidden,
    NotFound,
    RateLimited,
    MethodNotAllowed,
    RequestTooLarge,
    HeadTooLarge,
    UnreadableBody,
    UnsupportedContentType,
    UnsupportedEncoding,
)


def error_envelope(error: ApiError) -> tuple[bytes, str]:
    """Return body and content type of an error response. All four keys are always present.

    The format follows OpenAI's two layers. Errors of the gateway (key, URL, method, content type, invalid JSON) have
    an indent of four, a final newline, escaped `<`, `>` and `&`, and a charset; other errors have an indent of two.
    """
    body = msgspec.json.encode({"error": _fields(error)})
    if isinstance(error, _GATEWAY):
        pretty = msgspec.json.format(body, indent=4) + b"\n"
        for raw, escaped in ((b"<", rb"\u003c"), (b">", rb"\u003e"), (b"&", rb"\u0026")):
            pretty = pretty.replace(raw, escaped)
        return pretty, "application/json; charset=utf-8"
    return msgspec.json.format(body, indent=2), "application/json"


def error_response(error: ApiError) -> tuple[int, bytes, str]:
    """Return status, body and content type of an error response in OpenAI's shape."""
    return error.status, *error_envelope(error)


def error_event(error: ApiError) -> bytes:
    """Return the last event of a stream that fails after it has begun."""
    return b"data: " + msgspec.json.encode({"error": _fields(error)}) + b"\n\n"


def _fields(error: ApiError) -> dict[str, str | None]:
    message, param = _truncate(error.message), error.param and _truncate(error.param)
    if error.code == "unknown_url":  # recorded with its keys in this order
        return {"type": error.type, "code": error.code, "message": message, "param": param}
    return {"message": message, "type": error.type, "param": param, "code": error.code}


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_FIELD_CHARS else text[: MAX_FIELD_CHARS - 1] + "…"
