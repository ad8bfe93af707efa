"""Writes log lines without ever blocking: a pipe that nobody reads, or a stopped terminal, must not stop the server."""

from __future__ import annotations

import logging
import os
import queue
import select
import sys
import threading

MAX_QUEUED_LINES = 10_000
"""Lines that wait to be written; further ones are dropped and counted."""
MAX_DIRECT_BYTES = 4096
"""PIPE_BUF of Linux: what poll(2) calls ready takes so many bytes without waiting."""
FLUSH_SECONDS = 1.0
"""How long the end of the process waits for lines to be written."""


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
