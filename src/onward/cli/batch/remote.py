"""Batches that a server works on: sent, watched, cancelled, fetched."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import httpx2
import msgspec

from onward.cli.output.progress import shown_line, time_left, with_bar
from onward.cli.session import ServerConnection
from onward.cli.source.http import NO_HEADERS, HttpSource, failure_of
from onward.cli.source.stream import parse_object
from onward.cli.source.transport import connection_failed
from onward.errors import SetupError
from onward.machine import bytes_in_words, room_wanted

FINAL = ("completed", "failed", "expired", "cancelled")
POLL_SECONDS = 1.0


class FileAnswer(msgspec.Struct):
    """An answer of a server's `/files`."""

    id: str
    bytes: int


class _Counts(msgspec.Struct):
    total: int
    completed: int
    failed: int


class _Fault(msgspec.Struct):
    message: str
    line: int | None = None


class _Faults(msgspec.Struct):
    data: list[_Fault] | None = None


class BatchAnswer(msgspec.Struct):
    """An answer of a server's `/batches/ID`."""

    id: str
    status: str
    request_counts: _Counts
    errors: _Faults | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None


class BatchListAnswer(msgspec.Struct):
    """An answer of a server's `/batches`."""

    data: list[BatchAnswer]


class _Counted:
    """A file that counts the bytes read from it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.num_read = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.num_read += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


class BatchServer(HttpSource):
    """A server with OpenAI's Files and Batches APIs. Methods raise RemoteError and ConnectionFailed."""

    @classmethod
    def of(cls, connection: ServerConnection) -> BatchServer:
        """Raises SetupError without a server."""
        if connection.base_url is None:
            raise SetupError("Such batches run on a server: name one with --base-url, or use `onward batch run`.")
        return cls(connection)

    async def upload(self, path: Path) -> str:
        """Send a file, and return its id. On a terminal, show how much of it was sent."""
        url, size = self._base + "/files", path.stat().st_size
        with path.open("rb") as file:
            counted = _Counted(file)
            parts = {"file": (path.name, counted, "application/octet-stream")}
            request = self._request("POST", url, None, 0, NO_HEADERS, data={"purpose": "batch"}, files=parts)
            with shown_line(lambda width: _of_bytes(counted.num_read, size, " sent", width)):
                try:
                    response = await self._client.send(request, stream=True)
                    self._log_response(response)
                    if not response.is_success:
                        raise await failure_of(response, url)
                    return str(parse_object(await response.aread(), url, FileAnswer)["id"])
                except httpx2.TransportError as problem:
                    raise connection_failed(problem, url) from None

    async def create(self, file_id: str) -> dict[str, Any]:
        fields = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        return await self.request("POST", "/batches", BatchAnswer, fields)

    async def batch(self, batch_id: str) -> dict[str, Any]:
        return await self.request("GET", f"/batches/{batch_id}", BatchAnswer)

    async def batches(self) -> list[dict[str, Any]]:
        found = await self.request("GET", "/batches?limit=100", BatchListAnswer)
        return list(found["data"])

    async def cancel(self, batch_id: str) -> dict[str, Any]:
        return await self.request("POST", f"/batches/{batch_id}/cancel", BatchAnswer)

    async def wait(self, batch_id: str) -> dict[str, Any]:
        """Wait until a batch has ended, and return it. On a terminal, show how many of its lines are finished."""
        shown, started = await self.batch(batch_id), time.monotonic()
        first = _finished(shown)
        with shown_line(lambda width: _progress(shown, first, time.monotonic() - started, width)):
            while shown["status"] not in FINAL:
                await asyncio.sleep(POLL_SECONDS)
                shown = await self.batch(batch_id)
        return shown

    async def download(self, file_id: str, path: Path) -> int:
        """Download a file of the server to a new one, all or nothing; return its number of lines. Raises SetupError."""
        if path.exists():
            raise SetupError(f"The file {path} exists: remove it, or choose another name.")
        partial, num_lines, num_bytes, size = path.with_name(path.name + ".partial"), 0, 0, 0
        url = f"{self._base}/files/{file_id}/content"
        try:
            async with self._response("GET", url, None) as response:
                size = int(response.headers.get("content-length") or 0)
                shown = shown_line(lambda width: _of_bytes(num_bytes, size, "", width))
                with partial.open("wb") as file, shown:
                    try:
                        async for part in response.aiter_bytes():
                            file.write(part)
                            num_lines, num_bytes = num_lines + part.count(b"\n"), num_bytes + len(part)
                    except httpx2.TransportError as problem:
                        raise connection_failed(problem, url) from None
                    file.flush()
                    os.fsync(file.fileno())
            partial.replace(path)
        except OSError as problem:
            raise SetupError(f"{path} cannot be written: {problem.strerror}{room_wanted(problem, size)}.") from None
        finally:
            with suppress(OSError):
                partial.unlink()
        return num_lines


def _finished(batch: dict[str, Any]) -> int:
    return int(batch["request_counts"]["completed"]) + int(batch["request_counts"]["failed"])


def _of_bytes(done: int, total: int, word: str, width: int) -> str:
    """Return a progress bar for a file that is sent or received; `total` is 0 where its size is not known."""
    of = f" of {bytes_in_words(total)}" if total else ""
    return with_bar("", done, total, f"{bytes_in_words(done)}{of}{word}", width)


def _progress(batch: dict[str, Any], first: int, seconds: float, width: int) -> str:
    """Return a bar of the finished lines, and the time left at the rate of those that finished while it was shown."""
    total, finished = int(batch["request_counts"]["total"]), _finished(batch)
    if not total:
        return str(batch["status"])
    parts = [f"{finished:,}/{total:,}", str(batch["status"])]
    if failed := batch["request_counts"]["failed"]:
        parts.append(f"{failed:,} failed")
    if finished < total:
        parts.append(time_left(finished - first, total - first, seconds))
    return with_bar("", finished, total, " ".join(filter(None, parts)), width)
