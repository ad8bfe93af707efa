"""The threads of this process that a test's own object started."""

from __future__ import annotations

import threading

LOG = "onward-log"
"""The writer of log lines that would block: one per process, started by the first such line, never ended."""


def running() -> set[threading.Thread]:
    """Return the living threads, except that of the log, which any line of any test may start."""
    return {thread for thread in threading.enumerate() if thread.name != LOG}
