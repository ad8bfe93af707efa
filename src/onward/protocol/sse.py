"""Server-sent events: how chunks are written, and a reader for clients and tests (spec/completions §4)."""

from __future__ import annotations

import codecs
import secrets

import msgspec

from onward.protocol.response import Chunk

DONE = b"data: [DONE]\n\n"
"""The last event of a stream. The body closes right after it (spec/wire-rules 3)."""
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment that every reader skips, against time-outs in silence (spec/wire-rules 5)."""

SMALLEST_BUCKET = 256
_ENCODER = msgspec.json.Encoder()
_FIELD, _CLOSE, _END = b',"obfuscation":"', b'"}', b"\n\n"


def chunk_event(chunk: Chunk, *, obfuscate: bool = False) -> bytes:
    """One event. With `obfuscate` a random string pads it to 256, 512, 1024, … bytes in all, so that its length
    does not tell the length of its text; the chunk itself must not bring an `obfuscation`."""
    event = b"data: " + _ENCODER.encode(chunk)
    if not obfuscate:
        return event + _END
    length = len(event) - 1 + len(_FIELD) + len(_CLOSE) + len(_END)
    bucket = max(SMALLEST_BUCKET, 1 << (length - 1).bit_length())
    padding = secrets.token_urlsafe(bucket - length)[: bucket - length].encode()
    return event[:-1] + _FIELD + padding + _CLOSE + _END


class Decoder:
    """Reads a stream of events from pieces of any size; gives the data of each event that is complete.

    Follows the EventSource standard: lines end in LF, CRLF or CR; comments and fields other than `data` are
    skipped; several data lines are joined by a newline; bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._partial: list[str] = []
        self._data: list[str] = []
        self._after_cr = False

    def feed(self, piece: bytes) -> list[str]:
        """The data of the events that this piece completes, in order."""
        return self._read(self._text.decode(piece))

    def flush(self) -> list[str]:
        """The end of the stream. A last event counts although its blank line is missing."""
        events = self._read(self._text.decode(b"", final=True))
        events += self._line("".join(self._partial))
        self._partial.clear()
        return events + self._dispatch()

    def _read(self, text: str) -> list[str]:
        if self._after_cr and text:
            text = text.removeprefix("\n")
            self._after_cr = False
        if text.endswith("\r"):
            self._after_cr = True
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        events: list[str] = []
        for line in lines[:-1]:
            self._partial.append(line)
            whole = "".join(self._partial)
            self._partial.clear()
            events += self._line(whole)
        self._partial.append(lines[-1])
        return events

    def _line(self, line: str) -> list[str]:
        """Take one line without its end; an empty one ends the event."""
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        return []

    def _dispatch(self) -> list[str]:
        if not self._data:
            return []
        event = "\n".join(self._data)
        self._data.clear()
        return [event]
