"""The interface of a running completion: a stream of partial choices, then usage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from onward.protocol.response import Choice, Usage


class Answer(Protocol):
    """A running completion. Iterate it once for its partial choices, then read `usage`.

    Iteration raises ApiError if generation fails. `aclose` and `abandon` cancel what is still running; they may be
    called at any time and repeatedly, and never raise.
    """

    model: str
    """The model's id, with aliases resolved."""
    fingerprint: str
    """`system_fingerprint`: changes exactly when results may change."""
    warning: str
    """A sentence for the client on what it probably did not intend; "" where there is none."""

    @property
    def usage(self) -> Usage:
        """Token counts so far; final when iteration has ended."""
        ...

    def __aiter__(self) -> AsyncIterator[list[Choice]]:
        """Yield the partial choices of each engine step. The last one of each index has a finish_reason."""
        ...

    async def aclose(self) -> None:
        """Cancel the completion. An iteration that waits in another task raises RequestCancelled."""
        ...

    def abandon(self) -> None:
        """Cancel a completion that is no longer reachable.

        May be called from any thread and from the garbage collector: it neither blocks nor takes a lock.
        """
        ...
