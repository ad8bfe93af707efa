"""A server that sends scripted answers, and fails on purpose."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Reply = bytes | Callable[["Scripted", socket.socket], object]


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Scripted:
    """Sends its replies in order, one per connection; repeats the last one."""

    replies: list[Reply]
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    go_on: threading.Event = field(default_factory=threading.Event)
    """Set by a test to let a slow reply end."""
    departed: threading.Event = field(default_factory=threading.Event)
    """Set when a client went away in the middle of a reply."""

    def reply(self, connection: socket.socket) -> None:
        with connection:
            self.requests.append(_read(connection))
            reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
            if callable(reply):
                reply(self, connection)
            else:
                connection.sendall(reply)


@contextmanager
def scripted(*replies: Reply) -> Iterator[Scripted]:
    server = Scripted(list(replies))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        thread = threading.Thread(target=_serve, args=(listener, server), daemon=True)
        thread.start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def _serve(listener: socket.socket, server: Scripted) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with contextlib.suppress(ConnectionError):
            server.reply(connection)


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the client went away")
    return data


def _read(connection: socket.socket) -> Request:
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += _some(connection)
    head, _, body = raw.partition(b"\r\n\r\n")
    line, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += _some(connection)
    return Request(line, headers, body)


def answer(status: int, body: Any, **headers: str) -> bytes:
    """A complete HTTP response. `retry_after_ms` and the like become headers."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Status", f"content-length: {len(content)}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def error(status: int, message: str, code: str | None = None, **headers: str) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    inner = {"message": message, "type": kind, "param": None, "code": code}
    return answer(status, {"error": inner}, **headers)


def completion(text: str, **more: Any) -> dict[str, Any]:
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": "stop", **more}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(text: str, finish_reason: str | None = None) -> bytes:
    value = completion(text, finish_reason=finish_reason)
    del value["usage"]
    return event(value)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def slow_stream(server: Scripted, connection: socket.socket) -> None:
    """One chunk; the rest after the test sets `go_on`."""
    connection.sendall(STREAM_HEAD + chunk(" first"))
    server.go_on.wait(60)
    connection.sendall(chunk(" second\x1b[2J", "stop") + DONE)


def waiting_stream(server: Scripted, connection: socket.socket) -> None:
    """One chunk, then nothing until the client goes away."""
    connection.sendall(STREAM_HEAD + chunk(" first"))
    connection.settimeout(60)
    if connection.recv(1) == b"":
        server.departed.set()
