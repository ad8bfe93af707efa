"""Any Completions API server, over HTTP."""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, cast
from urllib.parse import quote

import httpx2
import msgspec

import onward
from onward.api.seed import SEED_HEADER
from onward.cli.interrupt import raise_on_interrupt
from onward.cli.output.terminal import can_rewrite, note, visible
from onward.cli.session import ServerConnection
from onward.cli.source.base import (
    ConnectionFailed,
    Document,
    RemoteError,
    TokenizedText,
    TokenizerFacts,
    remote_error,
    too_large,
    unusable,
)
from onward.cli.source.stream import (
    PREFERENCE,
    ChunkStream,
    is_event_stream,
    parse_document,
    parse_object,
    resume_window,
)
from onward.cli.source.transport import (
    MAX_ANSWER_BYTES,
    MAX_ERROR_BYTES,
    TIMEOUT,
    connection_failed,
    next_delay,
    retry_delay,
)
from onward.errors import OnwardError
from onward.network import AsyncTransport, without_secrets

PROBE_SECONDS = 10.0
MAX_SUGGESTED = 8
"""How many models of a server are listed for a name that it does not have."""
CANCEL_SECONDS = 2.0
"""How long a command that ends waits until the server has received its cancellation."""
MAX_SEED_DIGITS = 20
NO_HEADERS: Mapping[str, str] = {}
REDACTED = {
    "authorization",
    "api-key",
    "x-api-key",
    "cookie",
    "set-cookie",
    "location",
    "proxy-authorization",
}


class ListedModels(msgspec.Struct):
    """An answer of a server's `/models`."""

    data: list[dict[str, Any]]


class ShownModel(msgspec.Struct):
    """An answer of a server's `/models/NAME`."""

    id: str


class Tokenized(msgspec.Struct):
    """An answer of a server's `/tokenize`."""

    tokens: list[int]
    token_strs: list[str] | None = None
    token_bytes: list[str] | None = None


class ReportedTokenizer(msgspec.Struct):
    """An answer of a server's `/tokenizer_info`."""

    model_max_length: int
    eos_token_id: int | None = None
    bos_token_id: int | None = None
    add_bos_token: bool | None = None


class HttpSource:
    """Implements `base.Source` for the server at `connection.base_url`."""

    def __init__(
        self,
        connection: ServerConnection,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        quiet: bool = False,
    ) -> None:
        """`quiet` suppresses notes about retries. Each request may raise SetupError for a proxy or certificates of the
        environment."""
        assert connection.base_url is not None
        self.name = without_secrets(connection.base_url)
        self._base = connection.base_url
        self._debug = connection.debug
        self._sleep = sleep
        self._quiet = quiet
        self._served: list[str] | None = None
        """The models of the server, once they have been requested."""
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        transport = cast(httpx2.AsyncBaseTransport, AsyncTransport(limits))
        self._client = httpx2.AsyncClient(headers=_headers(connection), timeout=TIMEOUT, transport=transport)

    async def complete(self, fields: dict[str, Any], *, seed: int | None = None) -> Document:
        url, headers = self._base + "/completions", NO_HEADERS if seed is None else {SEED_HEADER: str(seed)}
        async with self._response("POST", url, fields, headers) as response:
            document = parse_document((await _read(response)).decode("utf-8", "replace"), url)
            drawn, id = response.headers.get(SEED_HEADER, ""), response.headers.get("x-request-id")
            is_seed = drawn.isdecimal() and len(drawn) < MAX_SEED_DIGITS
            return replace(document, request_id=id, seed=int(drawn) if is_seed else None)

    async def chunks(self, fields: dict[str, Any]) -> AsyncGenerator[Document, None]:
        """Yield chunks. A stream that the server keeps is resumed over a new connection when one is lost, and cancelled
        when the generator is closed."""
        url = self._base + "/completions"
        async with self._response("POST", url, fields, {"prefer": PREFERENCE}) as response:
            if not is_event_stream(response):
                yield parse_document((await _read(response)).decode("utf-8", "replace"), url)
                return
            stream = ChunkStream(url, resume_window(response.headers))
            if stream.window_seconds:
                raise_on_interrupt()  # the server has to learn of Ctrl-C
            try:
                async with aclosing(self._all_chunks(stream, response)) as chunks:
                    async for document in chunks:
                        yield document
            except (GeneratorExit, asyncio.CancelledError):
                await self._cancel(stream)
                raise

    async def _all_chunks(self, stream: ChunkStream, response: httpx2.Response) -> AsyncGenerator[Document, None]:
        """Yield the chunks of a stream, over as many connections as it takes. Raises as `chunks`."""
        while True:
            try:
                async with aclosing(stream.read(response)) as chunks:
                    async for document in chunks:
                        yield document
                return
            except ConnectionFailed as failure:
                lost = failure
            finally:
                await response.aclose()
            response = await self._reconnect(stream, lost)

    async def _reconnect(self, stream: ChunkStream, lost: ConnectionFailed) -> httpx2.Response:
        """Return a connection that resumes the stream. Raises `lost` if the server does not keep it, or not long
        enough."""
        if stream.own_url is None or stream.window_seconds is None:
            raise lost
        headers = {"accept": "text/event-stream", "last-event-id": stream.last_event_id}
        waited, attempt = 0.0, 0
        while True:
            request = self._request("GET", stream.own_url, None, attempt, headers)
            try:
                response = await self._client.send(request, stream=True)
            except httpx2.TransportError:
                delay = next_delay(attempt, None, {})
            else:
                self._log_response(response)
                if response.status_code == 200 and is_event_stream(response):
                    return response
                await response.aclose()
                delay = next_delay(attempt, response.status_code, response.headers)
            if delay is None or waited + delay > stream.window_seconds:
                raise lost
            if attempt == 1 and not self._quiet:
                seconds = f"{stream.window_seconds:g} seconds"
                note(f"The connection was lost; trying to resume for up to {seconds} (Ctrl-C ends).", keeps_line=True)
            await self._sleep(delay)
            waited, attempt = waited + delay, attempt + 1

    async def _cancel(self, stream: ChunkStream) -> None:
        """Have the server cancel a stream that nobody will read."""
        if stream.own_url is not None:
            with suppress(httpx2.HTTPError):
                await self._client.delete(stream.own_url, timeout=CANCEL_SECONDS)

    async def request(
        self,
        method: str,
        path: str,
        form: type[msgspec.Struct],
        fields: dict[str, Any] | None = None,
        *,
        model: str | None = None,
        is_at_root: bool = False,
    ) -> dict[str, Any]:
        """Return the object of a successful response, which has the fields of `form`. `path` begins with a slash, and
        may name a `model`; `is_at_root`: it is next to /v1, not below it. Raises as `complete` does."""
        url = (self._base.removesuffix("/v1") if is_at_root else self._base) + path
        async with self._response(method, url, fields, model=model) as response:
            return parse_object(await _read(response), url, form)

    async def tokenizer_facts(self, model: str | None) -> TokenizerFacts:
        query = f"?model={quote(model, safe='')}" if model else ""
        info = await self.request("GET", f"/tokenizer_info{query}", ReportedTokenizer, model=model, is_at_root=True)
        prefix = info.get("eos_token_id") if info.get("bos_token_id") is None else info["bos_token_id"]
        return TokenizerFacts(info["model_max_length"], prefix, bool(info.get("add_bos_token")))

    async def tokenize(self, model: str | None, text: str) -> TokenizedText:
        fields = {"model": model, "prompt": text, "add_special_tokens": False, "return_token_bytes": True}
        answer = await self.request("POST", "/tokenize", Tokenized, fields, is_at_root=True)
        raw = answer.get("token_bytes")
        try:
            return TokenizedText(answer["tokens"], None if raw is None else [bytes.fromhex(each) for each in raw])
        except ValueError as problem:
            raise unusable(f"{self.name}'s /tokenize sent other bytes ({problem}).", self._base) from None

    async def answers(self) -> bool:
        """Return whether the server answers a small request, whatever it says."""
        with suppress(httpx2.TransportError):
            await self._client.get(self._base + "/models", timeout=PROBE_SECONDS)
            return True
        return False

    async def aclose(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        url: str,
        fields: dict[str, Any] | None,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        model: str | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        """Yield a successful response whose body has not been read. Retries as OpenAI's clients do. `model`: the one
        that the URL names, where `fields` do not."""
        attempt = 0
        while True:
            request = self._request(method, url, fields, attempt, headers)
            try:
                response = await self._client.send(request, stream=True)
            except httpx2.TransportError as problem:
                failure: Exception = connection_failed(problem, url)
                delay = retry_delay(attempt, None, {})
            else:
                self._log_response(response)
                if response.is_success:
                    break
                failure, delay = (
                    await failure_of(response, url, attempt),
                    retry_delay(attempt, response.status_code, response.headers),
                )
            if delay is None:
                await self._suggest_model(failure, model or (fields or {}).get("model"))
                raise failure
            if not self._quiet:
                note(f"{failure} Retrying in {delay:.1f} s.")
            await self._sleep(delay)
            attempt += 1
        try:
            yield response
        finally:
            await response.aclose()

    async def _suggest_model(self, failure: Exception, model: Any) -> None:
        """Add a suggestion to the error for an unknown model: a similar name, or the names that the server has."""
        if not isinstance(failure, RemoteError) or not failure.is_unknown_model or not isinstance(model, str):
            return
        if self._served is None:
            self._served = await self._listed()
        if near := difflib.get_close_matches(model, self._served, n=1):
            failure.suggestion = f"Did you mean {near[0]!r}?"
        elif self._served:
            more = ", …" if len(self._served) > MAX_SUGGESTED else ""
            failure.suggestion = f"{self.name} serves: {', '.join(self._served[:MAX_SUGGESTED])}{more}."

    async def _listed(self) -> list[str]:
        """Return the names of the server's models; none where it does not list them: another error is reported."""
        try:
            listed = await asyncio.wait_for(self.request("GET", "/models", ListedModels), timeout=PROBE_SECONDS)
            return [str(each["id"]) for each in listed["data"]]
        except (OnwardError, TimeoutError, KeyError):
            return []

    def _request(
        self, method: str, url: str, fields: dict[str, Any] | None, attempt: int, given: Mapping[str, str], **form: Any
    ) -> httpx2.Request:
        """Return a request with a JSON object, or with a form's `data` and `files`."""
        content = None if fields is None else msgspec.json.encode(fields)
        headers = {**given, "x-stainless-retry-count": str(attempt)}
        if content is not None:
            headers["content-type"] = "application/json"
        request = self._client.build_request(method, url, content=content, headers=headers, **form)
        if self._debug:
            _log(f"> {method} {without_secrets(url)}", request.headers)
        return request

    def _log_response(self, response: httpx2.Response) -> None:
        if self._debug:
            _log(f"< {response.status_code} {response.reason_phrase}", response.headers)


def _headers(connection: ServerConnection) -> dict[str, str]:
    headers = {"accept": "application/json", "user-agent": f"Onward/CLI {onward.__version__}"}
    if connection.api_key:
        headers["authorization"] = f"Bearer {connection.api_key}"
    if connection.organization:
        headers["openai-organization"] = connection.organization
    if connection.project:
        headers["openai-project"] = connection.project
    return headers | {name.lower(): value for name, value in connection.headers.items()}


async def _read(response: httpx2.Response) -> bytes:
    """Return the body. Raises ConnectionFailed, and RemoteError if it is larger than any answer."""
    body = bytearray()
    try:
        async for part in response.aiter_bytes():
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                raise too_large(str(response.url))
    except httpx2.TransportError as problem:
        raise connection_failed(problem, str(response.url)) from None
    return bytes(body)


async def _beginning(response: httpx2.Response) -> bytes:
    """Return the beginning of a body, as the explanation of an error."""
    body = bytearray()
    with suppress(httpx2.TransportError):
        async for part in response.aiter_bytes():
            body += part
            if len(body) > MAX_ERROR_BYTES:
                break
    await response.aclose()
    return bytes(body[:MAX_ERROR_BYTES])


async def failure_of(response: httpx2.Response, url: str, attempt: int = 0) -> RemoteError:
    """Return the error for a failed response, after `attempt`."""
    content = await _beginning(response)
    return remote_error(
        response.status_code,
        content or response.reason_phrase.encode(),
        url=url,
        request_id=response.headers.get("x-request-id"),
        retry_in_seconds=next_delay(attempt, response.status_code, response.headers),
    )


def _log(title: str, headers: httpx2.Headers) -> None:
    lines = [title]
    for name, value in headers.items():
        if name.lower() in REDACTED:
            value = "Bearer <REDACTED>" if value.startswith("Bearer ") else "<REDACTED>"
        lines.append(f"  {name}: {value}")
    start = "\r\x1b[K" if can_rewrite(sys.stderr) else ""  # replaces the progress line
    print(start + visible("\n".join(lines)), file=sys.stderr, flush=True)
