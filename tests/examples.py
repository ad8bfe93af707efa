"""How many examples a property test draws: a quarter of them in the fast suite."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]


def examples(num: int) -> int:
    """Return how many of `num` examples to draw: all of them under the profiles "thorough" and "random"."""
    return max(1, num * settings().max_examples // 100)
