"""HTTP to an upstream: JSON in, JSON or server-sent events out, every fault an UpstreamError with a sentence."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import httpx
import msgspec

from onward.upstreams.base import UpstreamError

CONNECT_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 4.0
"""Idle connections are closed before the upstream does: llama-server closes its own after 5."""
MAX_LINE_BYTES = 16 << 20
MAX_ERROR_CHARACTERS = 300

Fields = dict[str, object]


class Connection:
    """Requests to one upstream. `silence_seconds`: how long it may send nothing; 0: any time."""

    def __init__(self, url: str, key: str | None, silence_seconds: float) -> None:
        self.url = url
        headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(silence_seconds or None, connect=CONNECT_SECONDS, pool=None)
        limits = httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_SECONDS)
        # No proxy of the environment: prompts must not go where the operator did not send them.
        self._client = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, limits=limits, trust_env=False, follow_redirects=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str, timeout: float = CONNECT_SECONDS) -> Fields:
        """Return the object that a path answers with. Raises UpstreamError."""
        with Faults(self.url):
            response = await self._client.get(path, timeout=timeout)
        return self._object(response.status_code, response.content)

    async def post(self, path: str, body: Fields) -> Fields:
        """Return the object that a request is answered with. Raises UpstreamError."""
        with Faults(self.url):
            response = await self._client.post(path, content=msgspec.json.encode(body), headers=_JSON)
        return self._object(response.status_code, response.content)

    async def stream(self, path: str, body: Fields, *, keep_alive: bool = True) -> AsyncGenerator[Fields]:
        """Yield the objects of an answer of server-sent events. Raises UpstreamError, also if it ends too early for a
        line to be complete. Read it to its end, so that the connection can be used again. Without `keep_alive` it is
        not: for servers that close it after a stream without announcing it."""
        is_done = False
        headers, content = _JSON if keep_alive else _JSON_AND_CLOSE, msgspec.json.encode(body)
        with Faults(self.url):
            async with self._client.stream("POST", path, content=content, headers=headers) as response:
                if response.status_code != 200:
                    self._object(response.status_code, await response.aread())
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise UpstreamError(f"{self.url} did not answer with a stream of events.")
                async for line in _lines(response.aiter_bytes()):
                    is_done = is_done or line.startswith(b"data: [DONE]")
                    if not is_done and line.startswith((b"data:", b"error:")):
                        yield self._decoded(line.partition(b":")[2])

    def _object(self, status: int, content: bytes) -> Fields:
        if status != 200:
            raise UpstreamError(
                self._refusal(status, content),
                is_lost=status in (429, 502, 503, 504),
                is_request=status in (400, 413, 422),
            )
        return self._decoded(content)

    def _decoded(self, content: bytes) -> Fields:
        try:
            decoded = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            shown = content[:60].decode(errors="replace")
            raise UpstreamError(f"{self.url} did not answer with JSON, but with {shown!r}.") from None
        if not isinstance(decoded, dict):
            raise UpstreamError(f"{self.url} answered with JSON that is not an object.")
        if "error" in decoded and decoded["error"] is not None:
            raise UpstreamError(f"{self.url} refused the request: {_reason(decoded['error'])}")
        return decoded

    def _refusal(self, status: int, content: bytes) -> str:
        try:
            self._decoded(content)
        except UpstreamError as error:
            return f"{str(error).rstrip('.')} (status {status})."
        return f"{self.url} answered with status {status}."


_JSON = {"content-type": "application/json"}
_JSON_AND_CLOSE = {**_JSON, "connection": "close"}


def _reason(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:MAX_ERROR_CHARACTERS]


class Faults:
    """Turns httpx's exceptions into UpstreamError."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            raise UpstreamError(f"{self._url} sent nothing for too long.", is_lost=True) from error
        if isinstance(error, httpx.HTTPError | httpx.InvalidURL | httpx.StreamError):
            reason = (str(error) or type(error).__name__).rstrip(".")
            is_unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise UpstreamError(
                f"{self._url} could not be reached: {reason}.", is_lost=True, is_unsent=is_unsent
            ) from error


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield complete lines that are not empty, without their ends."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise UpstreamError("the upstream sent a line that is too long.")
        for line in lines:
            if stripped := line.rstrip(b"\r"):
                yield stripped
