"""Server-sent events: what streams of all APIs are made of, and a decoder for clients and tests (behaviour §4)."""

from __future__ import annotations

import codecs

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


class EventTooLong(ValueError):
    """An event of a stream is longer than it may be."""


class EventDecoder:
    """Incremental decoder of an event stream, for body chunks of any size.

    Follows the EventSource standard: lines end with LF, CRLF or CR; comments and fields other than `data` and `id` are
    ignored; the data lines of an event are joined by newlines; invalid UTF-8 becomes U+FFFD. An event, or a line, of
    more than `max_chars` is refused.
    """

    def __init__(self, max_chars: int = 1 << 30) -> None:
        self._max_chars = max_chars
        self._num_held = 0
        """Characters of the line and the event that are not complete."""
        self.last_event_id = ""
        """The id of the last event that was returned, or of one before it if it has none."""
        self._id = ""
        self._text = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._partial: list[str] = []
        self._data: list[str] = []
        self._after_cr = False

    def feed(self, body_chunk: bytes) -> list[str]:
        """Return the data of the events that this body chunk completes, in order. Raises EventTooLong."""
        return self._split_lines(self._text.decode(body_chunk))

    def flush(self) -> list[str]:
        """End the stream and return its last event, which may lack the blank line at its end."""
        events = self._split_lines(self._text.decode(b"", final=True))
        events += self._process_line("".join(self._partial))
        self._partial.clear()
        return events + self._dispatch()

    def _split_lines(self, text: str) -> list[str]:
        if self._after_cr and text:
            text = text.removeprefix("\n")
            self._after_cr = False
        if text.endswith("\r"):
            self._after_cr = True
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        events: list[str] = []
        for line in lines[:-1]:
            self._partial.append(line)
            complete = "".join(self._partial)
            self._partial.clear()
            events += self._process_line(complete)
            self._num_held = sum(map(len, self._data))
        self._partial.append(lines[-1])
        self._num_held += len(lines[-1])
        if self._num_held > self._max_chars:
            raise EventTooLong(f"an event of more than {self._max_chars} characters")
        return events

    def _process_line(self, line: str) -> list[str]:
        """Process a line without its line end; an empty line ends the event."""
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        elif name == "id" and "\0" not in value:
            self._id = value.removeprefix(" ")
        return []

    def _dispatch(self) -> list[str]:
        """Return the data of the event that ends here, if it has any."""
        self.last_event_id = self._id
        if not self._data:
            return []
        event = "\n".join(self._data)
        self._data.clear()
        return [event]
