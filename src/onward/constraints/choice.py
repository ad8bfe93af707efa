"""One choice's constraint: its compiled grammar, and the state in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onward.constraints.matcher import Matcher

Masks = NDArray[np.uint32]
"""[1 + draft tokens, words], as in `sampling.masks`: what may be sampled next, and behind each drafted token."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar for the jobs with the same end tokens. `ends`: their mask. `first`: the masks of a choice without
    tokens, [1, words]. Without end tokens (`has_ends`), the model cannot say that a text is complete."""

    matcher: Matcher
    ends: NDArray[np.uint32]
    has_ends: bool
    first: Masks


class ChoiceConstraint:
    """The grammar's state of one choice. Used on one thread at a time."""

    __slots__ = ("compiled", "matcher")

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self.matcher = compiled.matcher.copy()

    def take(self, token: int) -> bool:
        """Take a token that is not an end token. Returns whether the text is complete: nothing can follow it."""
        self.matcher.consume(token)
        return self.matcher.is_complete or (not self.compiled.has_ends and self.matcher.has_ended())
