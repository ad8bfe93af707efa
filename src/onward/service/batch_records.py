"""What files and batches are. Known without a database, so that servers without one import nothing of it."""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

from onward.service.grant import Grant
from onward.service.records import LedgerRow

PART_BYTES = 1_000_000
"""Files are written and read in parts of this many bytes."""
WINDOW_MS = 86_400_000
"""The completion window, 24 hours."""


class StorageFull(Exception):
    """A key may not store as much. The arguments are its limit and what it stores, in bytes."""


class BudgetSpent(Exception):
    """A line may be computed when its key's budget of the day or month allows it again."""


class TryLater(Exception):
    """The engine does not take a line now."""


class EngineLost(Exception):
    """The engine ended for good while it was computing a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file. Times are Unix milliseconds. One with a `batch_id` has the batch's lines in the state `lines`; others
    have parts."""

    id: str
    purpose: str
    filename: str
    bytes: int
    created_ms: int
    expires_ms: int | None
    batch_id: str = ""
    lines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """A batch. Times are Unix milliseconds; `errors` and `metadata` are JSON. `output_seconds`: how long its files
    live, None: until they are deleted."""

    id: str
    key_id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    model: str | None = None
    errors: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    metadata: str | None = None
    idempotency_key: str | None = None
    created_ms: int
    expires_ms: int
    in_progress_ms: int | None = None
    finalizing_ms: int | None = None
    completed_ms: int | None = None
    failed_ms: int | None = None
    expired_ms: int | None = None
    cancelling_ms: int | None = None
    cancelled_ms: int | None = None
    output_seconds: int | None = None
    num_lines: int = 0
    num_completed: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    face: str = ""


class NewLine(NamedTuple):
    """A line of a file that was read: its number from 1, its custom_id and its request, both JSON."""

    number: int
    custom_id: bytes
    request: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """A line that a server computes. `created_ms` is that of its batch."""

    batch_id: str
    key_id: str
    number: int
    custom_id: bytes
    request: bytes
    created_ms: int
    is_suspect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a line resulted in: a line for the output file or for the error file, and its tokens."""

    data: bytes
    is_output: bool
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Computed:
    """What a line resulted in, its row in the ledger if it was computed, and what it had reserved of its key's
    limits."""

    result: Result
    row: LedgerRow | None = None
    grant: Grant | None = None
    reservation_id: str | None = None


class _Moments:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> int:
        with self._lock:
            self._last = max(self._last + 1, time.time_ns())
            return self._last


next_moment = _Moments()
"""Returns the time in nanoseconds since 1970, later each time than before in this process. Called on any thread."""


def new_batch_id(now_ms: int) -> str:
    """Return `batch_` and 32 hexadecimal digits, the first eight of which are the time in seconds (behaviour §18.4).
    Those of one server and one second are in the order of their making, in which batches of one millisecond are
    listed."""
    return f"batch_{now_ms // 1000:08x}{next_moment() % (1 << 48):012x}{secrets.token_hex(6)}"
