"""Log lines: their format, the line of each request, and a handler that never blocks.

A pipe that nobody reads, or a stopped terminal, must not stop the server.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import select
import sys
import threading
import time
from typing import Any

import msgspec

from onward.server.exchange import HttpExchange
from onward.settings import Settings

access_log = logging.getLogger("onward.access")

FIELDS = "fields"
"""The attribute of a record with further fields: `extra={FIELDS: {...}}`. Text has them in the message, which JSON
does not repeat: there the fields have a `message` of their own."""
DEBUG_ROUTES = frozenset({"/health", "/metrics"})
"""Polled every few seconds by monitoring: logged at debug level only."""
MAX_VALUE_CHARACTERS = 64
_SEPARATORS = re.compile('[ ="]')
MAX_QUEUED_LINES = 10_000
"""Lines that wait to be written; further ones are dropped and counted."""
MAX_DIRECT_BYTES = 4096
"""PIPE_BUF of Linux: a pipe that poll(2) reports as ready takes this many bytes without blocking."""
FLUSH_SECONDS = 1.0
"""How long the end of the process waits for lines to be written."""


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message`, then a traceback if there is one. A message stays on one line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._second: tuple[int, str] = (-1, "")
        """The last second of which something was logged, and how it is written."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second = int(record.created)
        if second != self._second[0]:
            self._second = second, time.strftime(self.default_time_format, self.converter(second))
        return f"{self._second[1]},{int(record.msecs):03d}"

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


def log_request(exchange: HttpExchange) -> None:
    """Log a finished exchange."""
    record = exchange.record
    level = logging.DEBUG if record.route in DEBUG_ROUTES else logging.INFO
    if access_log.isEnabledFor(level):
        values = request_fields(exchange)
        # Not `access_log.log`, which searches the stack for a place in the source that no format names.
        line = logging.LogRecord(access_log.name, level, __file__, 0, key_value_line(values), None, None)
        setattr(line, FIELDS, {"message": "request", **values})
        access_log.handle(line)


def request_fields(exchange: HttpExchange) -> dict[str, object]:
    """Return what is logged of an exchange, by key. Values that clients choose are words (`clean`)."""
    record = exchange.record
    found: dict[str, object] = {
        "id": exchange.id,
        "client": clean(exchange.client),
        "key": record.key,
        "method": clean(exchange.method),
        "route": record.route,
        "model": clean(record.model),
        "user": clean(record.user),
        "stream": record.stream,
        "status": record.status,
        "prompt": record.prompt_tokens,
        "completion": record.completion_tokens,
        "cached": record.cached_tokens,
        "ttft_ms": None if record.first_token_ms is None else round(record.first_token_ms, 1),
        "ms": round(exchange.elapsed_ms, 1),
        "cancelled": record.cancelled,
    }
    if record.stream_id:
        found["stream_id"] = record.stream_id
    if record.error:
        found["error"] = record.error
    return found


def key_value_line(values: dict[str, object]) -> str:
    """Return the values as key=value pairs; what is unknown is `-`."""
    return " ".join(f"{key}={_text(value)}" for key, value in values.items())


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.1f}"
        case _:
            return str(value)


def clean(value: str) -> str:
    """Return `value` as one word of at most MAX_VALUE_CHARACTERS, so that it cannot forge another pair or line."""
    if 0 < len(value) <= MAX_VALUE_CHARACTERS and value.isprintable() and not _SEPARATORS.search(value):
        return value
    cut = value[:MAX_VALUE_CHARACTERS] + ("…" if len(value) > MAX_VALUE_CHARACTERS else "")
    return "".join(one if one.isprintable() and one not in ' ="' else "_" for one in cut) or "-"


class LogWriter(logging.Handler):
    """Writes records to a file descriptor, which it does not own: at once where that does not block, else on a thread
    of its own, which starts when it is first needed. Lines keep their order. May be used on any thread."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._num_queued = 0
        self._num_dropped = 0
        """Both modified under the handler's lock, which `emit` is called with."""
        self._written = threading.Event()
        """Set while nothing waits to be written."""
        self._written.set()
        self._thread: threading.Thread | None = None
        self._poll = None if sys.platform == "win32" else select.poll()
        if self._poll is not None:
            self._poll.register(fd, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write or queue a record."""
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        if not self._num_queued and self._can_write(line):
            _write(self._fd, line)
        elif self._num_queued >= MAX_QUEUED_LINES:
            self._num_dropped += 1
        else:
            self._enqueue(line)

    def flush(self) -> None:
        """Wait until all is written, but at most FLUSH_SECONDS."""
        self._written.wait(FLUSH_SECONDS)

    def _can_write(self, line: str) -> bool:
        """Whether writing the line does not block."""
        if self._poll is None or len(line) > MAX_DIRECT_BYTES // 4:  # a character has at most four bytes
            return False
        return any(events & select.POLLOUT for _, events in self._poll.poll(0))

    def _enqueue(self, line: str) -> None:
        self._num_queued += 1
        self._written.clear()
        self._queue.put(line)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="onward-log", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            _write(self._fd, self._queue.get())
            assert self.lock is not None
            with self.lock:
                self._num_queued -= 1
                dropped, self._num_dropped = self._num_dropped, 0
                if dropped:
                    self._enqueue(f"{dropped} log lines were dropped here, because nobody read them\n")
                elif not self._num_queued:
                    self._written.set()


def _write(fd: int, line: str) -> None:
    """Write a line. A descriptor that cannot be written, such as a full disk's, is not worth an error."""
    data = line.encode(errors="backslashreplace")
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        return


def configure_logging(settings: Settings) -> None:
    """Log to stderr, without ever blocking. Libraries log warnings only."""
    handler = LogWriter(2)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    logger = logging.getLogger("onward")
    logger.handlers[:] = [handler]
    logger.setLevel(settings.log_level.upper())
    logger.propagate = False
    libraries = logging.getLogger("uvicorn")
    libraries.handlers[:] = [handler]
    libraries.setLevel(logging.WARNING)
