"""Explain what is wrong with a request body that is not JSON, and where."""

from __future__ import annotations

import re

from onward.errors import UnreadableBody

_AT_BYTE = re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)")
"""A message of msgspec.DecodeError. The byte is the offending one, or the one behind it."""
_REASONS = {
    "Input data was truncated": "it ends before the JSON is complete",
    "Number out of range": "it contains a number that is out of range",
}


def malformed_json(body: bytes, exception: Exception) -> UnreadableBody:
    """Return the error for a body that msgspec could not decode, with the reason and the position.

    `exception` is msgspec's DecodeError, a UnicodeDecodeError or a RecursionError.
    """
    return UnreadableBody(f"We could not parse the JSON body of your request: {_reason(body, exception)}.")


def _reason(body: bytes, exception: Exception) -> str:
    if not body.strip():
        return "it is empty"
    if isinstance(exception, RecursionError):
        return "its arrays and objects are nested too deeply"
    try:
        body.decode()
    except UnicodeDecodeError as error:  # msgspec counts from the beginning of the string
        return f"it is not valid UTF-8 at {_position(body, error.start)}"
    if match := _AT_BYTE.fullmatch(str(exception)):
        reason = match[1].replace("keys must be strings", "keys must be strings in double quotes")
        return f"{reason} near {_position(body, int(match[2]))}"
    return next((reason for start, reason in _REASONS.items() if str(exception).startswith(start)), "it is not JSON")


def _position(body: bytes, index: int) -> str:
    """Return line and column of the byte at `index`, both from 1; the column counts code points."""
    before = body[:index]
    line_start = before.rfind(b"\n") + 1
    line = before.count(b"\n") + 1
    return f"line {line}, column {len(before[line_start:].decode(errors='replace')) + 1}"
