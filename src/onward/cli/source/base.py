"""The interface of a source: fields of a request in, documents out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Document:
    """One result, a completion or a chunk. `raw` is its JSON as received, `request_id` the server's."""

    value: dict[str, Any]
    raw: str
    request_id: str | None = None


class Source(Protocol):
    """Completes requests. Used from one event loop; the caller closes it."""

    name: str
    """A name for people: a model, or the URL of a server."""

    async def complete(self, fields: dict[str, Any]) -> Document:
        """Return the whole completion. Raises ApiError, RemoteError, ConnectionFailed."""
        ...

    def chunks(self, fields: dict[str, Any]) -> AsyncGenerator[Document, None]:
        """Yield the chunks of a stream. Closing it early cancels the request. Raises the same errors as `complete`."""
        ...

    async def aclose(self) -> None: ...
