"""Limits of the pacing constants, in virtual time, with the step durations of a 0.5B model on two cores."""

from __future__ import annotations

import statistics

import pytest
from benchmarks.simulate import (
    ATTENTION_MS,
    OVERHEAD_MS,
    ROW_MS,
    STEP_MS,
    Load,
    figures,
    lockstep_tok_s,
    simulate,
    step_ms,
    step_seconds_beside_prompt,
    ttft_behind_prompts,
)

from benchmarks import measure
from onward.engine import pacing
from tests.examples import slow_but


@pytest.mark.parametrize("never_again", [False, True])
@pytest.mark.parametrize("clients", slow_but([32], [32, 64]))
def test_many_clients_do_not_settle_in_a_state_where_few_decode_and_many_wait(
    clients: int, never_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if the cost of decode is never measured again while prompts are prefilled in every step."""
    if never_again:
        monkeypatch.setattr(pacing, "MAX_PREFILL_STEPS", 10**9)
    for seed in range(2):
        outcomes = simulate(Load(clients, prompt=128, out=64, waves=5), seed)
        later = sorted(outcomes, key=lambda outcome: outcome.sent)[clients:]
        waited = statistics.median(outcome.ttft or 0.0 for outcome in later)
        assert waited < 0.3 * statistics.median(outcome.seconds for outcome in later)


@pytest.mark.parametrize("clients", [2, 8, 32])
def test_tokens_beside_prompts_come_at_no_less_than_half_the_pace_of_steps_in_which_all_clients_decode(
    clients: int,
) -> None:
    load = Load(clients, prompt=128, out=64, waves=5)
    found = figures(load, simulate(load, jitter=0.0))
    decode_ms = step_ms(clients) + OVERHEAD_MS + (ROW_MS + ATTENTION_MS * 192) * clients
    assert found["itl_p95"] <= pacing.MAX_STEP_STRETCH * decode_ms + step_ms(8)


def test_staggered_requests_have_nearly_the_throughput_of_lockstep() -> None:
    load = Load(8, prompt=128, out=64, waves=12)
    found = figures(load, simulate(load, jitter=0.0))
    assert found["of_lockstep"] > 0.95
    assert found["ttft_p50"] < 250.0


def test_a_long_prompt_slows_the_steps_of_running_streams_by_less_than_a_factor_of_three() -> None:
    quiet, prefilling = step_seconds_beside_prompt(4, 4000)
    slow, usual = measure.percentile(prefilling, 95), measure.percentile(quiet, 50)
    assert slow is not None and usual is not None
    assert 1.5 < slow / usual < 3.0


def test_a_simulation_is_deterministic() -> None:
    load = Load(4, prompt=40, out=8, waves=2)
    outcomes = simulate(load, seed=3)
    assert outcomes == simulate(load, seed=3)
    assert [outcome.tokens for outcome in outcomes] == [8] * 8


def test_step_durations_follow_the_table_and_its_multiples() -> None:
    assert step_ms(8) == STEP_MS[8]
    assert step_ms(12) == pytest.approx((STEP_MS[8] + STEP_MS[16]) / 2)
    assert step_ms(1024) == 2 * step_ms(512)
    assert lockstep_tok_s(Load(32, 128, 64, 1)) > lockstep_tok_s(Load(8, 128, 64, 1)) > 200.0


@pytest.mark.parametrize("streams", [0, 4])
def test_a_short_prompt_after_a_dozen_long_ones_starts_nearly_as_soon_as_after_one(streams: int) -> None:
    """In a single first-come queue it took 35 s, and 47 s with four streams running."""
    assert ttft_behind_prompts(12, streams) < 2 * ttft_behind_prompts(1, streams)
