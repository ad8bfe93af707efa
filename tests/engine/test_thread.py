import threading
from collections.abc import Callable, Sequence

import pytest

from onward.engine.events import Decoded, Event, Failed
from onward.engine.job import Job
from onward.engine.thread import EngineThread
from onward.errors import EngineStopped, Overloaded
from onward.sampling import sampler

from .harness import make_engine, make_job, slow_down


class Inbox:
    """Takes events on the engine thread and lets a test wait for what it looks for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, events: Sequence[Event]) -> None:
        with self._changed:
            self.events += events
            self._changed.notify_all()

    def wait_for(self, predicate: Callable[[Event], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(predicate, self.events)), timeout=30)


def started(*, rows: int = 64, max_waiting: int = 8) -> tuple[EngineThread, Inbox]:
    inbox = Inbox()
    thread = EngineThread(make_engine(rows=rows), max_waiting=max_waiting)
    thread.start(inbox)
    return thread, inbox


def ended(job: Job) -> Callable[[Event], object]:
    return lambda event: isinstance(event, Decoded) and event.job == job.id and event.finish_reason


def test_a_job_is_done_and_the_thread_waits_for_the_next() -> None:
    thread, inbox = started()
    for _ in range(2):
        job = make_job(max_tokens=5)
        thread.submit([job])
        inbox.wait_for(ended(job))
    thread.stop()
    assert thread.engine.cache.pool.used == 0


def test_over_the_limit_a_submission_is_refused_and_later_ones_are_taken() -> None:
    thread, inbox = started(max_waiting=2, rows=1)
    inbox_gate = threading.Event()
    original = thread.engine.model.evaluate
    thread.engine.model.evaluate = lambda rows, hook: (inbox_gate.wait(30), original(rows, hook))[1]
    first = make_job(max_tokens=2)
    thread.submit([first])
    jobs = [make_job(max_tokens=2, request=9) for _ in range(2)]
    thread.submit(jobs)
    with pytest.raises(Overloaded) as refused:
        for _ in range(3):
            thread.submit([make_job(max_tokens=2)])
    assert int(refused.value.headers["retry-after"]) >= 1
    inbox_gate.set()
    for job in (first, *jobs):
        inbox.wait_for(ended(job))
    late = make_job(max_tokens=2)
    thread.submit([late])
    inbox.wait_for(ended(late))
    thread.stop()


def test_a_cancelled_request_is_silent_from_the_next_step_on() -> None:
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


def test_a_crash_fails_every_job_present_and_future() -> None:
    thread, inbox = started()

    thread.engine.model.evaluate = broken
    jobs = [make_job(max_tokens=5) for _ in range(3)]
    thread.submit(jobs)
    for job in jobs:
        inbox.wait_for(lambda event, job=job: isinstance(event, Failed) and event.job == job.id)
    assert thread.state.status == "crashed" and "no more memory" in (thread.state.crash_reason or "")
    with pytest.raises(EngineStopped):
        thread.submit([make_job()])
    thread.stop()


def broken(*_: object) -> None:
    raise RuntimeError("no more memory")


def stop(thread: EngineThread) -> None:
    thread.stop()


def crash(thread: EngineThread) -> None:
    thread.engine.model.evaluate = broken
    thread.submit([make_job()])


def crash_without_events(thread: EngineThread) -> None:
    thread._deliver = broken
    thread.submit([make_job()])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", [stop, crash, crash_without_events])
def test_however_the_engine_ends_its_threads_end_with_it_and_its_model_is_closed_last(monkeypatch, end) -> None:
    monkeypatch.setattr(sampler, "MIN_LOGITS_PER_THREAD", 1)
    before, inbox = set(threading.enumerate()), Inbox()
    thread = EngineThread(make_engine(threads=3), max_waiting=8)
    at_close: list[int] = []
    thread.engine.model.close = lambda: at_close.append(len(set(threading.enumerate()) - before))  # type: ignore[method-assign]
    thread.start(inbox)
    job = make_job(choices=3, ignore_end=True)
    thread.submit([job])
    inbox.wait_for(ended(job))
    assert len(set(threading.enumerate()) - before) == 3, "the step was shared"
    end(thread)
    thread._thread.join(20)
    assert set(threading.enumerate()) <= before
    assert at_close == [1], "only the engine's own thread is left to read what the model owns"
    thread.stop()
    thread.engine.close()


def test_stopping_ends_what_runs_once_and_refuses_what_comes() -> None:
    thread, inbox = started()
    slow_down(thread.engine)
    jobs = [make_job(max_tokens=1900, ignore_end=True) for _ in range(3)]
    thread.submit(jobs)
    inbox.wait_for(lambda event: isinstance(event, Decoded))
    thread.stop()
    failed = [event.job for event in inbox.events if isinstance(event, Failed)]
    assert sorted(failed) == sorted(job.id for job in jobs)
    assert thread.engine.cache.pool.used == 0
    with pytest.raises(EngineStopped):
        thread.submit([make_job()])
    thread.stop()


def test_with_no_queue_at_all_an_idle_engine_still_answers() -> None:
    thread, inbox = started(max_waiting=0, rows=1)
    for _ in range(3):
        job = make_job(max_tokens=2)
        thread.submit([job])
        inbox.wait_for(ended(job))
        while not thread.engine.idle:
            pass
    thread.stop()


def test_events_of_the_step_that_failed_are_delivered_all_the_same() -> None:
    thread, inbox = started()
    original = thread.engine.model.evaluate

    def poisoned(rows, before_compute):
        logits = original(rows, before_compute)
        logits[-1] = float("nan")
        return logits

    thread.engine.model.evaluate = poisoned
    scored, broken = make_job("the cat", max_tokens=0), make_job("a dog", max_tokens=4)
    thread.submit([scored, broken])
    inbox.wait_for(lambda event: isinstance(event, Failed) and event.job == broken.id)
    assert any(map(ended(scored), inbox.events))
    thread.stop()


def test_events_of_a_step_are_delivered_when_the_next_one_computes() -> None:
    thread, inbox = started()
    original = thread.engine.model.evaluate
    delivered: list[list[int]] = []

    def watched(rows, before_compute):
        before = len(inbox.events)
        before_compute()
        delivered.append([before, len(inbox.events)])
        return original(rows, before_compute)

    thread.engine.model.evaluate = watched
    job = make_job("the cat", max_tokens=4, ignore_end=True)
    thread.submit([job])
    inbox.wait_for(ended(job))
    thread.stop()
    assert delivered == [[0, 0], [0, 2], [2, 3], [3, 4]], "nothing is delivered while a step is prepared"
    assert len(inbox.events) == 5


def test_an_end_is_delivered_at_once_when_its_last_companion_is_cancelled() -> None:
    thread, inbox = started()
    slow_down(thread.engine)
    short, endless = make_job(max_tokens=3, ignore_end=True), make_job(max_tokens=1900, ignore_end=True)
    count = 0

    def deliver(events: Sequence[Event]) -> None:
        nonlocal count
        inbox(events)
        count += sum(isinstance(event, Decoded) and event.job == short.id for event in events)
        if count == 2:  # the third token is sampled while this cancel lies in the mailbox
            thread.cancel(endless.request)

    thread._deliver = deliver
    thread.submit([short, endless])
    inbox.wait_for(ended(short))
    thread.stop()
    assert not any(isinstance(event, Failed) for event in inbox.events), "the other was cancelled, it did not end here"
