"""What can go wrong between this program and who answers it."""

from __future__ import annotations

import json
from typing import Any

from onward.errors import OnwardError


class ConnectionFailed(OnwardError):
    """No connection, or one that broke before the answer was whole. The message says what to do."""


class RemoteError(OnwardError):
    """An API error that a server sent. `body` is the inner error object, as it came.

    `again_in`: seconds after which one more try may help, None where none will.
    """

    def __init__(
        self,
        status: int,
        body: dict[str, Any],
        *,
        url: str = "",
        request_id: str | None = None,
        again_in: float | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.message = str(body.get("message") or "no reason was given")
        self.param = body.get("param")
        self.code = body.get("code")
        self.type = body.get("type")
        self.url = url
        self.request_id = request_id
        self.again_in = again_in
        self.suggestion = ""
        """What else may have been meant, for a person."""
        super().__init__(self.message)


def remote_error(
    status: int, content: bytes, *, url: str, request_id: str | None, again_in: float | None = None
) -> RemoteError:
    """From an HTTP answer of any server: the envelope where there is one, else what the body says."""
    text = content.decode("utf-8", "replace").strip()
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    inner = body.get("error", body.get("detail", body)) if isinstance(body, dict) else body
    if not isinstance(inner, dict):
        shown = inner if isinstance(inner, str) else json.dumps(inner)
        inner = {"message": shown[:500] or None}
    return RemoteError(status, inner, url=url, request_id=request_id, again_in=again_in)


def stream_error(inner: Any, *, url: str) -> RemoteError:
    """From an error event of a stream that had begun: the status is what its type stands for."""
    body = inner if isinstance(inner, dict) else {"message": str(inner)}
    status = 400 if body.get("type") == "invalid_request_error" else 500
    return RemoteError(status, body, url=url)
