"""The book of live jobs: what was delivered, what is left to compute, and which jobs have ended."""

from __future__ import annotations

import pytest

from onward.engine.events import Decoded, EngineFinishReason, Event, Failed, FailureKind, Prefilled
from onward.engine.job import Job, ResumedChoice
from onward.engines.book import Accepted, JobBook
from onward.sampling.outputs import Sampled
from tests.engine.harness import make_job


def decoded(job: Job, *tokens: int, choice: int = 0, finish: EngineFinishReason | None = None) -> Decoded:
    return Decoded(job.id, choice, [Sampled(token, 0.0, ()) for token in tokens], finish)


def book_with(*jobs: Job) -> JobBook:
    book = JobBook()
    book.add(jobs)
    return book


def test_what_was_delivered_does_not_remain() -> None:
    job = make_job(choices=2)
    book = book_with(job)
    events: list[Event] = [Prefilled(job.id, 3), decoded(job, 5, 6), decoded(job, 7, choice=1, finish="stop")]
    assert book.accept(events) == Accepted(events, [], [])
    [rest] = book.remaining([job.id, 999_999])
    assert rest.resume == (ResumedChoice((5, 6)), None) and book.num_choices == 1
    assert book.accept([decoded(job, 8, finish="length")]).ended == [job.id]
    assert job.id not in book and (book.num_choices, book.num_requests) == (0, 0)


def test_a_journal_shares_its_tokens_with_whoever_asks_for_more() -> None:
    job = make_job()
    book = book_with(job)
    tokens = book.journal(job.id).tokens(0)
    book.accept([Prefilled(job.id, 0), decoded(job, 5), decoded(job, 6)])
    assert tokens == [5, 6]


def test_what_follows_an_end_is_dropped_and_said_to_be_computed_still() -> None:
    job = make_job(choices=2)
    book = book_with(job)
    assert book.cancel_choice(job.id, 0) and not book.cancel_choice(job.id, 0)
    assert book.accept([decoded(job, 5), decoded(job, 6, choice=1)]) == Accepted(
        [decoded(job, 6, choice=1)], [], [(job.id, 0)]
    )
    assert book.accept([decoded(job, 5, finish="stop")]).strays == [], "it has ended there, too"
    failed = Failed(job.id, "rejected", "no memory")
    after: list[Event] = [decoded(job, 7, choice=1), failed]
    assert book.accept([failed, *after]) == Accepted([failed], [job.id], [(job.id, 1)])


@pytest.mark.parametrize("kind", ["stopped", "crashed", "lost"])
def test_an_engine_that_ends_does_not_end_its_jobs(kind: FailureKind) -> None:
    job = make_job()
    book = book_with(job)
    assert book.accept([Failed(job.id, kind, "gone")]) == Accepted([], [], [], "gone")
    assert book.remaining(book.jobs) == [job]


def test_a_request_ends_with_all_its_jobs_and_a_failure_once() -> None:
    first, second, other = make_job(request=1), make_job(request=1), make_job(request=2)
    book = book_with(first, second, other)
    assert sorted(book.cancel(1)) == [first.id, second.id] and book.cancel(1) == []
    assert book.fail([first.id, other.id], "lost", "gone") == [Failed(other.id, "lost", "gone")]
    assert book.fail([other.id], "lost", "gone") == [] and not book.jobs
