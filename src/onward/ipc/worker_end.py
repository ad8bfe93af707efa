"""What a process does first that `spawn` has started: takes its connection, ignores the signals that concern the server
alone, although a terminal or a service manager sends them to all its processes, prepares to end before the server, and
limits itself where strangers' programs run in it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger("onward.engine")

_OOM_SCORE = Path("/proc/self/oom_score_adj")
OOM_SCORE_OFFSET = 100
"""How much likelier than the server Linux ends this process when memory runs out, in thousandths of all memory: it is
replaced, and the server is not."""
_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""

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


def take_connection() -> tuple[int, int]:
    """Return the descriptors to read from and to write to, maybe the same one. Standard input and output are free
    afterwards: what libraries print does not get between frames."""
    down = os.dup(0)
    up = os.dup(1) if sys.platform == "win32" else down
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    return down, up


def die_with_parent() -> None:
    """Have Linux kill this process when the server's thread that started it ends, even if it is stopped or hangs in
    native code. Elsewhere, and for a server that was gone before this call, the end of the connection does it."""
    if not sys.platform.startswith("linux"):
        return
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, OSError):
        log.debug("prctl is not available")


def prefer_as_oom_victim() -> None:
    """Have Linux choose this process rather than the server when memory runs out."""
    if not sys.platform.startswith("linux"):
        return
    try:
        _OOM_SCORE.write_text(
            str(min(int(_OOM_SCORE.read_text(encoding="utf-8")) + OOM_SCORE_OFFSET, 1000)), encoding="utf-8"
        )
    except (OSError, ValueError):
        log.debug("%s cannot be written", _OOM_SCORE)


def limit_memory(extra_bytes: int) -> None:
    """Limit the addresses that this process may have to so many beyond those that it has, where the system knows how
    many these are."""
    if sys.platform != "linux":
        return
    import resource

    with suppress(OSError, ValueError):
        num_pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
        limit = num_pages * os.sysconf("SC_PAGE_SIZE") + extra_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


@contextmanager
def limited_processor_time(seconds: float) -> Iterator[None]:
    """End this process, by SIGPROF, where the block takes more processor time. Not on Windows."""
    _end_after(seconds)
    try:
        yield
    finally:
        _end_after(0.0)


def _end_after(seconds: float) -> None:
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)


def open_nothing() -> None:
    """Let this process open neither files nor connections from now on; what is open stays so. Not on Windows."""
    if sys.platform == "win32":
        return
    import resource

    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
