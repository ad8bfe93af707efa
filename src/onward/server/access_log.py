"""The access log: one line per request, with its client, model, tokens and times."""

from __future__ import annotations

import logging

from onward.server.exchange import Exchange
from onward.server.log_format import FIELDS

log = logging.getLogger("onward.access")

DEBUG_ROUTES = frozenset({"/health", "/metrics"})
"""Polled every few seconds by monitoring: logged at debug level only."""
MAX_VALUE_CHARACTERS = 64


def write(exchange: Exchange) -> None:
    """Log a finished exchange."""
    record = exchange.record
    level = logging.DEBUG if record.route in DEBUG_ROUTES else logging.INFO
    if log.isEnabledFor(level):
        values = fields(exchange)
        log.log(level, "%s", line(values), extra={FIELDS: {"message": "request", **values}})


def fields(exchange: Exchange) -> dict[str, object]:
    """Return what is logged of an exchange, by key. Values that clients choose are words (`clean`)."""
    record = exchange.record
    found: dict[str, object] = {
        "id": exchange.id,
        "client": clean(exchange.client),
        "key": record.key,
        "method": clean(exchange.method),
        "route": record.route,
        "model": clean(record.model),
        "user": clean(record.user),
        "stream": record.stream,
        "status": record.status,
        "prompt": record.prompt_tokens,
        "completion": record.completion_tokens,
        "cached": record.cached_tokens,
        "ttft_ms": None if record.first_token_ms is None else round(record.first_token_ms, 1),
        "ms": round(exchange.elapsed_ms, 1),
        "cancelled": record.cancelled,
    }
    if record.stream_id:
        found["stream_id"] = record.stream_id
    if record.error:
        found["error"] = record.error
    return found


def line(values: dict[str, object]) -> str:
    """Return the values as key=value pairs; what is unknown is `-`."""
    return " ".join(f"{key}={_text(value)}" for key, value in values.items())


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.1f}"
        case _:
            return str(value)


def clean(value: str) -> str:
    """Return `value` as one word of at most MAX_VALUE_CHARACTERS, so that it cannot forge another pair or line."""
    cut = value[:MAX_VALUE_CHARACTERS] + ("…" if len(value) > MAX_VALUE_CHARACTERS else "")
    return "".join(one if one.isprintable() and one not in ' ="' else "_" for one in cut) or "-"
