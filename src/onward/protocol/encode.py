"""Encodes completions as JSON bodies."""

from __future__ import annotations

import msgspec

from onward.protocol.response import Completion

_ENCODER = msgspec.json.Encoder()


def encode_completion(completion: Completion, *, schema: str | None = None) -> bytes:
    """Return the body of a response that is not streamed: two-space indent, final newline, non-ASCII not escaped.

    `schema` is the URL of the body's JSON Schema. It becomes the first key, `$schema` (spec/completions §0, §10).
    """
    body = _ENCODER.encode(completion)
    if schema is not None:
        body = b'{"$schema":' + _ENCODER.encode(schema) + b"," + body[1:]
    return msgspec.json.format(body, indent=2) + b"\n"
