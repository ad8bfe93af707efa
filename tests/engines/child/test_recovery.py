"""When a lost engine is started again."""

from __future__ import annotations

from onward.engines.child.recovery import MAX_FRUITLESS_LOSSES, RESTART_DELAYS, STABLE_SECONDS, RestartPolicy


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


def test_progress_and_a_long_life_begin_anew() -> None:
    for made_progress, seconds in ((True, 0.0), (False, STABLE_SECONDS)):
        policy = RestartPolicy()
        for _ in range(MAX_FRUITLESS_LOSSES - 1):
            assert policy.could_not_start() is not None
        assert policy.engine_lost(made_progress=made_progress, seconds=seconds) == 0
        assert policy.engine_lost(made_progress=False, seconds=0) == 0
