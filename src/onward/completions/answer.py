"""The interface of a running completion: a stream of deltas, then token counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from onward.completions.delta import Delta, TokenCounts


class Answer(Protocol):
    """A running completion. Iterate it once for its deltas, then read `counts`.

    Iteration raises ApiError or RequestRejected if generation fails. `aclose` and `abandon` cancel what is still
    running; they may be called at any time and repeatedly, and never raise.
    """

    model: str
    """The model's id, with aliases resolved."""
    fingerprint: str
    """`system_fingerprint`: changes exactly when results may change."""
    seed: int
    """The one that its sampling uses, named or drawn."""
    warning: str
    """A sentence for the client about what it probably did not intend; "" if there is none."""

    @property
    def counts(self) -> TokenCounts:
        """Token counts so far; final when iteration has ended."""
        ...

    def __aiter__(self) -> AsyncIterator[list[Delta]]:
        """Yield the deltas of each engine step. The last one of each index has a `finish`, the first one its prompt."""
        ...

    async def aclose(self) -> None:
        """Cancel the completion. An iteration that waits in another task raises RequestCancelled."""
        ...

    def abandon(self) -> None:
        """Cancel a completion that is no longer reachable.

        May be called from any thread and from the garbage collector: it neither blocks nor takes a lock.
        """
        ...
