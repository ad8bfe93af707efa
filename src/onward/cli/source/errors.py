"""Errors of a source."""

from __future__ import annotations

import json
from typing import Any

from onward.errors import OnwardError
from onward.network import without_secrets


class ConnectionFailed(OnwardError):
    """No connection, or the connection was lost before the response was complete."""


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
        self.suggestion = ""
        """A suggestion for people, such as a similar model name."""
        super().__init__(self.message)


def remote_error(
    status: int, content: bytes, *, url: str, request_id: str | None, retry_in_seconds: float | None = None
) -> RemoteError:
    """Build the error from an HTTP response: from its error envelope if it has one, otherwise from the body."""
    text = content.decode("utf-8", "replace").strip()
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


def too_large(url: str) -> RemoteError:
    """Build the error for an answer that is larger than any completion."""
    return RemoteError(502, {"message": f"{without_secrets(url)} sent more than a completion takes."}, url=url)
