"""The servers of the parity rows, each started once per session, when a row first needs it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

import pytest

from onward.loop_thread import LoopThread

from .in_process import InProcess
from .servers import PLUGIN, Servers

SECRET = "the secret reason"
"""Of the error that the content filter of "broken" raises: logged, and sent to nobody."""


class Tracebacks(logging.Handler):
    """Collects log records of errors from the servers' event loop thread. Other tests of a worker log errors of their
    own."""

    def __init__(self, thread: str) -> None:
        super().__init__()
        self._thread = thread
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.threadName == self._thread:
            self.found.append(self.format(record))


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Without sockets."""
    loop, tracebacks = LoopThread("parity"), Tracebacks("parity")
    loop.start()
    logging.getLogger("onward").addHandler(tracebacks)  # a test of logs may have detached it from the root logger
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGIN))
        running = Servers(partial(InProcess, loop))
        yield running
        used = running.close()
    loop.stop(lambda: None)
    logging.getLogger("onward").removeHandler(tracebacks)
    assert all(SECRET in found for found in tracebacks.found), tracebacks.found
    assert tracebacks.found or "broken" not in used, "the cause of an error must be logged"


@pytest.fixture(scope="session")
def processes() -> Iterator[Servers]:
    """On real sockets."""
    running = Servers()
    yield running
    logs = running.close()
    assert not any("Traceback" in log for name, log in logs.items() if name != "broken"), logs
    assert SECRET in logs.get("broken", SECRET), "the cause of an error must be logged"
