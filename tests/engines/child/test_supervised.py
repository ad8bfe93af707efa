"""Whatever happens to the engines, a supervised job ends exactly once, with the events of an undisturbed one."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.engine.client import AdapterOutcome, LoadAdapter, Submit
from onward.engine.events import Decoded, Event, Failed, Prefilled
from onward.engine.job import Job
from onward.engines.child.recovery import MAX_FRUITLESS_LOSSES
from onward.engines.child.supervised import SupervisedEngine
from onward.errors import EngineStopped, ModelFolderError, SetupError
from onward.model_files.toy import END
from onward.sampling.outputs import Sampled
from onward.text.assembler import TextRules
from tests.engine.harness import events_of, make_engine, make_job
from tests.examples import examples
from tests.waiting import PATIENCE_SECONDS, wait_for

from .toy_link import Supervised, ToyLaunch, supervised

MAX_LOSSES = 3
"""Losses per example: one more in a row could condemn a job that makes no progress between them."""
MAX_FAILED_STARTS = 2

Choice = tuple[list[Sampled], str | None]


class Record:
    """What the events of one job report; checks their order. NaN, which is not equal to itself, becomes +inf, which is
    not a log-probability."""

    def __init__(self, events: list[Event]) -> None:
        self.scores: list[list[Sampled | None] | None] = []
        self.choices: dict[int, Choice] = {}
        self.failed: Failed | None = None
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        assert self.failed is None, "no event follows a failure"
        match event:
            case Prefilled():
                self.scores.append(event.scores)
                assert not self.choices, "a prompt is reported before its choices"
            case Decoded():
                tokens, finish = self.choices.get(event.choice, ([], None))
                assert finish is None, "no event follows a finish"
                assert self.scores, "a prompt is reported first"
                sampled = [one._replace(logprob=math.inf) if math.isnan(one.logprob) else one for one in event.tokens]
                self.choices[event.choice] = [*tokens, *sampled], event.finish_reason
            case Failed():
                self.failed = event


def record_of(job: int, events: list[Event]) -> Record:
    return Record([event for event in events if event.job == job])


@functools.lru_cache(1000)
def _undisturbed(job: Job) -> list[Event]:
    return events_of(make_engine(context=320, blocks=32), [job])


def check_whole(job: Job, events: list[Event]) -> None:
    """The job has ended, as if no engine had been lost."""
    found, expected = record_of(job.id, events), Record(_undisturbed(replace(job, id=0, request=0)))
    assert found.failed is None
    assert found.scores == expected.scores, "a prompt is reported exactly once"
    assert found.choices == expected.choices


def check_prefix(job: Job, events: list[Event], cancelled: set[int]) -> None:
    """What was reported of a cancelled job, or of one with cancelled choices, is a prefix of the undisturbed result.
    Choices that were not cancelled are whole."""
    found, expected = record_of(job.id, events), Record(_undisturbed(replace(job, id=0, request=0)))
    assert found.failed is None and len(found.scores) <= 1
    for choice, (tokens, finish) in expected.choices.items():
        got, got_finish = found.choices.get(choice, ([], None))
        if choice in cancelled:
            assert got == tokens[: len(got)] and got_finish in (None, finish)
        else:
            assert (got, got_finish) == (tokens, finish)


def random_job(rng: random.Random, request: int) -> Job:
    return make_job(
        [rng.choice([97, 98, 32]) for _ in range(rng.randrange(1, 90))],
        request=request,
        choices=rng.randrange(1, 4),
        max_tokens=rng.choice([0, 1, 5, 20, 40]),
        seed=rng.randrange(4),
        temperature=rng.choice([0.0, 1.0]),
        score_top=rng.choice([None, None, 0, 2]),
        rules=TextRules(stops=rng.choice([(), ("e",), ("ab", "the t")])),
        frequency_penalty=rng.choice([0.0, 0.7]),
        logit_bias=rng.choice([(), ((END, 5.0),)]),
        prediction=[rng.choice([97, 98, 32]) for _ in range(rng.randrange(20))],
        logprobs=rng.choice([None, 2]),
    )


class Scenario:
    """Submits, cancels, steps and loses engines in an order drawn by `rng`, and records the result that each job must
    have."""

    def __init__(self, engine: Supervised, rng: random.Random) -> None:
        self.engine = engine
        self.rng = rng
        self.jobs: dict[int, Job] = {}
        self.cancelled: set[int] = set()
        """Jobs."""
        self.cancelled_choices: dict[int, set[int]] = {}
        self.losses = self.failed_starts = 0
        self._requests = 0

    def submit(self) -> None:
        """Submit a request with one to three prompts."""
        self._requests += 1
        jobs = [random_job(self.rng, self._requests) for _ in range(self.rng.choice([1, 1, 1, 3]))]
        self.jobs |= {job.id: job for job in jobs}
        self.engine.client.submit(jobs)

    def cancel(self) -> None:
        if self._requests:
            request = self.rng.randrange(1, self._requests + 1)
            self.engine.client.cancel(request)
            self.cancelled |= {job.id for job in self.jobs.values() if job.request == request}

    def cancel_choice(self) -> None:
        """Cancel a choice that has sampled tokens, as text assembly does when it finds the end first."""
        seen = [(each.job, each.choice) for each in self.engine.events if isinstance(each, Decoded)]
        if seen:
            job, choice = self.rng.choice(seen)
            self.engine.client.cancel_choice(job, choice)
            self.cancelled_choices.setdefault(job, set()).add(choice)

    def step(self) -> None:
        self.engine.launch.link.step()

    def lose(self) -> None:
        """Lose the engine in one of the possible ways, perhaps with commands while the next one starts."""
        if self.losses >= MAX_LOSSES:
            return
        self.losses += 1
        launch, rng = self.engine.launch, self.rng
        if self.failed_starts < MAX_FAILED_STARTS and rng.random() < 0.3:
            self.failed_starts += 1
            launch.failures = 1
        elif self.losses < MAX_LOSSES and rng.random() < 0.2:
            self.losses += 1
            launch.lost_at_start = 1
        works_meanwhile = rng.random() < 0.5
        if works_meanwhile:
            launch.gate.clear()
        how = rng.choice(["now", "before report", "in step", "crash report"])
        match how:
            case "now":
                launch.link.lose()
            case "before report":
                launch.link.step(lose_before_report=True)
            case "in step":
                launch.link.step(lose_in_step=True)
            case "crash report":
                launch.link.report_crash()
                launch.link.lose()
        if works_meanwhile:
            for _ in range(rng.randrange(1, 4)):
                rng.choice([self.submit, self.submit, self.cancel, self.cancel_choice])()
            launch.gate.set()
        self.engine.wait_until_running()
        if rng.random() < 0.3:
            self.cancel_choice()

    def run(self, num_operations: int) -> None:
        self.submit()
        operations = [self.submit, self.cancel, self.cancel_choice, self.lose, self.lose] + [self.step] * 12
        for _ in range(num_operations):
            self.rng.choice(operations)()
        self.engine.step_until(self.all_ended)

    def all_ended(self) -> bool:
        return not self.engine.client.num_requests

    def check(self) -> None:
        for job in self.jobs.values():
            if job.id in self.cancelled:
                check_prefix(job, self.engine.events, set(range(job.num_choices)))
            elif choices := self.cancelled_choices.get(job.id):
                check_prefix(job, self.engine.events, choices)
            else:
                check_whole(job, self.engine.events)


@settings(max_examples=examples(80))
@given(st.integers(0, 1 << 32), st.integers(5, 80))
def test_law_2_jobs_end_once_with_the_events_of_an_undisturbed_engine(seed: int, num_operations: int) -> None:
    """Losses before, in and after any step, during a restart and twice in a row; submissions and cancels in between."""
    launch = ToyLaunch(lambda: make_engine(context=320, blocks=32))
    with supervised(launch) as engine:
        scenario = Scenario(engine, random.Random(seed))
        scenario.run(num_operations)
        scenario.check()
    assert len(launch.threads) == 1, "engines are started by the thread that lives as long as they do"
    assert all(link.num_closes for link in launch.links), "every engine is closed, also those that were lost"


def choices_job() -> Job:
    return make_job("once upon a time", choices=3, max_tokens=30, ignore_end=True)


def decoded(engine: Supervised) -> int:
    return sum(isinstance(event, Decoded) for event in engine.events)


def has_decoded(engine: Supervised, goal: int) -> bool:
    """Whether this many events were decoded, or all jobs have ended."""
    return decoded(engine) >= goal or not engine.client.num_requests


@pytest.mark.parametrize("choice", [0, 1, 2])
def test_a_choice_that_ends_while_its_job_is_prefilled_again_takes_no_other_with_it(choice: int) -> None:
    """The engine prefills all choices through the first one, which must not be cancelled before that is done."""
    job = choices_job()
    with supervised() as engine:
        engine.client.submit([job])
        engine.step_until(lambda: decoded(engine) >= 6)
        engine.lose()
        engine.client.cancel_choice(job.id, choice)
        engine.launch.link.step()
        engine.step_until(lambda: not engine.client.num_requests)
        assert engine.launch.link.engine.idle
    check_prefix(job, engine.events, {choice})
    assert record_of(job.id, engine.events).choices[choice][1] is None


def test_a_job_whose_choices_all_ended_above_leaves_the_resumed_engine() -> None:
    job = choices_job()
    with supervised() as engine:
        engine.client.submit([job])
        engine.step_until(lambda: decoded(engine) >= 6)
        engine.lose()
        for choice in range(3):
            engine.client.cancel_choice(job.id, choice)
        assert not engine.client.num_requests
        num_steps = itertools.count()
        engine.step_until(lambda: engine.launch.link.engine.idle and next(num_steps) > 3)
        assert engine.launch.link.engine.counters.num_decode_tokens < 60, "it was not computed to its end"


def test_a_request_that_is_cancelled_while_the_engine_restarts_is_not_sent_to_it() -> None:
    stays, goes = make_job(max_tokens=30, ignore_end=True), make_job(max_tokens=30, ignore_end=True)
    with supervised() as engine:
        engine.client.submit([stays])
        engine.client.submit([goes])
        engine.step_until(lambda: decoded(engine) >= 4)
        engine.launch.gate.clear()
        engine.launch.link.lose()
        engine.client.cancel(goes.request)
        engine.launch.gate.set()
        engine.wait_until_running()
        assert [job.id for command in submits(engine) for job in command.jobs] == [stays.id]
        engine.step_until(lambda: not engine.client.num_requests)
    check_whole(stays, engine.events)


def submits(engine: Supervised) -> list[Submit]:
    """What the current engine was asked to compute."""
    return [command for command in engine.launch.link.received if isinstance(command, Submit)]


def test_jobs_are_resumed_in_the_order_of_submission_and_those_of_a_request_together() -> None:
    requests = [[make_job(request=n, max_tokens=30, ignore_end=True) for _ in range(2)] for n in range(3)]
    with supervised() as engine:
        for jobs in requests:
            engine.client.submit(jobs)
        engine.lose()
        first = [[job.id for job in command.jobs] for command in submits(engine)]
        engine.step_until(lambda: decoded(engine) >= 12)
        engine.lose()
        second = [[job.id for job in command.jobs] for command in submits(engine)]
    assert first == second == [[job.id for job in jobs] for jobs in requests]


def test_the_cached_tokens_of_a_prompt_are_reported_once() -> None:
    """The second engine finds other tokens in its cache; the first Prefilled that was delivered counts."""
    job = make_job("a prompt that both of them share, long enough for a block of it", max_tokens=20, ignore_end=True)
    with supervised() as engine:
        engine.client.submit([replace(job, id=-1, request=-1)])
        engine.step_until(lambda: not engine.client.num_requests)
        engine.client.submit([job])
        engine.step_until(lambda: any(event.job == job.id for event in engine.events))
        for _ in range(3):
            engine.lose()
            engine.launch.link.step()
        engine.step_until(lambda: not engine.client.num_requests)
    (prefilled,) = [event for event in engine.events if isinstance(event, Prefilled) and event.job == job.id]
    assert prefilled.num_cached_tokens > 0
    check_whole(job, engine.events)


def test_a_job_survives_any_number_of_losses_that_leave_it_a_step() -> None:
    jobs = [make_job(choices=2, max_tokens=60, ignore_end=True, seed=seed) for seed in range(4)]
    with supervised() as engine:
        for job in jobs:
            engine.client.submit([job])
        for goal in range(40, 100_000, 40):
            engine.step_until(functools.partial(has_decoded, engine, goal))
            if not engine.client.num_requests:
                break
            engine.lose()
        assert len(engine.launch.links) > 10
    for job in jobs:
        check_whole(job, engine.events)


def test_what_a_lost_engine_still_says_is_ignored() -> None:
    job = make_job(max_tokens=30, ignore_end=True)
    with supervised() as engine:
        engine.client.submit([job])
        engine.step_until(lambda: decoded(engine) >= 3)
        lost = engine.launch.link
        engine.lose()
        lost.report()
        engine.step_until(lambda: not engine.client.num_requests)
    check_whole(job, engine.events)


def test_a_job_is_not_blamed_for_engines_that_are_lost_before_they_get_it() -> None:
    job = make_job(max_tokens=30, ignore_end=True)
    with supervised() as engine:
        engine.client.submit([job])
        engine.step_until(lambda: decoded(engine) >= 3)
        engine.launch.lost_at_start = MAX_FRUITLESS_LOSSES - 1
        engine.lose()
        engine.step_until(lambda: not engine.client.num_requests)
    check_whole(job, engine.events)


FATAL = 122
"""A token that ends every engine which computes a prompt with it."""


def is_fatal(jobs: list[Job]) -> bool:
    return any(FATAL in job.prompt for job in jobs)


def poison_job(request: int | None = None) -> Job:
    return make_job([FATAL, 97, 98], max_tokens=10, request=request)


def failures(engine: Supervised) -> dict[int, str]:
    return {event.job: event.kind for event in engine.events if isinstance(event, Failed)}


@settings(max_examples=examples(25))
@given(st.integers(0, 1 << 32), st.integers(1, 3), st.integers(0, 6))
def test_requests_that_end_engines_are_found_and_harm_no_other(seed: int, num_poisons: int, num_others: int) -> None:
    rng = random.Random(seed)
    others = [random_job(rng, request) for request in range(num_others)]
    poisons = [poison_job(request=100 + number) for number in range(num_poisons)]
    arrivals = rng.sample([*others, *poisons], num_others + num_poisons)
    launch = ToyLaunch(lambda: make_engine(context=320, blocks=32, rows=rng.choice([2, 64])))
    launch.fatal = is_fatal
    with supervised(launch) as engine:
        launch.link.fatal = is_fatal
        for job in arrivals:
            engine.client.submit([job])
            for _ in range(rng.choice([0, 1, 5])):
                engine.launch.link.step()
                engine.wait_until_running()
        engine.step_until(lambda: not engine.client.num_requests)
        assert engine.client.load.recoveries.num_poisoned_requests == num_poisons
    assert failures(engine) == {job.id: "poisoned" for job in poisons}
    for job in others:
        check_whole(job, engine.events)


def test_a_request_that_ends_engines_by_itself_is_found_with_the_fourth() -> None:
    job = poison_job()
    launch = ToyLaunch()
    launch.fatal = is_fatal
    with supervised(launch) as engine:
        engine.client.submit([job])
        engine.step_until(lambda: not engine.client.num_requests)
        engine.wait_until_running()
        assert engine.client.load.recoveries.num_crashes == 4
        assert engine.client.state.status == "running"
    assert failures(engine) == {job.id: "poisoned"}


def test_a_request_that_ends_engines_after_some_tokens_is_found_too() -> None:
    """It makes progress once, then never again."""
    job = make_job(choices=2, max_tokens=40, ignore_end=True)
    launch = ToyLaunch()
    with supervised(launch) as engine:
        engine.client.submit([job])
        engine.step_until(lambda: decoded(engine) >= 20)
        launch.fatal = lambda jobs: bool(jobs)
        engine.lose()
        engine.step_until(lambda: not engine.client.num_requests)
    assert failures(engine) == {job.id: "poisoned"}
    assert decoded(engine) >= 20


def test_engines_that_are_lost_without_jobs_are_given_up_and_everything_fails() -> None:
    with supervised() as engine:
        for _ in range(MAX_FRUITLESS_LOSSES):
            assert engine.client.state.status == "running"
            engine.launch.link.lose()
            engine.wait_until_running()
        assert engine.client.state.status == "crashed"
        with pytest.raises(EngineStopped) as error:
            engine.client.submit([make_job()])
        assert error.value.headers == {"x-should-retry": "false"}


def test_an_engine_that_cannot_start_again_is_given_up() -> None:
    job = make_job(max_tokens=50, ignore_end=True)
    with supervised() as engine:
        engine.client.submit([job])
        engine.step_until(lambda: decoded(engine) >= 3)
        engine.launch.failures = 1000
        engine.launch.link.lose()
        engine.wait_until_running()
        assert engine.client.state.status == "crashed"
        assert engine.launch.num_failed == MAX_FRUITLESS_LOSSES
        wait_for(lambda: bool(failures(engine)), "the failure")
    assert failures(engine) == {job.id: "crashed"}


def test_an_engine_with_other_results_does_not_resume() -> None:
    job = make_job(max_tokens=50, ignore_end=True)
    with supervised() as engine:
        engine.client.submit([job])
        engine.step_until(lambda: decoded(engine) >= 3)
        engine.launch.fingerprint = "fp_other"
        engine.launch.link.lose()
        engine.wait_until_running()
        assert engine.client.state.status == "crashed"
        wait_for(lambda: bool(failures(engine)), "the failure")
        assert not engine.launch.link.received
    assert failures(engine) == {job.id: "crashed"}


def lose(engine: Supervised) -> None:
    engine.launch.link.lose()


@pytest.mark.parametrize("before", [lambda engine: None, lose], ids=["running", "restarting"])
def test_stopping_fails_running_jobs_and_refuses_new_ones(before: Callable[[Supervised], None]) -> None:
    job = make_job(max_tokens=50, ignore_end=True)
    with supervised() as engine:
        engine.client.submit([job])
        engine.step_until(lambda: decoded(engine) >= 3)
        before(engine)
        engine.client.stop()
        engine.client.stop()
        assert engine.client.state.status == "stopped"
        with pytest.raises(EngineStopped):
            engine.client.submit([make_job()])
    assert failures(engine) == {job.id: "stopped"}


def test_an_engine_that_cannot_start_at_first_says_so() -> None:
    launch = ToyLaunch()
    launch.failures = 1
    client = SupervisedEngine(launch)
    client.begin()
    with pytest.raises(SetupError, match="does not fit in memory"):
        client.wait_until_ready()
    assert client.state.status == "stopped"


def test_changed_files_do_not_cause_a_crash_loop(caplog: pytest.LogCaptureFixture) -> None:
    job = make_job(max_tokens=50, ignore_end=True)
    with supervised() as engine:
        engine.client.submit([job])
        engine.step_until(lambda: decoded(engine) >= 3)
        engine.launch.failure, engine.launch.failures = ModelFolderError("m.gguf is cut off."), 3
        engine.launch.link.lose()
        wait_for(lambda: engine.client.state.status == "crashed", "the end")
        assert engine.launch.num_failed == 1
        assert engine.client.load.recoveries.num_failed_starts == 1
    assert failures(engine) == {job.id: "crashed"}
    [line] = [record.getMessage() for record in caplog.records if "no other is started" in record.getMessage()]
    assert "have changed since they were loaded: m.gguf is cut off; 1 request failed" in line


def test_totals_continue_over_restarts_and_recoveries_are_counted() -> None:
    job = make_job(max_tokens=50, ignore_end=True)
    with supervised() as engine:
        engine.client.submit([job])
        engine.step_until(lambda: decoded(engine) >= 10)
        steps = engine.client.load.num_steps
        engine.launch.gate.clear()
        engine.launch.link.lose()
        assert engine.client.state.status == "recovering" and engine.client.state.crash_reason == "killed by SIGKILL"
        assert (engine.client.load.num_running, engine.client.load.num_waiting) == (0, 1)
        engine.launch.gate.set()
        engine.wait_until_running()
        assert engine.client.load.num_steps == steps
        engine.launch.link.step()
        engine.launch.link.step()
        assert engine.client.load.num_steps > steps
        wait_for(lambda: engine.client.load.recoveries.num_recoveries == 1, "the count")
        counts = engine.client.load.recoveries
    assert (counts.num_crashes, counts.num_hangs, counts.num_resumed_requests) == (1, 0, 1) and counts.seconds > 0


def test_an_engine_that_reports_no_step_is_killed_and_its_jobs_continue() -> None:
    job = make_job(max_tokens=50, ignore_end=True)
    with supervised(engine_timeout=0.02) as engine:
        engine.client.submit([job])
        engine.step_until(lambda: decoded(engine) >= 30)
        silent = engine.launch.link
        wait_for(lambda: bool(silent.kill_reasons), "the kill")
        silent.lose(silent.kill_reasons[0])
        engine.wait_until_running()
        engine.step_until(lambda: not engine.client.num_requests)
        wait_for(lambda: engine.client.load.recoveries.num_hangs > 0, "the count")
        assert engine.client.load.recoveries.num_crashes == 0
        assert "did not report a step" in silent.kill_reasons[0] and len(silent.kill_reasons) == 1
    check_whole(job, engine.events)


def test_an_engine_that_is_started_again_loads_its_adapters_before_it_resumes_jobs() -> None:
    with supervised() as engine:
        loaded, refused = (engine.client.load_adapter(name, Path(f"/x/{name}")) for name in "ab")
        link = engine.launch.link
        link.report(outcomes=[AdapterOutcome("a"), AdapterOutcome("b", "It does not fit.")])
        assert loaded.result(PATIENCE_SECONDS) is None
        with pytest.raises(SetupError, match="It does not fit"):
            refused.result(PATIENCE_SECONDS)
        job = replace(make_job(max_tokens=4), adapter="a")
        engine.client.submit([job])
        engine.lose()
        assert engine.launch.link.received == [LoadAdapter("a", "/x/a"), Submit([job])]
        engine.client.unload_adapter("a")
        engine.client.cancel(job.request)
        engine.lose()
        assert engine.launch.link.received == []


def test_a_load_whose_engine_is_lost_is_done_by_the_next_one_unless_that_is_lost_too() -> None:
    with supervised() as engine:
        loads = [engine.client.load_adapter("a", Path("/x/a"))]
        engine.lose()
        assert engine.launch.link.received == [LoadAdapter("a", "/x/a")]
        loads.append(engine.client.load_adapter("b", Path("/x/b")))
        engine.lose()
        with pytest.raises(SetupError, match="Engines were lost repeatedly while they loaded the adapter"):
            loads[0].result(PATIENCE_SECONDS)
        assert engine.launch.link.received == [LoadAdapter("b", "/x/b")]
        engine.launch.link.report(outcomes=[AdapterOutcome("b")])
        assert loads[1].result(PATIENCE_SECONDS) is None
        engine.lose()
        assert engine.launch.link.received == [LoadAdapter("b", "/x/b")]
        assert engine.client.state.status == "running"


def test_an_adapter_that_is_asked_for_while_no_engine_runs_is_loaded_by_the_next_one() -> None:
    with supervised() as engine:
        engine.launch.gate.clear()
        engine.launch.link.lose()
        wait_for(
            lambda: len(engine.launch.threads) > 0 and engine.launch.link.num_closes > 0, "the end of the lost one"
        )
        loading = engine.client.load_adapter("a", Path("/x/a"))
        engine.launch.gate.set()
        engine.wait_until_running()
        assert engine.launch.link.received == [LoadAdapter("a", "/x/a")]
        engine.client.stop()
        with pytest.raises(SetupError, match="stopped while it loaded"):
            loading.result(PATIENCE_SECONDS)


def test_a_hang_does_not_delay_the_discovery_of_the_next_one() -> None:
    """No engine reports a step, so nothing is known about how long one takes."""
    with supervised(engine_timeout=0.02) as engine:
        engine.client.submit([make_job()])
        reasons = []
        for _ in range(2):
            silent = engine.launch.link
            wait_for(lambda: bool(silent.kill_reasons), "the kill")  # noqa: B023
            reasons += silent.kill_reasons
            silent.lose(reasons[-1])
            engine.wait_until_running()
    assert len(reasons) == 2 and reasons[0] == reasons[1]
