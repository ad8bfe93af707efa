"""Server-sent events, which the streams of all APIs consist of (behaviour §4)."""

from __future__ import annotations

import msgspec

DONE = b"data: [DONE]\n\n"
"""The last event of a stream. The body ends right after it (behaviour W3)."""
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, ignored by clients, that prevents time-outs of silent streams (behaviour W5)."""

_ENCODER = msgspec.json.Encoder()
DATA = b"data: "
EVENT_END = b"\n\n"


def data_event(value: object) -> bytes:
    """Return any value that msgspec encodes as one event."""
    return DATA + _ENCODER.encode(value) + EVENT_END


def event_id(number: int) -> bytes:
    """Return the line that precedes the `data` of an event that a client can resume after, by `Last-Event-ID`."""
    return b"id: %d\n" % number
