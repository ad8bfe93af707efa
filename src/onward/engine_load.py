"""What an engine reports about its work: plain numbers that travel from any process to metrics and pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add
from typing import Literal

import msgspec

DraftSource = Literal["prediction", "lookup", "grammar", "model"]


class EngineCounts(msgspec.Struct, frozen=True, array_like=True):
    """How many servers or replicas there are behind an engine client, and how many of them answer now."""

    num_answering: int
    num_engines: int


class DraftCounts(msgspec.Struct, frozen=True, array_like=True):
    """Draft tokens evaluated since the start, by their source and whether they were accepted."""

    prediction_accepted: int = 0
    prediction_rejected: int = 0
    lookup_accepted: int = 0
    lookup_rejected: int = 0
    grammar_accepted: int = 0
    grammar_rejected: int = 0
    model_accepted: int = 0
    model_rejected: int = 0

    @property
    def total(self) -> int:
        return sum(msgspec.structs.astuple(self))

    def __add__(self, other: DraftCounts) -> DraftCounts:
        return DraftCounts(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


class RecoveryCounts(msgspec.Struct, frozen=True, array_like=True):
    """How often an engine was lost and started again since the server's start, by why: it ended by itself (crash), did
    not report a step in time (hang), or could not be started (start). Requests count once per loss. `seconds`: from
    loss to ready again, in all."""

    num_crashes: int = 0
    num_hangs: int = 0
    num_failed_starts: int = 0
    num_recoveries: int = 0
    num_resumed_requests: int = 0
    num_poisoned_requests: int = 0
    seconds: float = 0.0


class ProcessUsage(msgspec.Struct, frozen=True, array_like=True):
    """What an engine's process has used: processor seconds since its start, and resident bytes now (0 where the system
    does not report them)."""

    cpu_seconds: float
    resident_bytes: int


class Certificate(msgspec.Struct, frozen=True, array_like=True):
    """What is known of the certificate of a server that computes a model. `expires`: Unix time in seconds, 0 where none
    was seen yet. `problem`: why it was not trusted at the last attempt to connect, "" if it was."""

    address: str
    expires: float = 0.0
    problem: str = ""


class EngineLoad(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A snapshot of what an engine is doing. Token, step and preemption counts are totals since the start.

    Of at most `max_rows` sequences, `num_running` are computed together; an engine reports the former in its
    EngineInfo, and `Backend.load` copies it. Of `num_blocks` KV blocks, `num_used_blocks` are in use by sequences,
    and `num_cached_blocks` are in the prefix tree, in use or not. `recoveries` and `process` are those of an engine
    outside this process; `process` is None for one inside it, and before the first step. `engines` is as in
    EngineState; `num_moved`: jobs that were resumed at another one of them; `certificates`: of those that are
    reached by TLS. `num_disk_tokens` are tokens of prompts whose blocks were read from a disk, and
    `num_damaged_files` those that were not what was written. `draft_seconds`: how long a draft model has computed.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_used_blocks: int = 0
    num_cached_blocks: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_cached_tokens: int = 0
    drafts: DraftCounts = DraftCounts()
    recoveries: RecoveryCounts = RecoveryCounts()
    process: ProcessUsage | None = None
    engines: EngineCounts | None = None
    num_moved: int = 0
    certificates: tuple[Certificate, ...] = ()
    num_disk_tokens: int = 0
    num_disk_read_bytes: int = 0
    num_disk_written_bytes: int = 0
    num_damaged_files: int = 0
    draft_seconds: float = 0.0
    max_rows: int = 0


TOTALS = (
    "num_preemptions", "num_steps", "num_prefill_tokens", "num_decode_tokens", "num_cached_tokens", "num_disk_tokens",
    "num_disk_read_bytes", "num_disk_written_bytes", "num_damaged_files", "draft_seconds",
)  # fmt: skip
"""The fields of EngineLoad that are totals since the start, besides `drafts`."""


@dataclass(slots=True)
class Counters:
    """Totals since the start. Modified on the engine thread only. `drafts` is replaced, never modified."""

    num_steps: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_cached_tokens: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)

    def count_draft(self, source: DraftSource, num_accepted: int, num_rejected: int) -> None:
        """Count an evaluated draft. Its accepted tokens count as decoded, too."""
        self.num_decode_tokens += num_accepted
        old = self.drafts
        counts = {f"{source}_accepted": num_accepted, f"{source}_rejected": num_rejected}
        new = {name: getattr(old, name) + count for name, count in counts.items()}
        self.drafts = msgspec.structs.replace(old, **new)
