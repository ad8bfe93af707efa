"""What one request was and cost, for the access log and the metrics."""

from __future__ import annotations

from dataclasses import dataclass

CLIENT_CLOSED_REQUEST = 499
"""Status, in logs and metrics, of a request whose client disconnected before the response began. Never sent."""


@dataclass(slots=True)
class RequestRecord:
    """What is known about a request when it ends. Its handlers fill it; times are in milliseconds."""

    route: str = "-"
    model: str = "-"
    """The model that responds; until it is known, the requested name, which a client may have made up."""
    key: str = "-"
    """The name of the key that was sent, never the key; "-" for one without a name."""
    user: str = "-"
    stream: bool = False
    status: int = CLIENT_CLOSED_REQUEST
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    first_token_ms: float | None = None
    cancelled: bool = False
    error: str = ""
    """Type of an error that was sent inside a stream, after its status 200."""
    stream_id: str = ""
    """Id of the completion whose stream is kept."""
