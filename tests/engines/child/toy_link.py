"""Links to engines on the toy model, without processes: a test drives every step and every loss by hand.

Reports come on the test's thread. Launches happen on the supervisor's, as in a server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from onward.engine.client import AdapterOutcome, Cancel, CancelChoice, Command, EngineInfo, Submit
from onward.engine.events import Event, Failed
from onward.engine.job import Job
from onward.engines.child.link import OnLost, OnReport, StepReport
from onward.engines.child.recovery import RestartPolicy
from onward.engines.child.supervised import SupervisedEngine
from onward.errors import SetupError
from tests.engine.harness import ToyEngine, make_engine
from tests.waiting import PATIENCE_SECONDS, wait_for

MakeEngine = Callable[[], ToyEngine]


class Killed(BaseException):
    """Ends a step of the engine half-way, as the end of its process does."""


class ToyLink:
    """Implements `engines.child.link.EngineLink`. The engine takes a step whenever a test calls `step`.

    `fatal` returns whether the engine is lost when it begins a step with these jobs running.
    """

    def __init__(self, engine: ToyEngine, on_report: OnReport, on_lost: OnLost, fingerprint: str) -> None:
        self.engine = engine
        self.info = EngineInfo(engine.model.vocab_size, engine.model.context_length, 64, fingerprint)
        self.received: list[Command] = []
        self.kill_reasons: list[str] = []
        self.num_closes = 0
        self.is_lost = False
        self.fatal: Callable[[list[Job]], bool] = lambda jobs: False
        self._mailbox: list[Command] = []
        self._on_report, self._on_lost = on_report, on_lost
        self._admitted: set[int] = set()
        self._lock = threading.Lock()

    def send(self, command: Command) -> None:
        with self._lock:
            if not self.is_lost:
                self.received.append(command)
                self._mailbox.append(command)

    def kill(self, reason: str) -> None:
        self.kill_reasons.append(reason)

    def close(self) -> None:
        self.num_closes += 1
        self.is_lost = True

    def lose(self, reason: str = "killed by SIGKILL") -> None:
        """The engine ends: what was computed and not reported is gone."""
        with self._lock:
            self.is_lost = True
        self._on_lost(reason)

    def execute(self) -> None:
        """Execute the commands received so far."""
        with self._lock:
            commands, self._mailbox = self._mailbox, []
        for command in commands:
            match command:
                case Submit(jobs):
                    for job in jobs:
                        self.engine.add(job)
                case Cancel(request):
                    self.engine.cancel(request)
                case CancelChoice(job_id, choice):
                    self.engine.cancel_choice(job_id, choice)

    def step(self, *, lose_before_report: bool = False, lose_in_step: bool = False) -> None:
        """Take one step, or report that the engine is idle. The report comes when the step begins to compute, with the
        events of the step before. `lose_before_report` and `lose_in_step`: the engine ends right before or after it."""
        self.execute()
        if lose_before_report:
            return self.lose()
        if self.engine.idle:
            self.report(is_idle=True)
            return self.lose() if lose_in_step else None

        def begin() -> None:
            self._begin(lose_in_step)

        try:
            self.engine.step(once(begin))
        except Killed:
            return self.lose()
        self.engine.check()
        return None

    def _begin(self, lose: bool) -> None:
        jobs = [sequence.job for sequence in self.engine.scheduler.running]
        self.report()
        if lose or self.fatal(jobs):
            raise Killed

    def report(self, *, is_idle: bool = False, outcomes: Sequence[AdapterOutcome] = ()) -> None:
        """Report the events of the last step, and which jobs begin with this one."""
        events, self.engine.undelivered = self.engine.undelivered, []
        running = {sequence.job.id for sequence in self.engine.scheduler.running}
        admitted = sorted(running - self._admitted)
        self._admitted |= running
        self._on_report(StepReport(list(events), self.engine.load(), admitted, is_idle, list(outcomes)))

    def report_crash(self) -> None:
        """The engine reports an exception, as the thread in a process does before the process ends."""
        ids = {sequence.job.id for sequence in self.engine.scheduler.sequences()}
        failures: list[Event] = [Failed(job, "crashed", "the engine crashed: out of luck") for job in ids]
        self._on_report(StepReport(failures, self.engine.load()))


def once(function: Callable[[], None]) -> Callable[[], None]:
    """A function that calls `function` the first time only: a runtime may call its hook twice."""
    calls: list[None] = []

    def call() -> None:
        if not calls:
            calls.append(None)
            function()

    return call


class ToyLaunch:
    """Implements `engines.child.link.Launch`. `links` are all links so far, the last of which is the current one.

    `failures`: this many of the next launches fail, with `failure`. `lost_at_start`: this many of the next engines are
    lost before their launch returns. `gate`: launches wait for it. `fingerprint`: that of the next engines.
    """

    def __init__(self, make: MakeEngine = make_engine) -> None:
        self.links: list[ToyLink] = []
        self.failures = self.lost_at_start = self.num_failed = 0
        self.failure: Exception = SetupError("the model does not fit in memory")
        self.fingerprint = "fp_toy"
        self.fatal: Callable[[list[Job]], bool] = lambda jobs: False
        self.gate = threading.Event()
        self.gate.set()
        self.threads: set[threading.Thread] = set()
        self._make = make

    def __call__(self, on_report: OnReport, on_lost: OnLost) -> ToyLink:
        self.threads.add(threading.current_thread())
        assert self.gate.wait(PATIENCE_SECONDS)
        if self.failures:
            self.failures -= 1
            self.num_failed += 1
            raise self.failure
        link = ToyLink(self._make(), on_report, on_lost, self.fingerprint)
        link.fatal = self.fatal
        link.report(is_idle=True)  # as an engine's loop does before it waits for the first job
        if self.lost_at_start:
            self.lost_at_start -= 1
            link.lose("killed at the start")
        self.links.append(link)
        return link

    @property
    def link(self) -> ToyLink:
        return self.links[-1]


class Supervised:
    """A supervised engine over toy links, and all events that it has delivered."""

    def __init__(self, launch: ToyLaunch, engine_timeout: float = 0.0) -> None:
        self.launch = launch
        self.events: list[Event] = []
        self.client = SupervisedEngine(launch, name="toy", engine_timeout=engine_timeout, policy=RestartPolicy([0.0]))

    def lose(self, *, restarted: bool = True) -> None:
        """Lose the current engine; wait for the next one if `restarted`."""
        self.launch.link.lose()
        if restarted:
            self.wait_until_running()

    def wait_until_running(self) -> None:
        """Wait until an engine has all live jobs, or until no further one will be started."""
        wait_for(lambda: self.client.state.status != "recovering" or self._is_ready(), "the next engine")

    def _is_ready(self) -> bool:
        return self.client.state.status == "crashed"

    def step_until(self, condition: Callable[[], bool], max_steps: int = 20_000) -> None:
        """Step the current engine until a condition holds; engines that are lost are replaced."""
        for _ in range(max_steps):
            if condition():
                return
            self.wait_until_running()
            if self.client.state.status == "crashed":
                return
            self.launch.link.step()
        raise AssertionError("the jobs do not end")


@contextmanager
def supervised(launch: ToyLaunch | None = None, engine_timeout: float = 0.0) -> Iterator[Supervised]:
    """A supervised engine that is running, and stopped at the end."""
    found = Supervised(launch or ToyLaunch(), engine_timeout)
    found.client.begin()
    found.client.wait_until_ready()
    found.client.start(found.events.extend)
    try:
        yield found
    finally:
        found.launch.gate.set()
        found.client.stop()
