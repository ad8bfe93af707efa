"""What the ledger has: its rows, the questions about them and their answers. Known without a database, so that servers
without one import nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

CLIENT_LEFT = 499
"""Status, in logs, metrics and the ledger, of a request whose client left before its response began. Never sent."""


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request. Times are Unix milliseconds, costs micro-units. `computed_tokens` came from the engine,
    `delivered_tokens` are those billed tokens of the completion that reached the client's connection;
    `prompt_tokens`, `cached_tokens` and `completion_tokens` are billed: what `usage` says, or would have said to a
    client that left; all 0 for a request whose response is an error. `key_id` and `key_name` are "" without a key,
    `batch` is the id of the batch that a request is a line of, else ""."""

    id: str
    started_ms: int
    ended_ms: int
    key_id: str
    key_name: str
    model: str
    fingerprint: str
    route: str
    batch: str = ""
    seed: str
    finish_reasons: str
    status: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    computed_tokens: int
    delivered_tokens: int
    prompt_cost: int
    completion_cost: int
    first_token_ms: int | None
    """Milliseconds from the start to the first token."""


@dataclass(frozen=True, slots=True)
class Question:
    """Sums of the requests that ended from `start` to before `end` (Unix seconds), in buckets that begin at multiples
    of `width` seconds; those of `models` and of the keys `key_ids` only, if there are any. `group_by`: of "api_key_id"
    or "key_name", "model" and "batch" (whether a request is a batch's line); the sums of an id have its "key_name".
    `batch`: only lines of batches, or only other requests. `until` is where the question's last page ends."""

    start: int
    end: int
    width: int
    group_by: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    key_ids: tuple[str, ...] = ()
    until: int = 0
    batch: bool | None = None


@dataclass(frozen=True, slots=True)
class Sums:
    """What the requests of a group used in the bucket that begins at `start` or contains it."""

    start: int
    group: dict[str, Any]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prompt_cost: int
    completion_cost: int


def edges(start: int, end: int, width: int) -> Sequence[int]:
    """Return where buckets begin: at the start, aligned or not, then at every multiple of the width."""
    aligned = start - start % width + width
    return [start, *range(aligned, end, width)]
