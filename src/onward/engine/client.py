"""How an engine is reached: jobs of token ids down, events up. The second waist; the first is `backends.base.Backend`.

A thread in this process, a child process, a replica on another machine and another project's server all look like
this to the backend. Whatever crosses this line is a typed message that msgspec can encode.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from typing import Literal, Protocol

import msgspec

from onward.engine.events import Event
from onward.engine.job import Job


class Submit(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Queue the jobs of one request."""

    jobs: list[Job]


class Cancel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Drop all jobs of a request before the next step. Unknown and finished requests are ignored."""

    request: int


class Stop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """End the engine after the step in progress; what still runs fails."""


Command = Submit | Cancel | Stop
COMMANDS = (Submit, Cancel, Stop)


class EngineState(msgspec.Struct, frozen=True):
    """`crash_reason` is set when the engine has crashed, for the log and for people."""

    status: Literal["running", "stopped", "crashed"] = "running"
    crash_reason: str | None = None


class DraftCounts(msgspec.Struct, frozen=True):
    """Draft tokens that were evaluated since the start, by where they came from and whether they were sampled."""

    prediction_accepted: int = 0
    prediction_rejected: int = 0
    lookup_accepted: int = 0
    lookup_rejected: int = 0

    @property
    def total(self) -> int:
        return self.prediction_accepted + self.prediction_rejected + self.lookup_accepted + self.lookup_rejected


class EngineLoad(msgspec.Struct, frozen=True):
    """What an engine is doing, as it published it last. Token and step counts are totals since the start.

    `num_used_blocks` are KV blocks that sequences hold; `num_cached_blocks` those that the prefix tree knows, held or
    not; both of `num_blocks`.
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


Deliver = Callable[[ReadOnly[Event]], None]
"""Takes the events of one step, in order. Called on a thread of the client's; it must return soon."""


class EngineClient(Protocol):
    """An engine for one model. Every method may be called from any thread, and only `stop` waits.

    A submitted job ends in exactly one of: a Decoded with a finish reason for each of its choices, Failed, or its own
    cancellation.
    """

    def start(self, deliver: Deliver) -> None:
        """Begin to work. Called once."""
        ...

    def submit(self, jobs: ReadOnly[Job]) -> None:
        """Queue the jobs of one request. Raises Overloaded when the queue is full, EngineStopped when the engine is
        stopped or has crashed."""
        ...

    def cancel(self, request: int) -> None:
        """Drop a request's jobs before the next step. Unknown and finished requests are ignored."""
        ...

    def stop(self) -> None:
        """End the engine and wait until its memory is free; what still runs fails. May be called more than once."""
        ...

    @property
    def state(self) -> EngineState: ...

    @property
    def load(self) -> EngineLoad:
        """The load that the engine published last; never waits for the engine."""
        ...
