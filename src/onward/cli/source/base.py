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


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What a caller that sends token ids needs to know of a model."""

    context_length: int
    prefix_token: int | None
    """What a text without context follows: the start token, or else the end token; None: the model has neither."""
    adds_start: bool
    """Whether the model needs the start token in front of every text."""


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """The token ids of a text, and the exact bytes of each; None where a server does not report bytes."""

    tokens: list[int]
    token_bytes: list[bytes] | None


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

    async def tokenizer_facts(self, model: str | None) -> TokenizerFacts:
        """Return the facts of a model's tokenizer. Raises the same errors as `complete`."""
        ...

    async def tokenize(self, model: str | None, text: str) -> TokenizedText:
        """Return the tokens of a text, without a start token. Raises the same errors as `complete`."""
        ...

    async def aclose(self) -> None: ...
