"""When an engine counts as hanging, in virtual time, and when a lost one is started again."""

from __future__ import annotations

from onward.engines.child.recovery import (
    LONGEST_STEP_FACTOR,
    MAX_FRUITLESS_LOSSES,
    NUM_START_REPORTS,
    RESTART_DELAYS,
    STABLE_SECONDS,
    START_FACTOR,
    HangWatch,
    RestartPolicy,
)

TIMEOUT = 10.0


class Watched:
    """A watch that is polled as often as it asks for, in virtual time."""

    def __init__(self, timeout: float = TIMEOUT, *, warm: bool = True) -> None:
        self.now = 1000.0
        self.watch = HangWatch(timeout)
        self.watch.engine_started(self.now)
        if warm:
            for _ in range(NUM_START_REPORTS):
                self.watch.reported(self.now)

    def is_silent_for(self, seconds: float, *, has_jobs: bool = True) -> bool:
        """Whether the engine counts as hanging at some moment of that time."""
        end = self.now + seconds
        hung = False
        while self.now < end:
            self.now = min(self.now + self.watch.poll_seconds, end)
            hung |= self.watch.poll(self.now, has_jobs=has_jobs)
        return hung

    def step(self, seconds: float) -> None:
        assert not self.is_silent_for(seconds)
        self.watch.reported(self.now)


def test_an_engine_with_jobs_that_reports_nothing_hangs() -> None:
    assert not Watched().is_silent_for(TIMEOUT - 1)
    assert Watched().is_silent_for(TIMEOUT + 1)


def test_an_engine_without_jobs_may_be_silent() -> None:
    watched = Watched()
    assert not watched.is_silent_for(100 * TIMEOUT, has_jobs=False)
    assert not watched.is_silent_for(TIMEOUT - 1), "silence counts from the first job on"


def test_each_report_restarts_the_silence() -> None:
    watched = Watched()
    for _ in range(20):
        watched.step(TIMEOUT / 2)


def test_without_a_timeout_nothing_is_a_hang() -> None:
    assert not Watched(timeout=0).is_silent_for(10_000)


def test_the_longest_step_so_far_extends_the_timeout() -> None:
    watched = Watched()
    watched.step(8.0)
    assert not watched.is_silent_for(LONGEST_STEP_FACTOR * 8.0 - 1)
    assert watched.is_silent_for(3)


def test_an_idle_hour_is_not_a_long_step() -> None:
    watched = Watched()
    assert not watched.is_silent_for(3600, has_jobs=False)
    watched.watch.reported(watched.now)
    assert watched.is_silent_for(TIMEOUT + 1)


def test_the_first_steps_of_an_engine_may_take_longer() -> None:
    watched = Watched(warm=False)
    assert not watched.is_silent_for(START_FACTOR * TIMEOUT - 1)
    assert watched.is_silent_for(2)


def test_a_suspension_of_this_process_is_neither_a_hang_nor_a_long_step() -> None:
    watched = Watched()
    watched.step(1.0)
    assert not watched.is_silent_for(0.5)
    watched.now += 3600
    assert not watched.watch.poll(watched.now, has_jobs=True)
    watched.watch.reported(watched.now)
    assert watched.watch.allowed_silence < 2 * TIMEOUT


def test_a_new_engine_is_not_blamed_for_the_silence_of_the_one_before() -> None:
    watched = Watched()
    assert watched.is_silent_for(TIMEOUT + 1)
    watched.watch.engine_started(watched.now)
    assert not watched.is_silent_for(TIMEOUT)


def test_polls_are_neither_so_rare_that_hangs_take_longer_nor_busy() -> None:
    for timeout in (0.0, 0.001, 0.1, 1.0, 60.0, 10_000.0):
        assert 0.01 <= HangWatch(timeout).poll_seconds <= 1


def test_an_engine_that_is_not_watched_is_seldom_polled() -> None:
    assert HangWatch(0).poll_seconds == HangWatch(600).poll_seconds > HangWatch(1).poll_seconds


def test_the_silence_of_an_engine_that_is_lost_is_not_a_step() -> None:
    """The next engine may report that it is idle before it counts as started."""
    watched = Watched()
    assert watched.is_silent_for(TIMEOUT + 1)
    watched.watch.engine_lost()
    watched.watch.reported(watched.now)
    watched.watch.engine_started(watched.now)
    assert watched.watch.allowed_silence == START_FACTOR * TIMEOUT


def test_an_engine_that_made_progress_is_replaced_at_once_any_number_of_times() -> None:
    policy = RestartPolicy()
    assert {policy.engine_lost(made_progress=True, seconds=0.1) for _ in range(1000)} == {0}


def test_losses_without_progress_back_off_and_end() -> None:
    policy = RestartPolicy()
    delays = [policy.engine_lost(made_progress=False, seconds=0.1) for _ in range(MAX_FRUITLESS_LOSSES)]
    assert delays == [*RESTART_DELAYS[: MAX_FRUITLESS_LOSSES - 1], None]


def test_failed_starts_back_off_and_end() -> None:
    policy = RestartPolicy()
    assert policy.engine_lost(made_progress=True, seconds=0.1) == 0
    delays = [policy.could_not_start() for _ in range(MAX_FRUITLESS_LOSSES)]
    assert delays == [*RESTART_DELAYS[1:MAX_FRUITLESS_LOSSES], None]


def test_progress_and_a_long_life_reset_the_count() -> None:
    for made_progress, seconds in ((True, 0.0), (False, STABLE_SECONDS)):
        policy = RestartPolicy()
        for _ in range(MAX_FRUITLESS_LOSSES - 1):
            assert policy.could_not_start() is not None
        assert policy.engine_lost(made_progress=made_progress, seconds=seconds) == 0
        assert policy.engine_lost(made_progress=False, seconds=0) == 0
