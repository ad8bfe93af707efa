"""One choice's constraint: the state of its grammar, and drafts of the text that must come next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onward.constraints.matcher import Matcher
from onward.sampling.masks import Mask

Masks = NDArray[np.uint32]
"""[1 + draft tokens, words]: what may be sampled next, and behind each drafted token."""

_PRIOR_ACCEPTED, _PRIOR_REJECTED = 19.0, 1.0
"""Tokens for forced text that the model chose, and did not, before any was observed."""
_LAST_TOKEN = 0.5
"""How much less probable the last token of a forced text is: the model may choose one that goes on behind it."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar for the jobs with the same end tokens. `first`: the masks of a choice without tokens, [1, words]."""

    matcher: Matcher
    ends: Mask
    first: Masks


class ChoiceConstraint:
    """The grammar's state of one choice. Engine thread only, but for the step during which masks are computed."""

    __slots__ = ("_num_accepted", "_num_rejected", "compiled", "matcher")

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self.matcher = compiled.matcher.copy()
        self._num_accepted, self._num_rejected = _PRIOR_ACCEPTED, _PRIOR_REJECTED

    def take(self, token: int) -> bool:
        """Take a token that is not an end token. Returns whether the text is complete: nothing can follow it."""
        self.matcher.consume(token)
        return self.matcher.is_complete

    def forced(self, count: int) -> tuple[list[int], list[float]]:
        """Return tokens for the text that must come next, at most `count`, and for each the probability that it and all
        before it are sampled."""
        tokens = self.matcher.forced_tokens(count + 1)
        each = self._num_accepted / (self._num_accepted + self._num_rejected)
        probabilities = [each ** (index + 1) for index in range(min(len(tokens), count))]
        if len(tokens) <= count and probabilities:
            probabilities[-1] *= _LAST_TOKEN
        return tokens[:count], probabilities

    def learn(self, num_accepted: int, num_rejected: int) -> None:
        """Count the tokens of an evaluated draft of forced text; those behind the first rejected one say nothing."""
        self._num_accepted += num_accepted
        self._num_rejected += min(num_rejected, 1) * _LAST_TOKEN
