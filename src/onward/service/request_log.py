"""What requests asked and what they got, where an operator wants it kept: in files of a folder, by key and day, or in
the database. Off by default. It is not a ledger: what cannot be written is lost, and the server's log says so."""

from __future__ import annotations

import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from onward.errors import SetupError

log = logging.getLogger("onward.service")

NO_KEY = "no-key"
"""Folder of the requests without a key."""
MAX_WAITING = 10_000
PRUNE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One request and its answer. `at_ms` is when it ended, in Unix milliseconds; `body` is what the client sent, as
    JSON; `choices` are what it was sent, or would have been: nothing that a content filter withheld. `seed` is the one
    that was drawn, where the client named none."""

    id: str
    at_ms: int
    key_id: str
    key_name: str
    route: str
    model: str
    fingerprint: str
    seed: int
    status: int
    body: Any
    choices: list[dict[str, Any]]
    prompt_tokens: int
    completion_tokens: int

    def encoded(self) -> bytes:
        return msgspec.json.encode(asdict(self))


def decoded(data: bytes | str) -> LoggedRequest:
    return LoggedRequest(**msgspec.json.decode(data))


class RequestLog(Protocol):
    """Takes requests that have ended."""

    def add(self, request: LoggedRequest) -> None:
        """Write a request soon. Never raises or waits."""
        ...

    def close(self) -> None:
        """Write what waits. Blocks."""
        ...


class LostRequests:
    """Counts requests that could not be logged, and says so now and then."""

    def __init__(self) -> None:
        self._number = 0

    def add(self, reason: str) -> None:
        """One more is lost."""
        self._number += 1
        if self._number & (self._number - 1) == 0:  # 1, 2, 4, 8 …
            log.error("%d requests are not in the log of requests: %s", self._number, reason)

    def note(self, written: Future[None]) -> None:
        """One was written to the database, or not."""
        if (problem := written.exception()) is not None:
            self.add(str(problem))


class RequestFolder:
    """Writes requests to FOLDER/KEY/DAY-NAME.jsonl, on a thread of its own. `name` is this server's. Raises SetupError
    for a folder that cannot be written."""

    def __init__(self, folder: Path, name: str, keep_seconds: int) -> None:
        self._folder = folder
        self._name = name
        self._keep_seconds = keep_seconds
        self._waiting: queue.Queue[LoggedRequest | None] = queue.Queue(MAX_WAITING)
        self._losses = LostRequests()
        self._pruned = -PRUNE_SECONDS
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._prune()
        except OSError as error:
            raise SetupError(f"The folder {folder} of --log-requests cannot be used: {error.strerror}.") from None
        self._thread = threading.Thread(target=self._run, name="onward-requests", daemon=True)
        self._thread.start()

    def add(self, request: LoggedRequest) -> None:
        try:
            self._waiting.put_nowait(request)
        except queue.Full:
            self._losses.add("too many wait to be written")

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (request := self._waiting.get()) is not None:
            try:
                self._write(request)
                self._prune()
            except OSError as error:
                self._losses.add(error.strerror or "it cannot be written")

    def _write(self, request: LoggedRequest) -> None:
        day = datetime.fromtimestamp(request.at_ms / 1000, UTC).strftime("%Y-%m-%d")
        folder = self._folder / (request.key_id or NO_KEY)
        folder.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
        with os.fdopen(os.open(folder / f"{day}-{self._name}.jsonl", flags, 0o600), "ab") as file:
            file.write(request.encoded() + b"\n")

    def _prune(self) -> None:
        """Now and then delete the files of days that are over for longer than requests are kept."""
        now = time.monotonic()
        if now - self._pruned < PRUNE_SECONDS:
            return
        self._pruned = now
        for path in self._folder.glob("*/*.jsonl"):
            if path.stat().st_mtime < time.time() - self._keep_seconds:
                path.unlink(missing_ok=True)


def read_folder(folder: Path) -> Iterator[LoggedRequest]:
    """Yield all requests of a folder, by key and day. Raises SetupError."""
    if not folder.is_dir():
        raise SetupError(f"There is no folder {folder} of logged requests.")
    for path in sorted(folder.glob("*/*.jsonl"), key=lambda path: path.name):
        with suppress(FileNotFoundError):  # its day is over for long enough, or its key was forgotten
            yield from read_file(path)


def read_file(path: Path) -> Iterator[LoggedRequest]:
    """Yield the requests of one file. A line that a killed server has not finished is left out."""
    for line in path.read_bytes().splitlines():
        try:
            yield decoded(line)
        except (msgspec.DecodeError, TypeError):
            continue


def forget_in_folder(folder: Path, key_id: str) -> None:
    """Delete the requests of a key."""
    shutil.rmtree(folder / key_id, ignore_errors=True)
