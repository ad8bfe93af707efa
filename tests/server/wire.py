"""Requests and responses as bytes on a real socket."""

from __future__ import annotations

import json
import socket
from typing import Any

from tests.server.conftest import Process


def talk(server: Process, request: bytes) -> bytes:
    """Send bytes and return everything received until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request)
        return receive_all(connection)


def receive_all(connection: socket.socket) -> bytes:
    """Receive until the server closes; return what arrived before, even if it resets the connection."""
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def completion_request(*headers: str, version: str = "1.1", **fields: Any) -> bytes:
    """A POST of a completion with Host, Content-Type, Content-Length and `headers`."""
    body = json.dumps({"model": "storyteller", "prompt": "Once"} | fields).encode()
    lines = [f"POST /v1/completions HTTP/{version}", "host: localhost", "content-type: application/json"]
    head = "\r\n".join([*lines, f"content-length: {len(body)}", *headers])
    return head.encode() + b"\r\n\r\n" + body


def split_response(response: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers by lower-case name, and everything after the head, as received."""
    head, _, body = response.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(status_line.split(" ")[1]), {name.lower(): value for name, value in headers.items()}, body
