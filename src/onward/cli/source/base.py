"""The seam: fields of a request in, documents out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Document:
    """One result, a completion or a chunk; `raw` is its JSON as it was sent, `request_id` the server's."""

    value: dict[str, Any]
    raw: str
    request_id: str | None = None


class Source(Protocol):
    """Answers requests. Used from one event loop; close it."""

    name: str
    """What a person is told about who answers: a model, or an address."""

    async def whole(self, fields: dict[str, Any]) -> Document:
        """Raises ApiError, RemoteError, ConnectionFailed."""
        ...

    def chunks(self, fields: dict[str, Any]) -> AsyncGenerator[Document, None]:
        """The chunks of a stream as they come; closing it early cancels what still runs. Raises as `whole`."""
        ...

    async def aclose(self) -> None: ...
