"""Numbers of things, and the beginnings of texts, for a person."""

from __future__ import annotations

from onward.cli.output.terminal import visible

LONGEST_EXCERPT = 40


def pluralize(number: int, thing: str) -> str:
    """`1 line`, `2,000 lines`; `thing` is in the singular and takes an s."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def excerpt(text: str) -> str:
    """As much of a text as names it in a sentence."""
    return visible(text if len(text) <= LONGEST_EXCERPT else text[:LONGEST_EXCERPT] + "…")
