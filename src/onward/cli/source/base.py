"""The interface of a source (fields of a request in, documents out), and its errors."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol

from onward.errors import OnwardError
from onward.network import without_secrets

MAX_PAGE_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Document:
    """One result, a completion or a chunk. `raw` is its JSON as received, `request_id` the server's. `seed` is the one
    that was drawn for a request without one, as far as it is known."""

    value: dict[str, Any]
    raw: str
    request_id: str | None = None
    seed: int | None = None


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
    """A name for messages: a model, or the URL of a server."""

    async def complete(self, fields: dict[str, Any], *, seed: int | None = None) -> Document:
        """Return the whole completion. `seed` is drawn for a request without one. Raises ApiError, RemoteError,
        ConnectionFailed."""
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


class ConnectionFailed(OnwardError):
    """No connection (`is_refused`), or it was lost before the response was complete."""

    is_refused = False


class RemoteError(OnwardError):
    """An API error that a server sent. `body` is the inner error object, as it came.

    `retry_in_seconds`: when a retry may succeed; None: a retry is pointless.
    """

    def __init__(
        self,
        status: int,
        body: dict[str, Any],
        *,
        url: str = "",
        request_id: str | None = None,
        retry_in_seconds: float | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.message = str(body.get("message") or "no reason given")
        self.param = body.get("param")
        self.code = body.get("code")
        self.type = body.get("type")
        self.url = url
        self.request_id = request_id
        self.retry_in_seconds = retry_in_seconds
        self.has_status = True
        """Whether the server sent the status. It counts as 502 where an answer with 200 cannot be used."""
        self.suggestion = ""
        """A suggestion for the user, such as a similar model name."""
        super().__init__(self.message)

    @property
    def is_unknown_model(self) -> bool:
        """Whether the server does not have the model that a request names."""
        return self.status == 404 and (self.code == "model_not_found" or self.param == "model")


def remote_error(
    status: int, content: bytes, *, url: str, request_id: str | None, retry_in_seconds: float | None = None
) -> RemoteError:
    """Build the error from an HTTP response: from its error envelope if it has one, otherwise from the body."""
    text = content.decode("utf-8", "replace").strip()
    if text.startswith("<"):  # a proxy's page
        text = " ".join(re.sub(r"<[^>]*>", " ", text[:MAX_PAGE_CHARS]).split())
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = text
    inner = body.get("error", body.get("detail", body)) if isinstance(body, dict) else body
    if not isinstance(inner, dict):
        shown = inner if isinstance(inner, str) else json.dumps(inner)
        inner = {"message": shown[:500] or None}
    return RemoteError(status, inner, url=url, request_id=request_id, retry_in_seconds=retry_in_seconds)


def stream_error(inner: Any, *, url: str) -> RemoteError:
    """Build the error from an error event in a stream; the status follows from the error's type."""
    body = inner if isinstance(inner, dict) else {"message": str(inner)}
    status = 400 if body.get("type") == "invalid_request_error" else 500
    return RemoteError(status, body, url=url)


def unusable(message: str, url: str) -> RemoteError:
    """Build the error for an answer that is none of this API, although its status is 200."""
    error = RemoteError(502, {"message": message}, url=url)
    error.has_status = False
    return error


def too_large(url: str) -> RemoteError:
    """Build the error for an answer that is larger than any completion."""
    return unusable(f"{without_secrets(url)} sent more than a completion takes.", url)
