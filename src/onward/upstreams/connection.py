"""HTTP to an upstream: JSON in, JSON or server-sent events out, every fault an UpstreamError with a sentence."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from onward.upstreams.base import UpstreamError
from onward.upstreams.http import HTTPClient

PROBE_SECONDS = 5.0
"""How long an upstream may send nothing when it is asked what it serves."""
MAX_LINE_BYTES = 16 << 20
MAX_ERROR_CHARACTERS = 300

Fields = dict[str, object]


class Connection:
    """Requests to one upstream. `silence_seconds`: how long it may send nothing; 0: any time."""

    def __init__(self, url: str, key: str | None, silence_seconds: float) -> None:
        self.url = url
        # No proxy of the environment: prompts must not go where the operator did not send them.
        self._http = HTTPClient(url, {"authorization": f"Bearer {key}"} if key else {}, silence_seconds)

    async def close(self) -> None:
        await self._http.close()

    async def get(self, path: str) -> Fields:
        """Return the object that a path answers with. Raises UpstreamError."""
        async with self._http.request("GET", path, silence_seconds=PROBE_SECONDS) as response:
            return self._object(response.status, await response.read())

    async def post(self, path: str, body: Fields) -> Fields:
        """Return the object that a request is answered with. Raises UpstreamError."""
        async with self._http.request("POST", path, msgspec.json.encode(body)) as response:
            return self._object(response.status, await response.read())

    async def stream(self, path: str, body: Fields, *, keep_alive: bool = True) -> AsyncGenerator[Fields]:
        """Yield the objects of an answer of server-sent events. Raises UpstreamError, also if it ends too early for a
        line to be complete. Read it to its end, so that the connection can be used again. Without `keep_alive` it is
        not: for servers that close it after a stream without announcing it."""
        is_done = False
        content = msgspec.json.encode(body)
        async with self._http.request("POST", path, content, keep_alive=keep_alive) as response:
            if response.status != 200:
                self._object(response.status, await response.read())
            if not response.content_type.startswith("text/event-stream"):
                raise UpstreamError(f"{self.url} did not answer with a stream of events.")
            rest = b""
            while chunk := await response.chunk():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise UpstreamError(f"{self.url} sent a line that is too long.")
                for line in lines:
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
        hint = "; ONWARD_UPSTREAM_KEY is sent as its API key" if status in (401, 403) else ""
        try:
            if content:
                self._decoded(content)
        except UpstreamError as error:
            return f"{str(error).rstrip('.')} (status {status}{hint})."
        return f"{self.url} answered with status {status}{hint}."


def _reason(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:MAX_ERROR_CHARACTERS]
