"""Numbers of things, for a person."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """`1 line`, `2,000 lines`; `thing` is in the singular and takes an s."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
