"""The interface between a backend and an engine: jobs of token ids in, events out.

Behind it may be a thread of this process, a child process or an engine on another machine. Everything that crosses it
is a typed message that msgspec can encode. (The interface above it is `backends.base.Backend`.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from onward.engine.events import Event
from onward.engine.job import Job
from onward.engine_load import EngineCounts, EngineLoad
from onward.errors import SetupError


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


class LoadAdapter(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Load an adapter of the model. `adapter` is its id: a digest of its files. Jobs that use it wait."""

    adapter: str
    path: str


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Free an adapter's memory, once no job with it is left."""

    adapter: str


class AdapterOutcome(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An adapter was loaded, or could not be: then `problem` is a sentence for the operator."""

    adapter: str
    problem: str = ""


class Stop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Stop the engine after the current step. Jobs that are still running fail."""


Command = Submit | Cancel | CancelChoice | LoadAdapter | UnloadAdapter | Stop
COMMANDS = (Submit, Cancel, CancelChoice, LoadAdapter, UnloadAdapter, Stop)


class EngineInfo(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What an engine serves. `fingerprint` changes whenever results may change. `context_length`: tokens of prompt and
    completion together. `max_rows`: sequences that it evaluates together. `lacks`: the names of `completions.features`
    that it does not have; jobs that need one must not be submitted."""

    vocab_size: int
    context_length: int
    max_rows: int
    fingerprint: str
    lacks: tuple[str, ...] = ()


class EngineState(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Whether an engine accepts jobs. `recovering`: it was lost and is being started again; jobs are accepted and wait.
    `crash_reason` is set if it has crashed or is recovering: a sentence for logs. `engines`: how many there are, if it
    stands for several; it runs while one of them answers."""

    status: Literal["running", "recovering", "stopped", "crashed"] = "running"
    crash_reason: str | None = None
    engines: EngineCounts | None = None


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


@runtime_checkable
class AdaptableClient(EngineClient, Protocol):
    """An engine that may compute adapters of its model: one that Onward computes itself."""

    def load_adapter(self, adapter: str, path: Path) -> Future[None]:
        """Load an adapter, whose id is a digest of its files: jobs may have it from now on. The result is there once it
        is loaded, or the SetupError that says why it cannot be. Never blocks. Raises EngineStopped."""
        ...

    def unload_adapter(self, adapter: str) -> None:
        """Free an adapter's memory once no job with it is left. Never blocks."""
        ...


class AdapterLoads:
    """The loads of adapters that a client waits for. Any thread."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Future[None]]] = {}
        self._lock = threading.Lock()

    def begin(self, adapter: str) -> Future[None]:
        """Return what an outcome will resolve."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._waiting.setdefault(adapter, []).append(future)
        return future

    def end(self, outcome: AdapterOutcome) -> None:
        """Resolve all who wait for an adapter."""
        with self._lock:
            futures = self._waiting.pop(outcome.adapter, [])
        for future in futures:
            if outcome.problem:
                future.set_exception(SetupError(outcome.problem))
            else:
                future.set_result(None)

    def fail_all(self, error: Exception) -> None:
        """Fail all loads: no outcome follows."""
        with self._lock:
            futures = [future for each in self._waiting.values() for future in each]
            self._waiting.clear()
        for future in futures:
            future.set_exception(error)
