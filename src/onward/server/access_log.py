"""The access log: one line per request, with its client, model, tokens and times."""

from __future__ import annotations

import logging

from onward.server.exchange import Exchange

log = logging.getLogger("onward.access")

DEBUG_ROUTES = frozenset({"/health", "/metrics"})
"""Polled every few seconds by monitoring: logged at debug level only."""
MAX_VALUE_CHARACTERS = 64


def write(exchange: Exchange) -> None:
    """Log a finished exchange."""
    record = exchange.record
    level = logging.DEBUG if record.route in DEBUG_ROUTES else logging.INFO
    if log.isEnabledFor(level):
        log.log(level, "%s", line(exchange))


def line(exchange: Exchange) -> str:
    """Return the line as key=value pairs; values that clients choose hold no white space or control characters."""
    record = exchange.record
    pairs: list[tuple[str, object]] = [
        ("id", exchange.id),
        ("client", clean(exchange.client)),
        ("key", record.key),
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
    """Return `value` as one word of at most MAX_VALUE_CHARACTERS, so that it cannot forge another pair or line."""
    cut = value[:MAX_VALUE_CHARACTERS] + ("…" if len(value) > MAX_VALUE_CHARACTERS else "")
    return "".join(one if one.isprintable() and one not in ' ="' else "_" for one in cut) or "-"
