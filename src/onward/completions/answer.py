"""A running completion as every backend gives it: partial choices, then usage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from onward.protocol.response import Choice, Usage


class Answer(Protocol):
    """A running completion: iterate it once for its partial choices, then read `usage`.

    Iterating raises ApiError when generation fails part-way. `aclose` and `abandon` cancel what still runs; they may
    be called at any time, more than once, and never raise.
    """

    model: str
    """The id of the model that answers, aliases resolved."""
    fingerprint: str
    """`system_fingerprint`: changes exactly when results may."""

    @property
    def usage(self) -> Usage:
        """Tokens so far; final once iteration has ended."""
        ...

    def __aiter__(self) -> AsyncIterator[list[Choice]]:
        """Partial choices, in lists: all that one engine step made ready. The last of each index carries its
        finish_reason."""
        ...

    async def aclose(self) -> None:
        """Also ends an iteration that waits in another task, with RequestCancelled."""
        ...

    def abandon(self) -> None:
        """For an answer that nobody can iterate any more. From any thread, and from the garbage collector: waits for
        nothing, takes no lock."""
        ...
