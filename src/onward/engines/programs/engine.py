"""An engine client over a program that it starts, starts again when it is lost, and ends with itself."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from onward.engine.model import Tokenizer
from onward.engine_load import EngineLoad, RecoveryCounts
from onward.engines.child.recovery import RestartPolicy
from onward.engines.programs.process import ProgramProcess
from onward.engines.upstreams.base import Upstream, UpstreamError
from onward.engines.upstreams.engine import UpstreamEngine
from onward.engines.upstreams.pool import CheckUpstream
from onward.errors import SetupError

log = logging.getLogger("onward.engine")

POLL_SECONDS = 0.2
HANG_SECONDS = 60.0
"""How long a program that has answered may send nothing at all before it is replaced, while it is probed: before the
first of these seconds the connection of a request was lost, or silent for the time that --engine-timeout allows. Longer
than the answer to a probe takes that waits for a step of its engine."""
ILL_SECONDS = 360.0
"""How long it may answer while its engine does nothing, neither for another request nor when it is asked to after a
loss. Twice --engine-timeout where that is more: as long as prompts that it reads may keep it busy."""
MUTE_SECONDS = 1800.0
"""How long it may print nothing while it loads a model: much longer than compiling for a GPU takes. All three print how
far they are."""

Start = Callable[[], ProgramProcess]


class ProgramEngine(UpstreamEngine):
    """Implements `engine.client.EngineClient`. Owns the program, which `start` starts, and the upstream.

    Call `connect` before all other methods. `title`: of the program, in messages. A thread watches the program: one
    that ends, or that runs and does not answer, is replaced; its requests are resumed after the tokens that arrived.
    `engine_timeout`: how long it may compute without a token, in seconds; 0: any time. `on_stop` is called when it has
    ended for good.
    """

    _is_own = True

    def __init__(
        self,
        name: str,
        title: str,
        start: Start,
        make: Callable[[], dict[str, Upstream]],
        tokenizer: Tokenizer,
        *,
        max_rows: int,
        fingerprint: Callable[[str], str],
        engine_timeout: float,
        on_stop: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(name, make, tokenizer, fingerprint=fingerprint, max_rows=max_rows)
        self._title = title
        self._start_program = start
        self._engine_timeout = engine_timeout
        self._on_stop = on_stop
        self._policy = RestartPolicy()
        self._stops = threading.Event()
        self._has_given_up = False
        self._recoveries = RecoveryCounts()
        self._process: ProgramProcess | None = None
        self._watcher = threading.Thread(target=self._watch, name=f"onward-program-{name}", daemon=True)

    @property
    def pid(self) -> int | None:
        """The id of the group of the program's processes."""
        return None if self._process is None else self._process.pid

    @property
    def load(self) -> EngineLoad:
        return msgspec.structs.replace(super().load, recoveries=self._recoveries)

    def connect(self, check: CheckUpstream | None = None) -> None:
        """Start the program, wait until it has loaded its model, and reach it. Raises SetupError."""
        try:
            self._process = self._started()
            super().connect(check)
        except BaseException:
            self.stop()
            raise
        self._watcher.start()

    def stop(self) -> None:
        """End the requests, then the program."""
        self._stops.set()
        super().stop()
        if self._watcher.is_alive() and self._watcher is not threading.current_thread():
            self._watcher.join()
        if self._process is not None:
            self._process.stop()
        self._on_stop()

    def _started(self) -> ProgramProcess:
        try:
            return self._start_program()
        except OSError as error:
            raise SetupError(f"{self._title} cannot be started for {self._name}: {error.strerror}.") from None

    # The event loop.

    async def _connect(self, check: CheckUpstream | None) -> None:
        assert self._process is not None
        await self._wait_until_it_answers(self._process)
        await super()._connect(check)

    async def _wait_until_it_answers(self, process: ProgramProcess) -> None:
        """Raises SetupError when it ends before, hangs, or answers unexpectedly."""
        while True:
            if process.has_ended:
                raise SetupError(f"{self._title} could not load {self._name}: {process.reason}.")
            if _is_mute(process):
                raise SetupError(
                    f"{self._title} could not load {self._name}: it printed nothing for {MUTE_SECONDS / 60:g} minutes."
                )
            try:
                await self._probe()
                return
            except UpstreamError as error:
                if not error.is_lost:
                    raise SetupError(f"{self._title} cannot be used for {self._name}: {error}") from None
            await asyncio.sleep(POLL_SECONDS)

    async def _probe(self) -> None:
        for upstream in self._make().values():
            try:
                await upstream.probe()
            finally:
                await upstream.close()

    def _may_return(self) -> bool:
        return not self._has_given_up

    # The thread that watches.

    def _watch(self) -> None:
        assert self._process is not None
        run = _Run(self._process, time.monotonic(), self._num_decoded, has_answered=True)
        while not self._stops.is_set():
            if run.process.wait(POLL_SECONDS):
                if (next_run := self._replace(run)) is None:
                    return
                run = next_run
            elif self.state.status == "running":
                if not run.has_answered:
                    self._recovered(run)
                run.lost_since = None
            elif not run.hangs and self._is_hung(run):
                does = "computes nothing" if run.has_answered else "prints nothing while it loads"
                log.error("%s: %s runs but %s; it is ended", self._name, self._title, does)
                run.hangs = True
                run.process.kill()

    def _is_hung(self, run: _Run) -> bool:
        if not run.has_answered:
            return _is_mute(run.process)
        ill_seconds = max(ILL_SECONDS, 2 * self._engine_timeout) if self._engine_timeout else math.inf
        return run.is_hung(time.monotonic(), self._heard_at(), self._num_decoded, ill_seconds)

    def _heard_at(self) -> float:
        addresses = () if self._pool is None else self._pool.addresses
        return max((address.upstream.heard_at for address in addresses), default=0.0)

    def _replace(self, run: _Run) -> _Run | None:
        """Start the program again, as the policy says. Returns None after `stop`, and when it was given up."""
        if self._stops.is_set():
            return None
        reason, lost_at = run.process.reason, time.monotonic()
        self._lost(reason)
        name = "num_hangs" if run.hangs else "num_crashes"
        self._add(**{name: 1})
        made_progress = self._num_decoded > run.num_decoded
        delay = self._policy.engine_lost(made_progress=made_progress, seconds=lost_at - run.started)
        while delay is not None:
            log.error("%s: %s was lost: %s; it is started again", self._name, self._title, reason)
            if self._stops.wait(delay):
                return None
            try:
                self._process = self._started()
                return _Run(self._process, time.monotonic(), self._num_decoded, lost_at=lost_at)
            except SetupError as error:
                reason = str(error).rstrip(".")
                self._add(num_failed_starts=1)
                delay = self._policy.could_not_start()
        self._has_given_up = True
        reason = f"{self._title} was lost repeatedly without any progress; the last time {reason}"
        log.error("%s: %s; it is not started again", self._name, reason)
        self._thread.call(self._changed, reason)
        return None

    def _lost(self, reason: str) -> None:
        """Notify the pool, so that the state is "recovering" until the next program answers."""
        is_notified = threading.Event()

        def notify() -> None:
            if self._pool is not None:
                self._pool.lost(f"{self._title} was lost: {reason}")
            is_notified.set()

        self._thread.call(notify)
        while not is_notified.wait(POLL_SECONDS) and not self._stops.is_set():
            pass

    def _recovered(self, run: _Run) -> None:
        run.has_answered = True
        seconds = time.monotonic() - run.lost_at
        self._add(num_recoveries=1, num_resumed_requests=self.num_jobs, seconds=seconds)
        log.warning("%s: %s answers again after %.1f s", self._name, self._title, seconds)

    def _add(self, **more: float) -> None:
        """Add to the counts of recoveries."""
        self._recoveries = msgspec.structs.replace(
            self._recoveries, **{name: getattr(self._recoveries, name) + number for name, number in more.items()}
        )


def _is_mute(process: ProgramProcess) -> bool:
    """Whether a program that loads is taken to hang."""
    return time.monotonic() - process.printed_at >= MUTE_SECONDS


@dataclass(slots=True)
class _Run:
    """A program from its start until it is replaced. Times are of `time.monotonic`."""

    process: ProgramProcess
    started: float
    num_decoded: int
    """Tokens that the engine had decoded when it was started."""
    has_answered: bool = False
    hangs: bool = False
    lost_since: float | None = None
    """Since when it is not known to work: when it was lost, or the last token came of another request."""
    num_seen: int = 0
    """Tokens that the engine had decoded then."""
    lost_at: float = 0.0
    """When the one before it was lost."""

    def is_hung(self, now: float, heard_at: float, num_decoded: int, ill_seconds: float) -> bool:
        """Whether it is to be replaced, since it is lost and sent nothing for HANG_SECONDS, or computed nothing
        for `ill_seconds`, whatever its server sent."""
        if self.lost_since is None or num_decoded != self.num_seen:
            self.lost_since, self.num_seen = now, num_decoded
        return now - max(self.lost_since, heard_at) >= HANG_SECONDS or now - self.lost_since >= ill_seconds
