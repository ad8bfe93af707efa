"""The interface between a backend and an engine: jobs of token ids in, events out.

Behind it may be a thread of this process, a child process or an engine on another machine. Everything that crosses it
is a typed message that msgspec can encode. (The interface above it is `backends.base.Backend`.)
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from operator import add
from typing import Literal, Protocol

import msgspec

from onward.engine.events import Event
from onward.engine.job import Job


class Submit(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Queue the jobs of one request."""

    jobs: list[Job]


class Cancel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Cancel all jobs of a request before the next step. Unknown and finished requests are ignored."""

    request: int


class CancelChoice(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Cancel one choice before the next step: it has ended above the engine. Unknown and finished ones are ignored."""

    job: int
    choice: int


class Stop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Stop the engine after the current step. Jobs that are still running fail."""


Command = Submit | Cancel | CancelChoice | Stop
COMMANDS = (Submit, Cancel, CancelChoice, Stop)


class EngineInfo(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What an engine serves. `fingerprint` changes whenever results may change. `context_length`: tokens of prompt and
    completion together. `max_rows`: sequences that it evaluates together. `lacks`: the names of `completions.features`
    that it does not have; jobs that need one must not be submitted."""

    vocab_size: int
    context_length: int
    max_rows: int
    fingerprint: str
    lacks: tuple[str, ...] = ()


class EngineCounts(msgspec.Struct, frozen=True, array_like=True):
    """How many servers or replicas there are behind an engine client, and how many of them answer now."""

    num_answering: int
    num_engines: int


class EngineState(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Whether an engine accepts jobs. `recovering`: it was lost and is being started again; jobs are accepted and wait.
    `crash_reason` is set if it has crashed or is recovering: a sentence for logs. `engines`: how many there are, if it
    stands for several; it runs while one of them answers."""

    status: Literal["running", "recovering", "stopped", "crashed"] = "running"
    crash_reason: str | None = None
    engines: EngineCounts | None = None


class DraftCounts(msgspec.Struct, frozen=True, array_like=True):
    """Draft tokens evaluated since the start, by their source and whether they were accepted."""

    prediction_accepted: int = 0
    prediction_rejected: int = 0
    lookup_accepted: int = 0
    lookup_rejected: int = 0
    grammar_accepted: int = 0
    grammar_rejected: int = 0

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


class EngineLoad(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A snapshot of what an engine is doing. Token, step and preemption counts are totals since the start.

    Of `num_blocks` KV blocks, `num_used_blocks` are in use by sequences, and `num_cached_blocks` are in the prefix
    tree, in use or not. `recoveries` and `process` are those of an engine outside this process; `process` is None for
    one inside it, and before the first step. `engines` is as in EngineState; `num_moved`: jobs that went on at another
    one of them.
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


TOTALS = ("num_preemptions", "num_steps", "num_prefill_tokens", "num_decode_tokens", "num_cached_tokens")
"""The fields of EngineLoad that are totals since the start, besides `drafts`."""

Report = Event | EngineInfo | EngineState | EngineLoad
"""All that comes up from an engine."""

Deliver = Callable[[ReadOnly[Event]], None]
"""Receives the events of one step, in order. Called on a thread of the client; must return soon."""


class EngineClient(Protocol):
    """An engine for one model. All members may be used on any thread, and only `stop` blocks.

    A submitted job ends in exactly one of three ways: a Decoded with a finish reason for each of its choices, a Failed,
    or its cancellation.
    """

    def start(self, deliver: Deliver) -> None:
        """Start the engine; `deliver` receives all its events. Called once, before all other methods."""
        ...

    def submit(self, jobs: ReadOnly[Job]) -> None:
        """Queue the jobs of one request. Raises EngineStopped if the engine was stopped or has crashed."""
        ...

    def cancel(self, request: int) -> None:
        """Cancel a request's jobs before the next step. Unknown and finished requests are ignored."""
        ...

    def cancel_choice(self, job: int, choice: int) -> None:
        """Cancel one choice before the next step. Unknown and finished choices are ignored."""
        ...

    def stop(self) -> None:
        """Stop the engine and wait until its memory is freed. Running jobs fail. May be called more than once."""
        ...

    @property
    def info(self) -> EngineInfo:
        """What the engine serves. Never blocks."""
        ...

    @property
    def state(self) -> EngineState:
        """The state that the engine published last. Never blocks."""
        ...

    @property
    def load(self) -> EngineLoad:
        """The load published last: when each step begins to compute, and when the engine becomes idle. Never blocks.

        `EngineThread` counts the waiting sequences at the moment of the call.
        """
        ...
