"""The book of live jobs: what is delivered, and what is sent, report by report."""

from __future__ import annotations

from onward.engine.client import Cancel, CancelChoice, Command, EngineLoad, Submit
from onward.engine.events import Decoded, EngineFinishReason, Event, Failed, Prefilled
from onward.engine.job import Job, ResumedChoice
from onward.engine_clients.book import JobBook
from onward.engine_clients.link import StepReport
from onward.sampling.outputs import Sampled
from tests.engine.harness import make_job

LOAD = EngineLoad()


def report(*events: Event, admitted: tuple[int, ...] = ()) -> StepReport:
    return StepReport(list(events), LOAD, list(admitted))


def decoded(job: Job, *tokens: int, choice: int = 0, finish: EngineFinishReason | None = None) -> Decoded:
    return Decoded(job.id, choice, [Sampled(token, 0.0, ()) for token in tokens], finish)


def book_with(*jobs: Job) -> JobBook:
    book = JobBook()
    for job in jobs:
        book.add([job])
    book.engine_ready()
    return book


def resumed(commands: list[Command]) -> list[Job]:
    return [job for command in commands if isinstance(command, Submit) for job in command.jobs]


def test_without_an_engine_jobs_are_kept_and_nothing_is_sent() -> None:
    book, job = JobBook(), make_job()
    assert book.add([job]) == []
    assert (book.num_sent, book.num_choices, book.num_requests) == (0, 1, 1)
    assert book.engine_ready() == [Submit([job])]
    assert book.num_sent == 1


def test_a_lost_job_is_resumed_with_the_tokens_that_were_delivered() -> None:
    job = make_job(choices=2)
    book = book_with(job)
    events: list[Event] = [Prefilled(job.id, 3), decoded(job, 5, 6), decoded(job, 7, choice=1, finish="stop")]
    assert book.accept(report(*events)).events == events
    assert book.engine_lost().made_progress
    (rest,) = resumed(book.engine_ready())
    assert rest.resume == (ResumedChoice((5, 6)), None)


def test_events_of_jobs_that_have_ended_are_dropped_and_their_choices_cancelled() -> None:
    job, other = make_job(), make_job()
    book = book_with(job, other)
    assert book.cancel(job.request) == [Cancel(job.request)]
    accepted = book.accept(report(Prefilled(job.id, 0), decoded(job, 5), Prefilled(other.id, 0)))
    assert accepted.events == [Prefilled(other.id, 0)]
    assert accepted.commands == [CancelChoice(job.id, 0)]
    assert book.accept(report(decoded(job, 5, finish="stop"))).commands == [], "it has ended there, too"
    assert book.num_requests == 1


def test_nothing_of_a_job_follows_its_failure_or_its_end_in_the_same_report() -> None:
    failed, ended = make_job(), make_job()
    book = book_with(failed, ended)
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
    assert book.accept(report(*last, *after)).events == last
    assert book.num_requests == 0


def test_a_crash_that_the_engine_reports_ends_no_job() -> None:
    job = make_job()
    book = book_with(job)
    accepted = book.accept(report(Failed(job.id, "crashed", "the engine crashed: out of memory")))
    assert accepted.events == [] and accepted.crash_reason == "the engine crashed: out of memory"
    book.engine_lost()
    assert resumed(book.engine_ready()) == [job]


def test_a_choice_of_a_resumed_job_is_cancelled_when_the_engine_has_reached_it() -> None:
    job = make_job(choices=2)
    book = book_with(job)
    book.accept(report(Prefilled(job.id, 0), decoded(job, 5), decoded(job, 6, choice=1)))
    book.engine_lost()
    book.engine_ready()
    assert book.cancel_choice(job.id, 0) == []
    accepted = book.accept(report(decoded(job, 7), decoded(job, 8, choice=1)))
    assert accepted.events == [decoded(job, 8, choice=1)]
    assert accepted.commands == [CancelChoice(job.id, 0)]


def test_a_choice_of_a_job_that_was_not_resumed_is_cancelled_at_once() -> None:
    job = make_job(choices=2)
    book = book_with(job)
    book.accept(report(Prefilled(job.id, 0), decoded(job, 5)))
    assert book.cancel_choice(job.id, 0) == [CancelChoice(job.id, 0)]
    assert book.cancel_choice(job.id, 0) == [] and book.cancel_choice(999_999, 0) == []
    book.cancel_choice(job.id, 1)
    assert book.num_requests == 0


def test_an_engine_that_delivered_nothing_made_no_progress() -> None:
    job = make_job()
    book = book_with(job)
    book.accept(report(admitted=(job.id,)))
    assert not book.engine_lost().made_progress
    book.engine_ready()
    assert not book.engine_lost().made_progress


def test_after_everything_has_failed_nothing_is_left() -> None:
    jobs = [make_job(), make_job()]
    book = book_with(*jobs)
    assert book.fail_all("stopped", "bye") == [Failed(job.id, "stopped", "bye") for job in jobs]
    assert (book.num_sent, book.num_choices, book.num_requests) == (0, 0, 0)
    assert book.fail_all("stopped", "bye") == []
