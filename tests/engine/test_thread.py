"""The engine's thread: submission, cancellation, refusal, crashes, and when events are delivered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.engine.events import Decoded, Event, Failed
from onward.engine.job import Job
from onward.engine.model import Hook, Row, nothing
from onward.engine.thread import EngineThread
from onward.errors import EngineStopped
from onward.sampling import sampler
from tests.waiting import PATIENCE_SECONDS

from .. import threads
from .harness import make_engine, make_job, run_alone, slow_down


class Inbox:
    """Collects events on the engine's thread, and lets a test wait for one that matches."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, events: Sequence[Event]) -> None:
        with self._changed:
            self.events += events
            self._changed.notify_all()

    def wait_for(self, predicate: Callable[[Event], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(predicate, self.events)), timeout=PATIENCE_SECONDS)


def started(*, rows: int = 64) -> tuple[EngineThread, Inbox]:
    inbox = Inbox()
    thread = EngineThread(make_engine(rows=rows))
    thread.start(inbox)
    return thread, inbox


def ended(job: Job) -> Callable[[Event], object]:
    return lambda event: isinstance(event, Decoded) and event.job == job.id and event.finish_reason


def test_the_thread_finishes_a_job_and_waits_for_the_next() -> None:
    thread, inbox = started()
    for _ in range(2):
        job = make_job(max_tokens=5)
        thread.submit([job])
        inbox.wait_for(ended(job))
    thread.stop()
    assert thread.engine.cache.pool.num_used == 0


def test_a_cancelled_request_emits_no_events_from_the_next_step_on() -> None:
    thread, inbox = started()
    slow_down(thread.engine, 0.02)
    endless = make_job(max_tokens=1900, ignore_end=True)
    thread.submit([endless])
    inbox.wait_for(lambda event: isinstance(event, Decoded))
    thread.cancel(endless.request)
    marker = make_job(max_tokens=1)
    thread.submit([marker])
    inbox.wait_for(ended(marker))
    thread.stop()
    assert not any(map(ended(endless), inbox.events))
    assert not any(isinstance(event, Failed) for event in inbox.events)


def failed(job: Job) -> Callable[[Event], object]:
    return lambda event: isinstance(event, Failed) and event.job == job.id


def test_a_crash_fails_all_jobs_and_later_submissions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, inbox = started()
    monkeypatch.setattr(thread.engine.model, "evaluate", broken)
    jobs = [make_job(max_tokens=5) for _ in range(3)]
    thread.submit(jobs)
    for job in jobs:
        inbox.wait_for(failed(job))
    assert thread.state.status == "crashed" and "no more memory" in (thread.state.crash_reason or "")
    with pytest.raises(EngineStopped):
        thread.submit([make_job()])
    thread.stop()


def broken(*_: object) -> None:
    raise RuntimeError("no more memory")


def stop(thread: EngineThread, monkeypatch: pytest.MonkeyPatch) -> None:
    thread.stop()


def crash(thread: EngineThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread.engine.model, "evaluate", broken)
    thread.submit([make_job()])


def crash_on_delivery(thread: EngineThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "_deliver", broken)
    thread.submit([make_job()])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", [stop, crash, crash_on_delivery])
def test_however_the_engine_ends_its_sampler_threads_end_before_its_model_is_closed(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[EngineThread, pytest.MonkeyPatch], None]
) -> None:
    monkeypatch.setattr(sampler, "MIN_LOGITS_PER_THREAD", 1)
    before, inbox = threads.running(), Inbox()
    thread = EngineThread(make_engine(threads=3))
    at_close: list[int] = []

    def close() -> None:
        at_close.append(len(threads.running() - before))

    monkeypatch.setattr(thread.engine.model, "close", close)
    thread.start(inbox)
    job = make_job(choices=3, ignore_end=True)
    thread.submit([job])
    inbox.wait_for(ended(job))
    assert len(threads.running() - before) == 3, "sampling was shared"
    end(thread, monkeypatch)
    thread._thread.join(60)
    assert threads.running() <= before
    assert at_close == [1], "only the engine's own thread still uses the model's memory"
    thread.stop()
    thread.engine.close()


def test_stopping_fails_each_running_job_once_and_refuses_later_ones() -> None:
    thread, inbox = started()
    slow_down(thread.engine)
    jobs = [make_job(max_tokens=1900, ignore_end=True) for _ in range(3)]
    thread.submit(jobs)
    inbox.wait_for(lambda event: isinstance(event, Decoded))
    thread.stop()
    failed_jobs = [event.job for event in inbox.events if isinstance(event, Failed)]
    assert sorted(failed_jobs) == sorted(job.id for job in jobs)
    assert thread.engine.cache.pool.num_used == 0
    with pytest.raises(EngineStopped):
        thread.submit([make_job()])
    thread.stop()


def test_events_of_a_step_that_fails_half_way_are_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, inbox = started()
    evaluate = thread.engine.model.evaluate

    def evaluate_to_nan(rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        logits = evaluate(rows, before_compute)
        logits[-1] = float("nan")
        return logits

    monkeypatch.setattr(thread.engine.model, "evaluate", evaluate_to_nan)
    prefill_only, sampled = make_job("the cat", max_tokens=0), make_job("a dog", max_tokens=4)
    thread.submit([prefill_only, sampled])
    inbox.wait_for(failed(sampled))
    assert any(map(ended(prefill_only), inbox.events))
    thread.stop()


def test_events_of_a_step_are_delivered_when_the_next_one_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, inbox = started()
    evaluate = thread.engine.model.evaluate
    delivered: list[list[int]] = []

    def evaluate_and_count(rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        before = len(inbox.events)
        before_compute()
        delivered.append([before, len(inbox.events)])
        return evaluate(rows, before_compute)

    monkeypatch.setattr(thread.engine.model, "evaluate", evaluate_and_count)
    job = make_job("the cat", max_tokens=4, ignore_end=True)
    thread.submit([job])
    inbox.wait_for(ended(job))
    thread.stop()
    assert delivered == [[0, 0], [0, 2], [2, 3], [3, 4]], "nothing is delivered while a step is prepared"
    assert len(inbox.events) == 5


def test_a_finish_is_delivered_at_once_when_the_only_other_job_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, inbox = started()
    slow_down(thread.engine)
    short, endless = make_job(max_tokens=3, ignore_end=True), make_job(max_tokens=1900, ignore_end=True)
    count = 0

    def deliver(events: Sequence[Event]) -> None:
        nonlocal count
        inbox(events)
        count += sum(isinstance(event, Decoded) and event.job == short.id for event in events)
        if count == 2:  # the third token is sampled before the engine takes this command from the mailbox
            thread.cancel(endless.request)

    monkeypatch.setattr(thread, "_deliver", deliver)
    thread.submit([short, endless])
    inbox.wait_for(ended(short))
    thread.stop()
    assert not any(isinstance(event, Failed) for event in inbox.events), "a cancelled job does not fail"


def test_the_load_is_published_before_a_step_computes_and_counts_the_mailbox() -> None:
    thread, inbox = started(rows=1)
    gate, seen = threading.Event(), threading.Event()
    evaluate = thread.engine.model.evaluate

    def held(rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        before_compute()
        seen.set()
        gate.wait(PATIENCE_SECONDS)
        return evaluate(rows)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(thread.engine.model, "evaluate", held)
        first = make_job(max_tokens=1)
        thread.submit([first])
        assert seen.wait(PATIENCE_SECONDS)
        others = [make_job(max_tokens=1) for _ in range(5)]
        thread.submit(others)
        load = thread.load
        gate.set()
        inbox.wait_for(ended(others[-1]))
    thread.stop()
    assert (load.num_running, load.num_waiting) == (1, 5)


def test_a_job_that_the_engine_cannot_run_fails_alone() -> None:
    thread, inbox = started()
    empty = replace(make_job(), resume=(None,))
    thread.submit([empty])
    inbox.wait_for(lambda event: isinstance(event, Failed) and event.job == empty.id)
    (failed,) = (event for event in inbox.events if isinstance(event, Failed))
    assert failed.kind == "rejected"
    other = make_job(max_tokens=2)
    thread.submit([other])
    inbox.wait_for(ended(other))
    thread.stop()
    assert thread.state.status == "stopped"


def test_a_panic_is_a_crash_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """As a library in Rust raises it."""

    def panic(*_: object) -> None:
        raise Panic("index out of bounds")

    thread, inbox = started()
    monkeypatch.setattr(thread.engine.model, "evaluate", panic)
    job = make_job()
    thread.submit([job])
    inbox.wait_for(lambda event: isinstance(event, Failed) and event.kind == "crashed")
    assert thread.state.crash_reason is not None and "index out of bounds" in thread.state.crash_reason
    thread.stop()


def test_jobs_in_the_mailbox_of_a_broken_engine_fail_though_its_scheduler_is_unusable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread, inbox = started()
    waiting, cancelled = make_job(), make_job()

    def broken(*_: object) -> None:
        thread.submit([waiting])
        thread.submit([cancelled])
        thread.cancel(cancelled.request)
        monkeypatch.setattr(thread.engine, "add", broken_add)
        raise RuntimeError("the runtime failed")

    def broken_add(job: Job) -> None:
        raise AssertionError("the scheduler is inconsistent")

    monkeypatch.setattr(thread.engine.model, "evaluate", broken)
    running = make_job()
    thread.submit([running])
    inbox.wait_for(lambda event: isinstance(event, Failed) and event.job == waiting.id)
    thread.stop()
    assert sorted(event.job for event in inbox.events if isinstance(event, Failed)) == sorted([running.id, waiting.id])


def test_a_cancelled_choice_is_silent_and_the_others_continue() -> None:
    engine = make_engine()
    job = make_job(choices=3, max_tokens=30, ignore_end=True)
    whole = run_alone(job)
    engine.add(job)
    tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
    finished = set()
    for step in range(1000):
        if engine.idle:
            break
        if step == 8:
            engine.cancel_choice(job.id, 1)
            engine.check()
        for event in engine.step():
            if isinstance(event, Decoded):
                tokens[event.choice] += [sampled.token for sampled in event.tokens]
                if event.finish_reason:
                    finished.add(event.choice)
    engine.check()
    assert engine.idle and finished == {0, 2}
    assert tokens[0] == whole.choices[0].tokens and tokens[2] == whole.choices[2].tokens
    assert len(tokens[1]) < 15
    engine.cancel_choice(job.id, 1)


def test_a_preempted_choice_can_be_cancelled() -> None:
    engine = make_engine(blocks=10, context=320)
    jobs = [make_job([97 + index] * 40, max_tokens=150, ignore_end=True) for index in range(2)]
    for job in jobs:
        engine.add(job)
    while not engine.scheduler.reclaim.num_preemptions:
        engine.step()
    (preempted,) = engine.scheduler.admission
    engine.cancel_choice(preempted.job.id, preempted.choice)
    assert not list(engine.scheduler.admission)
    ended_jobs = set()
    while not engine.idle:
        ended_jobs |= {e.job for e in engine.step() if isinstance(e, Decoded) and e.finish_reason}
        engine.check()
    assert ended_jobs == {job.id for job in jobs} - {preempted.job.id}


def test_a_thread_that_never_started_frees_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = EngineThread(make_engine())
    closed: list[bool] = []
    monkeypatch.setattr(thread.engine.model, "close", lambda: closed.append(True))
    thread.stop()
    thread.stop()
    assert closed == [True] and thread.state.status == "stopped"
