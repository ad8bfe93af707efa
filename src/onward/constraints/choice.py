"""One choice's constraint: its compiled grammar, and the state in it, wherever that is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Masks = NDArray[np.uint32]
"""[1 + draft tokens, words], as in `sampling.masks`: what may be sampled next, and after each drafted token."""

TOO_SLOW = "the masks of its tokens take too long to compute; make it simpler"


class Outcome(NamedTuple):
    """What follows the tokens of a choice: `masks` for the next one and after each of `forced`, which must come next.
    `completes`: whether the text is complete after the last of them. `seconds`: of processor time."""

    masks: Masks
    forced: list[int]
    completes: bool
    error: str = ""
    seconds: float = 0.0


class ChoiceConstraint(ABC):
    """The grammar's state of one choice. Used on one thread at a time. `first`: the masks of a choice without tokens.

    Where the state is on another thread or in another process, `take` sends the token there and returns. Then the
    constraint is unsettled: the choice cannot continue until `pending` is done, and `settle` says what was found.
    """

    __slots__ = ("_offset", "_outcome", "first", "is_slow", "is_unsettled", "pending")

    def __init__(self, first: Masks) -> None:
        self.first = first
        self.pending: Future[Outcome] | None = None
        self.is_unsettled = False
        self.is_slow = False
        """Whether no step should wait for it."""
        self._outcome: Outcome | None = None
        self._offset = 0
        """Forced tokens of the outcome that were taken."""

    @abstractmethod
    def take(self, token: int) -> bool:
        """Take a token that is not an end token. Returns whether the text is complete, as far as that is known:
        nothing can follow it."""

    @abstractmethod
    def replay(self, tokens: list[int]) -> None:
        """Take the first tokens of a choice, which an earlier engine sampled; the constraint is unsettled then."""

    @property
    @abstractmethod
    def error(self) -> str:
        """Why no further token can be matched; "" if all is well, or not known yet."""

    @abstractmethod
    def forced_tokens(self) -> list[int]:
        """Return tokens that must come next, as far as they are known."""

    @abstractmethod
    def count_valid(self, tokens: list[int]) -> int:
        """Return how many of these tokens, from the first on, are known to be allowed."""

    @property
    def is_ready(self) -> bool:
        """Whether `settle` returns at once."""
        return self.pending is None or self.pending.done()

    def settle(self) -> Outcome:
        """Return what was found about the tokens taken; waits for it. Raises nothing."""
        assert self.pending is not None
        self._outcome, self._offset = self.pending.result(), 0
        self.is_unsettled = False
        return self._outcome

    def known_masks(self, count: int) -> Masks | None:
        """Return the masks of the next token and of `count - 1` drafted ones; None where they are to be computed."""
        if self._outcome is None:
            return None
        return self._outcome.masks[self._offset : self._offset + count]

    def _take_forced(self, token: int) -> bool | None:
        """Take a token that the outcome knows. Returns whether the text is complete; None if it is not known."""
        outcome = self._outcome
        if outcome is None or self._offset >= len(outcome.forced) or outcome.forced[self._offset] != token:
            return None
        self._offset += 1
        return outcome.completes and self._offset == len(outcome.forced)

    def _detach(self, pending: Future[Outcome]) -> None:
        self._outcome, self.pending, self.is_unsettled = None, pending, True


class Compiled(Protocol):
    """A grammar for the jobs with the same end tokens. `first`: the masks of a choice without tokens, [1, words]."""

    first: Masks

    def begin(self) -> ChoiceConstraint:
        """Return the state of a choice without tokens."""
        ...
