"""Any server of this API, over HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import msgspec

import onward
from onward.cli.output.terminal import note
from onward.cli.session import Connection
from onward.cli.source.base import Document
from onward.cli.source.errors import ConnectionFailed, RemoteError, remote_error, stream_error
from onward.cli.source.retry import next_delay, retry_delay
from onward.protocol.sse import Decoder

TIMEOUT = httpx.Timeout(600.0, connect=5.0)
REDACTED = {
    "authorization",
    "api-key",
    "x-api-key",
    "cookie",
    "set-cookie",
    "location",
    "proxy-authorization",
}


class HttpSource:
    """Implements `source.Source` for the server at `connection.base_url`."""

    def __init__(
        self,
        connection: Connection,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        quiet: bool = False,
    ) -> None:
        """`quiet` leaves untold what is tried again. Raises ConnectionFailed: an address or a proxy that cannot be."""
        assert connection.base_url is not None
        self.name = connection.base_url
        self._base = connection.base_url
        self._debug = connection.debug
        self._sleep = sleep
        self._quiet = quiet
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        try:
            httpx.URL(connection.base_url)
            self._client = httpx.AsyncClient(
                headers=_headers(connection), timeout=TIMEOUT, transport=transport, limits=limits
            )
        except httpx.InvalidURL as problem:
            raise ConnectionFailed(f"{connection.base_url} is no address: {problem}.") from None
        except (ImportError, ValueError) as problem:  # httpx reads the proxies of the environment here
            raise ConnectionFailed(f"The proxy that the environment names cannot be used: {problem}") from None

    async def whole(self, fields: dict[str, Any]) -> Document:
        url = self._base + "/completions"
        async with self._answer("POST", url, fields) as answer:
            document = _document((await _read(answer)).decode("utf-8", "replace"), url)
            return replace(document, request_id=answer.headers.get("x-request-id"))

    async def chunks(self, fields: dict[str, Any]) -> AsyncGenerator[Document, None]:
        url = self._base + "/completions"
        async with self._answer("POST", url, fields) as answer:
            if "text/event-stream" not in answer.headers.get("content-type", ""):
                yield _document((await _read(answer)).decode("utf-8", "replace"), url)
                return
            async for document in _events(answer, url):
                yield document

    async def request(self, method: str, path: str, fields: dict[str, Any] | None = None) -> bytes:
        """The body of a good answer; `path` begins with a slash. Raises as `whole`."""
        async with self._answer(method, self._base + path, fields) as answer:
            return await _read(answer)

    async def aclose(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def _answer(self, method: str, url: str, fields: dict[str, Any] | None) -> AsyncIterator[httpx.Response]:
        """The answer's head, when it is good; its body is still to be read. Tries again as clients do."""
        attempt = 0
        while True:
            request = self._request(method, url, fields, attempt)
            try:
                answer = await self._client.send(request, stream=True)
            except httpx.TransportError as problem:
                failure: Exception = ConnectionFailed(_words(problem, url))
                delay = retry_delay(attempt, None, {})
            else:
                self._log_answer(answer)
                if answer.is_success:
                    break
                failure, delay = (
                    await _failure(answer, url, attempt),
                    retry_delay(attempt, answer.status_code, answer.headers),
                )
            if delay is None:
                raise failure
            if not self._quiet:
                note(f"{failure} Trying again in {delay:.1f} s.")
            await self._sleep(delay)
            attempt += 1
        try:
            yield answer
        finally:
            await answer.aclose()

    def _request(self, method: str, url: str, fields: dict[str, Any] | None, attempt: int) -> httpx.Request:
        content = None if fields is None else msgspec.json.encode(fields)
        headers = {"x-stainless-retry-count": str(attempt)}
        if content is not None:
            headers["content-type"] = "application/json"
        request = self._client.build_request(method, url, content=content, headers=headers)
        if self._debug:
            _log(f"> {method} {url}", request.headers)
        return request

    def _log_answer(self, answer: httpx.Response) -> None:
        if self._debug:
            _log(f"< {answer.status_code} {answer.reason_phrase}", answer.headers)


def _headers(connection: Connection) -> dict[str, str]:
    headers = {"accept": "application/json", "user-agent": f"Onward/CLI {onward.__version__}"}
    if connection.api_key:
        headers["authorization"] = f"Bearer {connection.api_key}"
    if connection.organization:
        headers["openai-organization"] = connection.organization
    if connection.project:
        headers["openai-project"] = connection.project
    return headers | {name.lower(): value for name, value in connection.headers.items()}


async def _read(answer: httpx.Response) -> bytes:
    try:
        return await answer.aread()
    except httpx.TransportError as problem:
        raise ConnectionFailed(_words(problem, str(answer.url))) from None


async def _failure(answer: httpx.Response, url: str, attempt: int) -> RemoteError:
    try:
        content = await answer.aread()
    except httpx.TransportError:
        content = b""
    finally:
        await answer.aclose()
    return remote_error(
        answer.status_code,
        content or answer.reason_phrase.encode(),
        url=url,
        request_id=answer.headers.get("x-request-id"),
        again_in=next_delay(attempt, answer.status_code, answer.headers),
    )


async def _events(answer: httpx.Response, url: str) -> AsyncGenerator[Document, None]:
    """Chunks up to `[DONE]`. A stream that ends without it is whole when every choice of it has ended."""
    decoder = Decoder()
    open_choices: set[int] = set()
    begun = False
    try:
        async for piece in answer.aiter_bytes():
            for data in decoder.feed(piece):
                if data == "[DONE]":
                    return
                document = _chunk(data, url)
                begun = True
                for choice in document.value.get("choices") or ():
                    keep = open_choices.discard if choice.get("finish_reason") else open_choices.add
                    keep(choice.get("index", 0))
                yield document
    except httpx.TransportError as problem:
        raise ConnectionFailed(_words(problem, url)) from None
    if open_choices or not begun:
        raise ConnectionFailed(f"The stream from {url} broke off before its end.")


def _chunk(data: str, url: str) -> Document:
    document = _document(data, url)
    if "error" in document.value and document.value["error"] is not None:
        raise stream_error(document.value["error"], url=url)
    return document


def _document(text: str, url: str) -> Document:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = None
    if not isinstance(value, dict):
        raise RemoteError(
            502, {"message": f"{url} did not answer with a JSON object: is it a Completions API?"}, url=url
        )
    return Document(value, text)


def _words(problem: httpx.TransportError, url: str) -> str:
    place = f"{httpx.URL(url).host}:{httpx.URL(url).port or ''}".rstrip(":")
    if isinstance(problem, httpx.ConnectTimeout):
        return f"{place} did not answer within {TIMEOUT.connect:g} seconds."
    if isinstance(problem, httpx.ConnectError) and "CERTIFICATE" in str(problem):
        return f"The certificate of {place} is not trusted here ({problem}); SSL_CERT_FILE names more authorities."
    if isinstance(problem, httpx.ConnectError):
        cause = _system_error(problem)
        if isinstance(cause, socket.gaierror):
            return f"The name {httpx.URL(url).host} leads to no machine ({cause.strerror})."
        return f"Nothing answers at {place} ({os.strerror(cause.errno) if cause and cause.errno else problem})."
    if isinstance(problem, httpx.TimeoutException):
        return f"{place} was silent for {TIMEOUT.read:g} seconds."
    return f"The connection to {place} broke before the answer was whole ({problem or type(problem).__name__})."


def _system_error(problem: BaseException) -> OSError | None:
    """What the operating system said, under the exceptions that libraries wrapped around it."""
    found: BaseException | None = problem
    while found is not None and not (isinstance(found, OSError) and found.errno):
        found = found.__cause__ or found.__context__
    return None if isinstance(found, ssl.SSLError) else found  # whose numbers are not the system's


def _log(title: str, headers: httpx.Headers) -> None:
    lines = [title]
    for name, value in headers.items():
        if name.lower() in REDACTED:
            value = "Bearer <REDACTED>" if value.startswith("Bearer ") else "<REDACTED>"
        lines.append(f"  {name}: {value}")
    if sys.stderr.isatty():
        lines[0] = "\r\x1b[K" + lines[0]  # over a line that shows progress
    print("\n".join(lines), file=sys.stderr, flush=True)
