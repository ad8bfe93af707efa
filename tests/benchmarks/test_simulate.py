"""Pacing in virtual time: what its constants must not do, on a model that takes as long as a 0.5B one on two cores."""

from __future__ import annotations

import pytest
from benchmarks.simulate import Load, behind, beside, figures, lockstep_tok_s, padded, simulate, step_ms

from benchmarks import measure
from onward.engine import pacing
from onward.runtimes.openvino.batch import padded_count

STUCK = 1500.0
"""Milliseconds to the first token, as a median, where so little is read that most clients wait."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("clients", [32, 64])
def test_many_clients_do_not_settle_where_few_write_and_many_wait(clients: int, seed: int) -> None:
    load = Load(clients, prompt=128, out=64, waves=8)
    found = figures(load, simulate(load, seed))
    assert found["ttft_p50"] < STUCK


def test_some_would_settle_there_if_nothing_ever_told_what_writing_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "STALE", 10**9)
    load = Load(64, prompt=128, out=64, waves=8)
    assert any(figures(load, simulate(load, seed))["ttft_p50"] > STUCK for seed in range(12))


def test_requests_that_take_turns_are_answered_nearly_as_fast_as_in_lockstep() -> None:
    load = Load(8, prompt=128, out=64, waves=12)
    found = figures(load, simulate(load, unsteady=0.0))
    assert found["of_lockstep"] > 0.95
    assert found["ttft_p50"] < 250.0


def test_a_long_prompt_makes_the_steps_of_running_streams_less_than_three_times_as_long() -> None:
    quiet, reading = beside(4, 4000)
    late, usual = measure.percentile(reading, 95), measure.percentile(quiet, 50)
    assert late is not None and usual is not None
    assert 1.5 < late / usual < 3.0


def test_a_load_is_simulated_the_same_way_every_time() -> None:
    load = Load(4, prompt=40, out=8, waves=2)
    outcomes = simulate(load, seed=3)
    assert outcomes == simulate(load, seed=3)
    assert [outcome.tokens for outcome in outcomes] == [8] * 8


@pytest.mark.parametrize("singles", [True, False])
def test_steps_have_the_sizes_that_the_runtime_gives_them(singles: bool) -> None:
    sizes = range(1, 600)
    assert [padded(size, singles=singles) for size in sizes] == [padded_count(size, singles=singles) for size in sizes]


def test_steps_cost_what_the_table_says_and_long_ones_several_times_that() -> None:
    assert step_ms(8) == 20.8
    assert step_ms(12) == pytest.approx((20.8 + 27.4) / 2)
    assert step_ms(1024) == 2 * step_ms(512)
    assert lockstep_tok_s(Load(32, 128, 64, 1)) > lockstep_tok_s(Load(8, 128, 64, 1)) > 200.0


@pytest.mark.parametrize("writers", [0, 4])
def test_a_short_prompt_behind_a_dozen_long_ones_is_read_nearly_as_soon_as_behind_one(writers: int) -> None:
    """In one line with them it took 35 s, and 47 beside four streams."""
    assert behind(12, writers) < 2 * behind(1, writers)
