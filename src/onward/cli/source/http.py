"""Any Completions API server, over HTTP."""

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
    """Implements `base.Source` for the server at `connection.base_url`."""

    def __init__(
        self,
        connection: Connection,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        quiet: bool = False,
    ) -> None:
        """`quiet` suppresses notes about retries. Raises ConnectionFailed for an invalid URL or proxy."""
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
            raise ConnectionFailed(f"{connection.base_url} is not a valid URL: {problem}.") from None
        except (ImportError, ValueError) as problem:  # httpx reads proxies from the environment here
            raise ConnectionFailed(f"The proxy set in the environment cannot be used: {problem}") from None

    async def complete(self, fields: dict[str, Any]) -> Document:
        url = self._base + "/completions"
        async with self._response("POST", url, fields) as response:
            document = _document((await _read(response)).decode("utf-8", "replace"), url)
            return replace(document, request_id=response.headers.get("x-request-id"))

    async def chunks(self, fields: dict[str, Any]) -> AsyncGenerator[Document, None]:
        url = self._base + "/completions"
        async with self._response("POST", url, fields) as response:
            if "text/event-stream" not in response.headers.get("content-type", ""):
                yield _document((await _read(response)).decode("utf-8", "replace"), url)
                return
            async for document in _events(response, url):
                yield document

    async def request(self, method: str, path: str, fields: dict[str, Any] | None = None) -> bytes:
        """Return the body of a successful response; `path` begins with a slash. Raises as `complete` does."""
        async with self._response(method, self._base + path, fields) as response:
            return await _read(response)

    async def aclose(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def _response(self, method: str, url: str, fields: dict[str, Any] | None) -> AsyncIterator[httpx.Response]:
        """Yield a successful response whose body has not been read. Retries as OpenAI's clients do."""
        attempt = 0
        while True:
            request = self._request(method, url, fields, attempt)
            try:
                response = await self._client.send(request, stream=True)
            except httpx.TransportError as problem:
                failure: Exception = ConnectionFailed(_message(problem, url))
                delay = retry_delay(attempt, None, {})
            else:
                self._log_response(response)
                if response.is_success:
                    break
                failure, delay = (
                    await _failure(response, url, attempt),
                    retry_delay(attempt, response.status_code, response.headers),
                )
            if delay is None:
                raise failure
            if not self._quiet:
                note(f"{failure} Retrying in {delay:.1f} s.")
            await self._sleep(delay)
            attempt += 1
        try:
            yield response
        finally:
            await response.aclose()

    def _request(self, method: str, url: str, fields: dict[str, Any] | None, attempt: int) -> httpx.Request:
        content = None if fields is None else msgspec.json.encode(fields)
        headers = {"x-stainless-retry-count": str(attempt)}
        if content is not None:
            headers["content-type"] = "application/json"
        request = self._client.build_request(method, url, content=content, headers=headers)
        if self._debug:
            _log(f"> {method} {url}", request.headers)
        return request

    def _log_response(self, response: httpx.Response) -> None:
        if self._debug:
            _log(f"< {response.status_code} {response.reason_phrase}", response.headers)


def _headers(connection: Connection) -> dict[str, str]:
    headers = {"accept": "application/json", "user-agent": f"Onward/CLI {onward.__version__}"}
    if connection.api_key:
        headers["authorization"] = f"Bearer {connection.api_key}"
    if connection.organization:
        headers["openai-organization"] = connection.organization
    if connection.project:
        headers["openai-project"] = connection.project
    return headers | {name.lower(): value for name, value in connection.headers.items()}


async def _read(response: httpx.Response) -> bytes:
    try:
        return await response.aread()
    except httpx.TransportError as problem:
        raise ConnectionFailed(_message(problem, str(response.url))) from None


async def _failure(response: httpx.Response, url: str, attempt: int) -> RemoteError:
    try:
        content = await response.aread()
    except httpx.TransportError:
        content = b""
    finally:
        await response.aclose()
    return remote_error(
        response.status_code,
        content or response.reason_phrase.encode(),
        url=url,
        request_id=response.headers.get("x-request-id"),
        retry_in_seconds=next_delay(attempt, response.status_code, response.headers),
    )


async def _events(response: httpx.Response, url: str) -> AsyncGenerator[Document, None]:
    """Yield chunks up to `[DONE]`. Without it a stream is complete if every choice has a finish reason."""
    decoder = Decoder()
    unfinished: set[int] = set()
    has_started = False
    try:
        async for body_chunk in response.aiter_bytes():
            for data in decoder.feed(body_chunk):
                if data == "[DONE]":
                    return
                document = _chunk(data, url)
                has_started = True
                for choice in document.value.get("choices") or ():
                    update = unfinished.discard if choice.get("finish_reason") else unfinished.add
                    update(choice.get("index", 0))
                yield document
    except httpx.TransportError as problem:
        raise ConnectionFailed(_message(problem, url)) from None
    if unfinished or not has_started:
        raise ConnectionFailed(f"The stream from {url} ended before it was complete.")


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
        raise RemoteError(502, {"message": f"{url} did not return a JSON object; is it a Completions API?"}, url=url)
    return Document(value, text)


def _message(problem: httpx.TransportError, url: str) -> str:
    place = f"{httpx.URL(url).host}:{httpx.URL(url).port or ''}".rstrip(":")
    if isinstance(problem, httpx.ConnectTimeout):
        return f"{place} did not respond within {TIMEOUT.connect:g} seconds."
    if isinstance(problem, httpx.ConnectError) and "CERTIFICATE" in str(problem):
        return (
            f"The certificate of {place} is not trusted ({problem}); set SSL_CERT_FILE to add certificate authorities."
        )
    if isinstance(problem, httpx.ConnectError):
        cause = _system_error(problem)
        if isinstance(cause, socket.gaierror):
            return f"The host name {httpx.URL(url).host} cannot be resolved ({cause.strerror})."
        return f"Cannot connect to {place} ({os.strerror(cause.errno) if cause and cause.errno else problem})."
    if isinstance(problem, httpx.TimeoutException):
        return f"{place} sent nothing for {TIMEOUT.read:g} seconds."
    return f"The connection to {place} was lost before the response was complete ({problem or type(problem).__name__})."


def _system_error(problem: BaseException) -> OSError | None:
    """Return the operating system's error inside the exceptions that libraries wrapped around it."""
    found: BaseException | None = problem
    while found is not None and not (isinstance(found, OSError) and found.errno):
        found = found.__cause__ or found.__context__
    return None if isinstance(found, ssl.SSLError) else found  # its error numbers are not the system's


def _log(title: str, headers: httpx.Headers) -> None:
    lines = [title]
    for name, value in headers.items():
        if name.lower() in REDACTED:
            value = "Bearer <REDACTED>" if value.startswith("Bearer ") else "<REDACTED>"
        lines.append(f"  {name}: {value}")
    if sys.stderr.isatty():
        lines[0] = "\r\x1b[K" + lines[0]  # replaces the progress line
    print("\n".join(lines), file=sys.stderr, flush=True)
