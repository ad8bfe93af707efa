"""Requests that must be rejected."""

from __future__ import annotations

import json

import pytest

from onward.errors import InvalidRequest
from tests.api.openai.decoding import decode_request

TEXT = {"type": "text", "text": "a"}


def refuse(body: object, **options: object) -> InvalidRequest:
    """Return the error of a body, given as bytes or as JSON values."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(InvalidRequest) as caught:
        decode_request(raw, **options)  # type: ignore[arg-type]
    return caught.value


def content(*parts: object) -> dict[str, object]:
    """Return a prediction of these parts."""
    return {"type": "content", "content": list(parts)}


def at(path: str, value: object) -> dict[str, object]:
    """Return a body with `value` at `path`, and with `stream` if stream_options need it."""
    outer, _, inner = path.partition(".")
    stream = {"stream": True} if outer == "stream_options" else {}
    return {"model": "m"} | stream | {outer: {inner: value} if inner else value}
