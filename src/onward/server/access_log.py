"""One line a request: who asked for what, what it cost, how long it took."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onward.server.exchange import Exchange

log = logging.getLogger("onward.access")

CLIENT_GONE = 499
"""Status, in logs and metrics, of a request whose client left before its answer began; never on the wire."""
QUIET_ROUTES = frozenset({"/health", "/metrics"})
"""Asked every few seconds by machines: logged at debug level only."""
LONGEST_VALUE = 64


@dataclass(slots=True)
class Record:
    """What is known of a request when it ends. Written by its handlers; times in milliseconds."""

    route: str = "-"
    model: str = "-"
    """The model that answers; before there is one, the name asked for, which may be anything a client made up."""
    user: str = "-"
    stream: bool = False
    status: int = CLIENT_GONE
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    first_token_ms: float | None = None
    cancelled: bool = False
    error: str = ""
    """Type of an error that was told inside a stream, after its 200."""


def write(exchange: Exchange) -> None:
    """Log the finished exchange."""
    record = exchange.record
    level = logging.DEBUG if record.route in QUIET_ROUTES else logging.INFO
    if log.isEnabledFor(level):
        log.log(level, "%s", line(exchange))


def line(exchange: Exchange) -> str:
    """The line as key=value pairs; a value that others chose holds neither white space nor control characters."""
    record = exchange.record
    pairs: list[tuple[str, object]] = [
        ("id", exchange.id),
        ("client", clean(exchange.client)),
        ("method", clean(exchange.method)),
        ("route", record.route),
        ("model", clean(record.model)),
        ("user", clean(record.user)),
        ("stream", str(record.stream).lower()),
        ("status", record.status),
        ("prompt", record.prompt_tokens),
        ("completion", record.completion_tokens),
        ("cached", record.cached_tokens),
        ("ttft_ms", "-" if record.first_token_ms is None else f"{record.first_token_ms:.1f}"),
        ("ms", f"{exchange.elapsed_ms:.1f}"),
        ("cancelled", str(record.cancelled).lower()),
    ]
    if record.error:
        pairs.append(("error", record.error))
    return " ".join(f"{key}={value}" for key, value in pairs)


def clean(value: str) -> str:
    """`value` as one word of at most LONGEST_VALUE characters; nothing in it can forge another pair or line."""
    cut = value[:LONGEST_VALUE] + ("…" if len(value) > LONGEST_VALUE else "")
    return "".join(one if one.isprintable() and one not in ' ="' else "_" for one in cut) or "-"
