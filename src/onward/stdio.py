"""The standard streams of a process: closed by whoever started it, or with nobody left to read them."""

from __future__ import annotations

import os
import sys


def replace_closed_streams() -> None:
    """Open the null device in place of each standard stream that is closed, for which Python has None.

    Writes to stdout then fail, as on a full disk: a result that nobody receives is not a success. Writes to stderr are
    discarded. `sys.stdin` stays None. Descriptors are assigned lowest first, so that no socket takes the number to
    which a library writes its messages. Raises OSError if the null device cannot be opened.
    """
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8", errors="backslashreplace")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8", errors="backslashreplace")


def silence_stdout() -> None:
    """Redirect stdout to the null device after a failed write, so that Python's flush at exit does not fail too."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
