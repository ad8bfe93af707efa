"""How whole answers are written: the bytes of a JSON body."""

from __future__ import annotations

import msgspec

from onward.protocol.response import Completion

_ENCODER = msgspec.json.Encoder()


def encode_completion(completion: Completion, *, schema: str | None = None) -> bytes:
    """The body of an answer that does not stream: two-space indent, final newline, non-ASCII as it is.

    `schema` is the URL of the answer's JSON Schema; it becomes the first key, `$schema`
    (spec/completions §0, §10).
    """
    body = _ENCODER.encode(completion)
    if schema is not None:
        body = b'{"$schema":' + _ENCODER.encode(schema) + b"," + body[1:]
    return msgspec.json.format(body, indent=2) + b"\n"
