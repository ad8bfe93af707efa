"""Responses to HTTP/1.0 clients, which do not know chunked encoding (RFC 9112 §6.1, §9.3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from onward.server.exchange import Message, Receive, Scope, Send

Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def http10_app(app: Application, cycle: RequestResponseCycle) -> Application:
    """Return an application that responds as `app`, in the form of HTTP/1.0.

    A body without Content-Length ends where the connection closes. The connection is kept after other responses if
    `cycle.keep_alive`, which the client must have requested.
    """

    async def adapted(scope: Scope, receive: Receive, send: Send) -> None:
        is_close_delimited = False

        async def send_http10(message: Message) -> None:
            nonlocal is_close_delimited
            if message["type"] == "http.response.start":
                is_close_delimited = not _has_known_length(message)
                if is_close_delimited:
                    cycle.chunked_encoding = False
                    cycle.keep_alive = False
                message = _with_connection_header(message, keep_alive=cycle.keep_alive)
            elif is_close_delimited:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_http10)

    return adapted


def _has_known_length(message: Message) -> bool:
    return message["status"] in (204, 304) or any(name.lower() == b"content-length" for name, _ in message["headers"])


def _with_connection_header(message: Message, *, keep_alive: bool) -> Message:
    """Return the start of a response with a Connection header, unless it has one."""
    headers = message["headers"]
    if any(name.lower() == b"connection" for name, _ in headers):
        return message
    return {**message, "headers": [*headers, (b"connection", b"keep-alive" if keep_alive else b"close")]}
