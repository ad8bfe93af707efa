"""The dispatch of live jobs: what is delivered and sent, report by report, and which jobs are blamed for lost
engines."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.engine.client import Cancel, CancelChoice, Command, Submit
from onward.engine.events import Decoded, EngineFinishReason, Event, Failed, Prefilled
from onward.engine.job import Job, ResumedChoice
from onward.engine_load import EngineLoad
from onward.engines.child.dispatch import POLICY, Dispatch, Suspects
from onward.engines.child.link import StepReport
from onward.sampling.outputs import Sampled
from tests.engine.harness import make_job


class Machine:
    """Sends jobs to engine after engine as `Suspects` allows, until all have ended. `poisons` end the engine that
    begins them; any other job makes progress and ends. `max_rows` jobs begin at a time."""

    def __init__(self, jobs: Collection[int], poisons: Collection[int], max_rows: int = 100) -> None:
        self.live = dict.fromkeys(jobs)
        self.poisons = set(poisons)
        self.max_rows = max_rows
        self.suspects = Suspects()
        self.culprits: list[int] = []
        self.num_engines = 0

    def run(self) -> None:
        while self.live:
            self.num_engines += 1
            self._run_engine()
            assert self.num_engines < 1000

    def _run_engine(self) -> None:
        sent: list[int] = []
        while True:
            sent += self.suspects.select([job for job in self.live if job not in sent])
            begun = [job for job in sent if job in self.live][: self.max_rows]
            if not begun:
                return
            self.suspects.admitted(begun)
            if self.poisons.intersection(begun):
                self._lose(sent)
                return
            self.suspects.progressed(begun)
            for job in begun:
                self.suspects.ended(job)
                del self.live[job]

    def _lose(self, sent: list[int]) -> None:
        culprit = self.suspects.engine_lost([job for job in sent if job in self.live])
        if culprit is not None:
            self.culprits.append(culprit)
            self.suspects.ended(culprit)
            del self.live[culprit]


@given(st.integers(0, 30), st.integers(0, 4), st.integers(1, 8), st.integers(0, 1 << 32))
def test_exactly_the_poisons_are_found(num_others: int, num_poisons: int, max_rows: int, seed: int) -> None:
    jobs = random.Random(seed).sample(range(100), num_others + num_poisons)
    machine = Machine(jobs, jobs[:num_poisons], max_rows)
    machine.run()
    assert sorted(machine.culprits) == sorted(jobs[:num_poisons])
    assert machine.num_engines <= 4 * num_poisons + num_others + 1


def test_a_single_poison_among_many_takes_four_engines() -> None:
    machine = Machine(range(30), [17])
    machine.run()
    assert machine.culprits == [17] and machine.num_engines <= 5


@pytest.mark.parametrize("num_losses", [1, 2, 3])
def test_a_job_is_not_blamed_for_fewer_than_four_losses(num_losses: int) -> None:
    suspects = Suspects()
    for _ in range(num_losses):
        assert suspects.select([1]) == [1]
        suspects.admitted([1])
        assert suspects.engine_lost([1]) is None
    assert suspects.select([1]) == [1]
    suspects.progressed([1])
    for _ in range(3):
        assert suspects.engine_lost([1]) is None, "progress clears it"
        suspects.admitted(suspects.select([1]))


def test_jobs_that_the_engine_had_not_begun_are_not_blamed_soon() -> None:
    suspects = Suspects()
    for _ in range(POLICY.suspect_losses - 1):
        suspects.select([1, 2])
        suspects.admitted([1])
        suspects.progressed([1])
        suspects.engine_lost([1, 2])
    assert suspects.select([1, 2]) == [1, 2] and suspects.trial is None


def test_an_engine_that_is_lost_while_it_receives_jobs_blames_them() -> None:
    suspects = Suspects()
    for _ in range(2):
        assert suspects.select([1, 2]) == [1, 2]
        assert suspects.engine_lost([1, 2]) is None
    assert suspects.select([1, 2]) == [1], "one at a time"


def test_other_jobs_continue_during_a_trial_and_suspects_follow_one_another() -> None:
    suspects = Suspects()
    for _ in range(2):
        suspects.admitted([1, 2])
        suspects.engine_lost([1, 2, 3])
    assert suspects.select([1, 2, 3, 4]) == [1, 3, 4] and suspects.trial == 1
    assert suspects.select([2, 5]) == [5]
    suspects.progressed([1])
    assert suspects.select([2]) == [2] and suspects.trial == 2
    suspects.ended(2)
    assert suspects.trial is None and suspects.select([6]) == [6]


def test_a_suspect_that_is_lost_with_an_engine_during_its_trial_is_tried_alone_next() -> None:
    suspects = Suspects()
    for _ in range(3):
        suspects.select([1, 2])
        suspects.admitted([1, 2])
        suspects.progressed([2])
        assert suspects.engine_lost([1, 2]) is None
    assert suspects.select([1, 2]) == [1] and suspects.select([2, 3]) == []
    suspects.progressed([1])
    assert suspects.select([2, 3]) == [2, 3], "it was cleared"


def test_a_suspect_that_is_cancelled_holds_no_other_job_back() -> None:
    suspects = Suspects()
    for _ in range(3):
        suspects.select([1, 2])
        suspects.admitted([1, 2])
        suspects.progressed([2])
        suspects.engine_lost([1, 2])
    suspects.ended(1)
    assert suspects.select([2]) == [2]


def test_a_job_that_ends_engines_before_they_begin_it_is_found_though_others_make_progress() -> None:
    """As when it breaks the scheduler: the engine never reports that it has begun."""
    suspects = Suspects()
    for number in range(POLICY.suspect_losses):
        assert suspects.select([1, 2]) == [1, 2], number
        suspects.admitted([1])
        suspects.progressed([1])
        assert suspects.engine_lost([1, 2]) is None
    assert suspects.select([1, 2]) == [1, 2] and suspects.trial == 2
    suspects.progressed([1])
    assert suspects.engine_lost([1, 2]) is None
    assert suspects.select([1, 2]) == [2]
    assert suspects.engine_lost([2]) == 2


def test_a_job_that_waited_through_many_losses_is_cleared_by_its_first_event() -> None:
    suspects = Suspects()
    for _ in range(POLICY.suspect_losses - 1):
        suspects.progressed([1])
        suspects.engine_lost([1, 2])
    suspects.progressed([1, 2])
    suspects.engine_lost([1, 2])
    assert suspects.select([1, 2]) == [1, 2] and suspects.trial is None


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
