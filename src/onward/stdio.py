"""The process's standard streams, where whoever started it closed them or where nobody reads them any more."""

from __future__ import annotations

import os
import sys


def replace_closed_streams() -> None:
    """Put the null device where a standard stream came closed, for which Python has None.

    What is written to stdout then fails, as on a full disk: a result that nobody gets is no success. What is
    written to stderr vanishes. `sys.stdin` stays None. The descriptors are taken in order, lowest first, so that no
    socket comes to stand where a library writes its messages.
    """
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8", errors="backslashreplace")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8", errors="backslashreplace")


def silence_stdout() -> None:
    """After a write that failed: nothing more may be written, not even when Python closes its files."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
