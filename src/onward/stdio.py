"""The standard streams of a process: closed by whoever started it, or with nobody left to read them."""

from __future__ import annotations

import codecs
import io
import os
import struct
import sys

_ESCAPE = "onward.escape"


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


def escape_what_cannot_be_encoded() -> None:
    """Write characters that the encoding of stdout lacks as in JSON, `\\u00fc`, instead of failing at them."""
    codecs.register_error(_ESCAPE, _escaped)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_ESCAPE)


def _escaped(problem: UnicodeError) -> tuple[str, int]:
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    units = problem.object[problem.start : problem.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{unit:04x}" for (unit,) in struct.iter_unpack(">H", units)), problem.end


def silence_stdout() -> None:
    """Redirect stdout to the null device after a failed write, so that Python's flush at exit does not fail too."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
