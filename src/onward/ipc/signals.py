"""Signals that concern the server alone, although a terminal or a service manager sends them to all its processes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

if sys.platform == "win32":
    SERVER_SIGNALS = [signal.SIGINT]
else:
    SERVER_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]


@contextmanager
def server_signals_blocked() -> Iterator[None]:
    """Block them on this thread: a process that is started meanwhile inherits that, and cannot be ended by one before
    it ignores them."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SERVER_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_server_signals() -> None:
    """Ignore them in this process, which the server ends. Call it on the main thread."""
    for number in SERVER_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SERVER_SIGNALS)
