"""Counts with their nouns, and excerpts of texts."""

from __future__ import annotations

from onward.cli.output.terminal import visible

MAX_EXCERPT_LENGTH = 40


def pluralize(number: int, noun: str) -> str:
    """Return `1 line` or `2,000 lines`; `noun` is singular and takes an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def excerpt(text: str) -> str:
    """Return the beginning of a text, to name it in a sentence."""
    return visible(text if len(text) <= MAX_EXCERPT_LENGTH else text[:MAX_EXCERPT_LENGTH] + "…")
