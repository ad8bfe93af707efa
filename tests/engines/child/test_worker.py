"""Reports of an engine: scores of prompts are sent on a thread of their own, and nothing else waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from onward.constraints import local
from onward.constraints.choice import Outcome
from onward.constraints.grammar import choice_grammar
from onward.engine.events import Decoded, Event, Prefilled
from onward.engine.loop import EngineLoop
from onward.engine_load import EngineLoad
from onward.engines.child import messages
from onward.engines.child.link import StepReport
from onward.engines.child.worker import Reporter, ReportSender
from onward.sampling.outputs import Sampled
from tests.engine.harness import make_engine, make_job
from tests.waiting import PATIENCE_SECONDS


def scored(job: int) -> Prefilled:
    return Prefilled(job, 0, [None, Sampled(5, -0.25, ((5, -0.25),))])


def decoded(job: int, token: int) -> Decoded:
    return Decoded(job, 0, [Sampled(token, -1.0, ())])


def report(*events: Event, is_idle: bool = False, num_running: int = 0) -> StepReport:
    return StepReport(list(events), EngineLoad(num_running=num_running), [9], is_idle)


class Line:
    """Receives reports. Those of the other thread wait for `open`."""

    def __init__(self) -> None:
        self.sent: list[StepReport] = []
        self.open = threading.Event()
        self._engine_thread = threading.current_thread()

    def send(self, part: StepReport) -> None:
        if any(isinstance(event, Prefilled) and event.scores for event in part.events):
            assert threading.current_thread() is not self._engine_thread
        self.sent.append(part)

    def gated(self, sender: ReportSender) -> ReportSender:
        """Make the sender's thread wait before it sends anything."""
        send_delayed = sender._send_delayed

        def wait(events: list[Event]) -> None:
            assert self.open.wait(PATIENCE_SECONDS)
            send_delayed(events)

        sender._send_delayed = wait  # type: ignore[method-assign]
        return sender

    @property
    def events(self) -> list[Event]:
        return [event for part in self.sent for event in part.events]


def no_failure(error: BaseException) -> None:
    raise AssertionError(error)


def new_sender(line: Line, failed: Callable[[BaseException], None] = no_failure) -> ReportSender:
    return line.gated(ReportSender(line.send, failed))


def test_reports_without_scores_are_sent_at_once() -> None:
    line = Line()
    sender = new_sender(line)
    reports = [report(decoded(1, 7)), report(Prefilled(2, 3)), report(is_idle=True)]
    for each in reports:
        sender.report(each)
    assert line.sent == reports


def test_events_of_other_jobs_overtake_scores_and_those_of_the_same_job_do_not() -> None:
    line = Line()
    sender = new_sender(line)
    sender.report(report(decoded(1, 7), scored(2)))
    sender.report(report(decoded(1, 8), decoded(2, 1)))
    assert line.events == [decoded(1, 7), decoded(1, 8)]
    line.open.set()
    sender.flush()
    assert line.events == [decoded(1, 7), decoded(1, 8), scored(2), decoded(2, 1)]
    assert [part.admitted for part in line.sent] == [[9], [9], [], []]
    sender.report(report(decoded(2, 2)))
    assert line.events[-1] == decoded(2, 2)


def test_only_the_last_report_says_that_the_engine_is_idle() -> None:
    line = Line()
    sender = new_sender(line)
    sender.report(report(scored(1), num_running=2))
    sender.report(report(decoded(1, 7)))
    sender.report(report(is_idle=True))
    line.open.set()
    sender.flush()
    assert [part.is_idle for part in line.sent] == [False, False, False, False, True]
    assert line.sent[-1].load == EngineLoad()


def test_scores_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_REPORT_LOGPROBS", 4)
    line = Line()
    sender = new_sender(line)
    sender.report(report(*map(scored, range(6)), is_idle=True))
    line.open.set()
    sender.flush()
    assert line.events == [scored(job) for job in range(6)]
    assert len(line.sent) == 1 + 6
    assert [part.is_idle for part in line.sent] == [False] * 6 + [True]


def test_a_failure_on_the_other_thread_is_reported() -> None:
    failures: list[BaseException] = []
    failed = threading.Event()

    def note(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    def send(part: StepReport) -> None:
        if part.events:
            raise OSError("gone")

    sender = ReportSender(send, note)
    sender.report(report(scored(1)))
    assert failed.wait(PATIENCE_SECONDS)
    assert [str(error) for error in failures] == ["gone"]


def test_events_of_steps_that_compute_nothing_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends a choice is found while all others wait for their masks: no further step may lose that."""
    engine, reports = make_engine(), list[StepReport]()
    reporter = Reporter(EngineLoop(engine), reports.append)
    held, free = (make_job(max_tokens=20, grammar=choice_grammar(texts)) for texts in (["no"], ["ya", "yb"]))
    masks = engine.constraints.prepare(held)
    submit, gates = local.SlowMasks.submit, list[tuple[Future[Outcome], Future[Outcome]]]()

    def gated(thread: local.SlowMasks, choice: local.LocalChoice, tokens: list[int]) -> Future[Outcome]:
        computed = submit(thread, choice, tokens)
        if choice.compiled is not masks:
            return computed
        gates.append((Future(), computed))
        return gates[-1][0]

    monkeypatch.setattr(local, "SLOW_SECONDS", -1.0)
    monkeypatch.setattr(local.SlowMasks, "submit", gated)
    for job in (held, free):
        engine.add(job)
    events: list[Event] = []

    def ended() -> set[int]:
        return {event.job for event in events if isinstance(event, Decoded) and event.finish_reason}

    while not ended():
        events += engine.step(reporter.publish)
    assert ended() == {free.id} and gates
    for _ in range(3):
        events += engine.step(reporter.publish)
    assert [event for each in reports for event in each.events] == events
    while not engine.idle:
        for gate, computed in gates:
            gate.set_result(computed.result())
        gates.clear()
        events += engine.step(reporter.publish)
    reporter.publish()
    assert [event for each in reports for event in each.events] == events
    assert ended() == {held.id, free.id}
    assert reports[-1].is_idle
