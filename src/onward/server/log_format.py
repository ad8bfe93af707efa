"""How a log record becomes a line: text for people, JSON for machines."""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec

FIELDS = "fields"
"""The attribute of a record with further fields: `extra={FIELDS: {...}}`. Text has them in the message, which JSON
does not repeat: there the fields have a `message` of their own."""


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message`, then a traceback if there is one. A message stays on one line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object: `time` (RFC 3339, UTC), `level`, `logger`, `message`, the record's FIELDS, and `exception`, a
    traceback, if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= getattr(record, FIELDS, {})
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            entry["exception"] = record.exc_text
        return msgspec.json.encode(entry, enc_hook=str).decode()


def one_line(text: str) -> str:
    """Return the text with control characters escaped: what a client sent cannot forge a line."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
