"""HTTP to an upstream: JSON in, one typed message or a stream of them out, every fault an UpstreamError with a
sentence."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from onward.engine_load import Certificate
from onward.engines.upstreams.answers import ANSWER_BYTES, A, decode, error_line, refusal
from onward.engines.upstreams.base import Segment, UpstreamError
from onward.engines.upstreams.http import HTTPClient, Response
from onward.tracing import current

PROBE_SECONDS = 5.0
"""How long an upstream may send nothing when it is asked what it serves."""
MAX_DESCRIPTION_BYTES = 1 << 22
"""What a description of a model may take: with a chat template, and many models."""
ABSENT = (404, 405, 501)
"""Statuses of a path that a server does not have, or that its operator has turned off."""

Fields = dict[str, object]


class Connection:
    """Requests to one upstream. `silence_seconds`: how long it may send nothing that is waited for; 0: any time."""

    def __init__(self, url: str, key: str | None, silence_seconds: float) -> None:
        self.url = url
        # No proxy of the environment: prompts must not go where the operator did not send them.
        self._http = HTTPClient(url, {"authorization": f"Bearer {key}"} if key else {}, silence_seconds)

    @property
    def certificate(self) -> Certificate | None:
        return self._http.certificate

    async def close(self) -> None:
        await self._http.close()

    @property
    def heard_at(self) -> float:
        """When it last sent something, in `time.monotonic`; 0: never."""
        return self._http.heard_at

    async def get(self, path: str, kind: type[A], silence_seconds: float = PROBE_SECONDS) -> A:
        """Return what a path answers with. Raises UpstreamError."""
        async with self._http.request("GET", path, silence_seconds=silence_seconds) as response:
            return await self._message(response, kind, MAX_DESCRIPTION_BYTES)

    async def check(self, path: str, silence_seconds: float = PROBE_SECONDS) -> bool:
        """Return whether the server has a path. Raises UpstreamError if that reports that it is unhealthy."""
        async with self._http.request("GET", path, silence_seconds=silence_seconds) as response:
            reason = await response.read_error()
            if response.status not in (200, *ABSENT):
                raise refusal(self.url, response.status, reason)
            return response.status == 200

    async def post(self, path: str, body: Fields, kind: type[A], max_bytes: int = ANSWER_BYTES) -> A:
        """Return what a request is answered with; `max_bytes`: besides what repeats the request. Raises
        UpstreamError."""
        content = msgspec.json.encode(body)
        async with self._http.request("POST", path, content, trace=current.get()) as response:
            return await self._message(response, kind, max_bytes + _echoed(content))

    async def stream(
        self,
        path: str,
        body: Fields,
        kind: type[A],
        max_bytes: int,
        is_progress: Callable[[A], bool],
        *,
        keep_alive: bool = True,
    ) -> AsyncGenerator[A]:
        """Yield the messages of an answer of server-sent events, of at most `max_bytes` each, besides what repeats the
        request. Events that are no progress, comments and so on do not end the silence.

        Raises UpstreamError, also if it ends too early for a line to be complete. Read it to its end, so that the
        connection can be used again. Without `keep_alive` it is not: for servers that close it after a stream without
        announcing it.
        """
        is_done = False
        content = msgspec.json.encode(body)
        trace = current.get()
        async with self._http.request("POST", path, content, keep_alive=keep_alive, trace=trace) as response:
            if response.status != 200:
                raise refusal(self.url, response.status, await response.read_error())
            if not response.content_type.startswith("text/event-stream"):
                raise UpstreamError(f"{self.url} did not answer with a stream of events.")
            lines = _Lines(self.url, max_bytes + _echoed(content))
            response.expect_events(lines.max_bytes)
            while chunk := await response.chunk():
                for line in lines.feed(chunk):
                    if line.startswith(b"error:"):
                        raise error_line(self.url, line.removeprefix(b"error:"))
                    if is_done or not line.startswith(b"data:"):
                        continue
                    if line.startswith(b"data: [DONE]"):
                        is_done = True
                        continue
                    message = decode(self.url, line.removeprefix(b"data:"), kind)
                    if is_progress(message):
                        response.progressed()
                    yield message

    async def _message(self, response: Response, kind: type[A], max_bytes: int) -> A:
        if response.status != 200:
            raise refusal(self.url, response.status, await response.read_error())
        return decode(self.url, await response.read(max_bytes), kind)


class Connected:
    """What every kind of upstream has: a connection, which it owns."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def certificate(self) -> Certificate | None:
        return self._connection.certificate

    @property
    def heard_at(self) -> float:
        return self._connection.heard_at

    async def distribution(self, segment: Segment, vocab_size: int) -> tuple[NDArray[np.float32], int | None]:
        """Not in the traits of most kinds."""
        raise NotImplementedError

    def _ended_early(self) -> UpstreamError:
        return UpstreamError(f"{self._connection.url} closed its answer half-way.", is_lost=True)

    async def close(self) -> None:
        await self._connection.close()


class _Lines:
    """Splits a stream into lines of at most `max_bytes` each.

    httpx2's EventSource is not used: it decodes a whole response of its own as text, while messages are decoded from
    bytes here, and older llama-servers send errors as lines that are not fields of an event.
    """

    def __init__(self, url: str, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._url = url
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that are complete now, except empty ones. Raises UpstreamError for one that is too long."""
        *complete, rest = chunk.split(b"\n")
        if complete and self._rest:
            self._append(complete[0])
            complete[0] = bytes(self._rest)
            self._rest.clear()
        for line in filter(None, complete):  # there may be millions of empty ones
            if len(line) > self.max_bytes:
                raise self._too_long()
            yield line
        if rest:
            self._append(rest)

    def _append(self, part: bytes) -> None:
        self._rest += part
        if len(self._rest) > self.max_bytes:
            raise self._too_long()

    def _too_long(self) -> UpstreamError:
        return UpstreamError(f"{self._url} sent more than what it was asked for takes.")


def _echoed(content: bytes) -> int:
    """Return how many bytes an answer that repeats a request may take, in whatever notation."""
    return 4 * len(content)
