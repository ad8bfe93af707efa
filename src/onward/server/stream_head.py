"""The head of a completion's response, of a stream in particular."""

from __future__ import annotations

import urllib.parse

from onward.server.exchange import Exchange

EVENT_STREAM = "text/event-stream"
"""Without a charset (spec/completions §1)."""


def add_completion_headers(exchange: Exchange, model: str) -> None:
    """Add the headers of a 200 (spec/completions §1.1)."""
    name = urllib.parse.quote(model, safe="/:@+ ,()").encode()
    exchange.headers += [(b"openai-model", name), (b"cache-control", b"no-cache, must-revalidate")]


async def start_stream(exchange: Exchange, model: str) -> None:
    """Send the head of a stream of events, unless it was sent. Raises ClientDisconnected."""
    if not exchange.response_started:
        add_completion_headers(exchange, model)
        await exchange.start_response(200, EVENT_STREAM)
