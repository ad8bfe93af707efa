"""How many examples a property test draws, and which cases of a table run in the fast suite, in the slow one, and in
`make companions`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

__all__ = ["UNICODE", "examples", "slow_but"]

UNICODE = st.characters(exclude_categories=["Cs"])
"""All characters that UTF-8 has. For the alphabet that texts have by default, hypothesis encodes a million characters
first, which takes a second."""


def examples(num: int) -> int:
    """Return how many of `num` examples to draw: a twentieth in the fast suite, all of them under the profiles
    "thorough" and "random"."""
    return max(1, num * settings().max_examples // 100)


def slow_but(fast: Collection[Any], values: Iterable[Any], slow: Collection[Any] | None = None) -> list[Any]:
    """Return parameters of a test: all but the representatives `fast` are slow. Where `slow` is given, it has the
    representatives of the slow tests, and the values in neither run with `make companions`. Raises ValueError for a
    representative that is not one of the values."""
    companion = (pytest.mark.slow, pytest.mark.companion)
    known, found = [], []
    for value in values:
        known.append(value)
        if value in fast:
            found.append(value)
        else:
            marks = pytest.mark.slow if slow is None or value in slow else companion
            found.append(pytest.param(value, marks=marks))
    if unknown := [value for value in (*fast, *(slow or ())) if value not in known]:
        raise ValueError(f"not among the values: {unknown}")
    return found
