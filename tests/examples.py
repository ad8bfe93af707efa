"""How many examples a property test draws, and which cases of a table run: some of them in the fast suite."""

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


def slow_but(fast: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return parameters of a test: all but the representatives `fast` are slow. Raises ValueError for a representative
    that is not one of the values."""
    found = [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]
    if sum(value in fast for value in found) != len(fast):
        raise ValueError(f"not all of {fast} are among the values")
    return found
