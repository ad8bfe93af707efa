"""A completion as one JSON response: small ones at once, large ones in parts."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from functools import partial

from onward.offload import MAX_INLINE_SIZE, on_thread
from onward.protocol.encode import completion_parts, encode_completion, num_values
from onward.protocol.response import Completion
from onward.server.exchange import Exchange
from onward.server.schema_link import LINK, schema_url


async def send_whole(exchange: Exchange, completion: Completion) -> None:
    """Send a completion, which a large answer consumes. Raises ClientDisconnected."""
    schema = schema_url(exchange) if exchange.with_schema else None
    if schema is not None:
        exchange.headers.append(LINK)
    add_completion_headers(exchange, completion.model)
    if num_values(completion.choices) <= MAX_INLINE_SIZE:
        await exchange.respond(200, encode_completion(completion, schema=schema), "application/json")
        return
    await exchange.start_response(200, "application/json")
    await send_parts(exchange, completion_parts(completion, schema=schema))
    await exchange.end_response()


async def send_parts(exchange: Exchange, parts: Iterator[bytes]) -> None:
    """Send a large body as chunks, each encoded on a thread when the client has taken the one before."""
    while part := await on_thread(partial(next, parts, b"")):
        await exchange.send_chunk(part)


def add_completion_headers(exchange: Exchange, model: str) -> None:
    """Add the headers of a 200 (behaviour §1.1)."""
    name = urllib.parse.quote(model, safe="/:@+ ,()").encode()
    exchange.headers += [(b"openai-model", name), (b"cache-control", b"no-cache, must-revalidate")]
