"""The dispatch of live jobs: what is delivered, and what is sent, report by report."""

from __future__ import annotations

from onward.engine.client import Cancel, CancelChoice, Command, Submit
from onward.engine.events import Decoded, EngineFinishReason, Event, Failed, Prefilled
from onward.engine.job import Job, ResumedChoice
from onward.engine_load import EngineLoad
from onward.engines.child.dispatch import Dispatch
from onward.engines.child.link import StepReport
from onward.sampling.outputs import Sampled
from tests.engine.harness import make_job

LOAD = EngineLoad()


def report(*events: Event, admitted: tuple[int, ...] = ()) -> StepReport:
    return StepReport(list(events), LOAD, list(admitted))


def decoded(job: Job, *tokens: int, choice: int = 0, finish: EngineFinishReason | None = None) -> Decoded:
    return Decoded(job.id, choice, [Sampled(token, 0.0, ()) for token in tokens], finish)


def dispatch_with(*jobs: Job) -> Dispatch:
    dispatch = Dispatch()
    for job in jobs:
        dispatch.add([job])
    dispatch.engine_ready()
    return dispatch


def resumed(commands: list[Command]) -> list[Job]:
    return [job for command in commands if isinstance(command, Submit) for job in command.jobs]


def test_without_an_engine_jobs_are_kept_and_nothing_is_sent() -> None:
    dispatch, job = Dispatch(), make_job()
    assert dispatch.add([job]) == []
    assert (dispatch.num_sent, dispatch.book.num_choices, dispatch.book.num_requests) == (0, 1, 1)
    assert dispatch.engine_ready() == [Submit([job])]
    assert dispatch.num_sent == 1


def test_a_lost_job_is_resumed_with_the_tokens_that_were_delivered() -> None:
    job = make_job(choices=2)
    dispatch = dispatch_with(job)
    events: list[Event] = [Prefilled(job.id, 3), decoded(job, 5, 6), decoded(job, 7, choice=1, finish="stop")]
    assert dispatch.accept(report(*events)).events == events
    assert dispatch.engine_lost().made_progress
    (rest,) = resumed(dispatch.engine_ready())
    assert rest.resume == (ResumedChoice((5, 6)), None)


def test_events_of_jobs_that_have_ended_are_dropped_and_their_choices_cancelled() -> None:
    job, other = make_job(), make_job()
    dispatch = dispatch_with(job, other)
    assert dispatch.cancel(job.request) == [Cancel(job.request)]
    accepted = dispatch.accept(report(Prefilled(job.id, 0), decoded(job, 5), Prefilled(other.id, 0)))
    assert accepted.events == [Prefilled(other.id, 0)]
    assert accepted.commands == [CancelChoice(job.id, 0)]
    assert dispatch.accept(report(decoded(job, 5, finish="stop"))).commands == [], "it has ended there, too"
    assert dispatch.book.num_requests == 1


def test_nothing_of_a_job_follows_its_failure_or_its_end_in_the_same_report() -> None:
    failed, ended = make_job(), make_job()
    dispatch = dispatch_with(failed, ended)
    last: list[Event] = [
        Failed(failed.id, "rejected", "too long"),
        Prefilled(ended.id, 0),
        decoded(ended, 5, finish="stop"),
    ]
    after: list[Event] = [
        decoded(failed, 6),
        Failed(failed.id, "rejected", "again"),
        Failed(ended.id, "rejected", "late"),
    ]
    assert dispatch.accept(report(*last, *after)).events == last
    assert dispatch.book.num_requests == 0


def test_a_crash_that_the_engine_reports_ends_no_job() -> None:
    job = make_job()
    dispatch = dispatch_with(job)
    accepted = dispatch.accept(report(Failed(job.id, "crashed", "the engine crashed: out of memory")))
    assert accepted.events == [] and accepted.crash_reason == "the engine crashed: out of memory"
    dispatch.engine_lost()
    assert resumed(dispatch.engine_ready()) == [job]


def test_a_choice_of_a_resumed_job_is_cancelled_when_the_engine_has_reached_it() -> None:
    job = make_job(choices=2)
    dispatch = dispatch_with(job)
    dispatch.accept(report(Prefilled(job.id, 0), decoded(job, 5), decoded(job, 6, choice=1)))
    dispatch.engine_lost()
    dispatch.engine_ready()
    assert dispatch.cancel_choice(job.id, 0) == []
    accepted = dispatch.accept(report(decoded(job, 7), decoded(job, 8, choice=1)))
    assert accepted.events == [decoded(job, 8, choice=1)]
    assert accepted.commands == [CancelChoice(job.id, 0)]


def test_a_choice_of_a_job_that_was_not_resumed_is_cancelled_at_once() -> None:
    job = make_job(choices=2)
    dispatch = dispatch_with(job)
    dispatch.accept(report(Prefilled(job.id, 0), decoded(job, 5)))
    assert dispatch.cancel_choice(job.id, 0) == [CancelChoice(job.id, 0)]
    assert dispatch.cancel_choice(job.id, 0) == [] and dispatch.cancel_choice(999_999, 0) == []
    dispatch.cancel_choice(job.id, 1)
    assert dispatch.book.num_requests == 0


def test_an_engine_that_delivered_nothing_made_no_progress() -> None:
    job = make_job()
    dispatch = dispatch_with(job)
    dispatch.accept(report(admitted=(job.id,)))
    assert not dispatch.engine_lost().made_progress
    dispatch.engine_ready()
    assert not dispatch.engine_lost().made_progress


def test_after_everything_has_failed_nothing_is_left() -> None:
    jobs = [make_job(), make_job()]
    dispatch = dispatch_with(*jobs)
    assert dispatch.fail_all("stopped", "bye") == [Failed(job.id, "stopped", "bye") for job in jobs]
    assert (dispatch.num_sent, dispatch.book.num_choices, dispatch.book.num_requests) == (0, 0, 0)
    assert dispatch.fail_all("stopped", "bye") == []
