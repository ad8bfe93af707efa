"""What a draft model's steps cost: whatever is called affordable is, and one slow step is known from a slow model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.engine.draft_cost import MEASURED_ROUNDS, DraftCost

TOKEN, PROMPT_TOKEN, ROW = 1.0, 0.02, 0.3


def seconds_of(num_prompt_tokens: int, num_rows: int) -> float:
    further = num_prompt_tokens * PROMPT_TOKEN + num_rows * ROW
    return TOKEN + further - (PROMPT_TOKEN if num_prompt_tokens else ROW)


def measured() -> DraftCost:
    return DraftCost.measured(seconds_of, 32)


def test_the_shortest_of_several_rounds_counts() -> None:
    """The first one reads the weights from a disk, and anything may happen in another one."""
    delays = iter([50.0, 0.0, 0.0, 0.0, 0.0, 9.0, *[0.0] * 3])
    cost = DraftCost.measured(lambda *step: seconds_of(*step) + next(delays), 32)
    assert next(delays, None) is None and MEASURED_ROUNDS == 3
    assert (cost.token, cost.most_token) == pytest.approx((TOKEN, TOKEN))
    assert cost.affordable(TOKEN + 10.5 * PROMPT_TOKEN, 100, 0) == 10
    assert cost.affordable(TOKEN + 10.5 * ROW, 0, 100) == 10


@given(
    seconds=st.floats(0.0, 40.0),
    num_prompt_tokens=st.integers(0, 300),
    num_rows=st.integers(0, 60),
    from_end=st.booleans(),
    slowness=st.sampled_from([1.0, 0.5, 7.0]),
)
def test_what_is_affordable_fits_into_the_time_and_hardly_more_would(
    seconds: float, num_prompt_tokens: int, num_rows: int, from_end: bool, slowness: float
) -> None:
    cost = measured()
    for _ in range(3):
        cost.observe(0, 1, slowness * TOKEN)
    count = cost.affordable(seconds, num_prompt_tokens, num_rows, from_end=from_end)
    assert 0 <= count <= num_prompt_tokens + num_rows

    def takes(count: int) -> float:
        prompt = max(0, count - num_rows) if from_end else min(count, num_prompt_tokens)
        return slowness * seconds_of(prompt, count - prompt)

    assert not count or takes(count) <= seconds + 1e-9
    if count < num_prompt_tokens + num_rows:
        assert takes(count + 1) > seconds - slowness * ROW - 1e-9


def test_one_slow_step_is_soon_forgotten_and_two_are_believed() -> None:
    cost = measured()
    cost.observe(0, 1, 20 * TOKEN)
    assert cost.most_token == pytest.approx(20 * TOKEN) and cost.token == pytest.approx(TOKEN)
    assert not cost.affordable(10 * TOKEN, 100, 0), "nor is a prompt, which was measured at load only"
    for _ in range(300):
        cost.recover()
    assert cost.most_token < 1.1 * TOKEN
    cost.observe(32, 0, 20 * seconds_of(32, 0))
    assert (cost.token, cost.most_token) == pytest.approx((20 * TOKEN, 20 * TOKEN), rel=0.04)
    for _ in range(300):
        cost.recover()
    assert cost.most_token == pytest.approx(20 * TOKEN, rel=0.06)
    for _ in range(2):
        cost.observe(0, 2, seconds_of(0, 2))
    assert (cost.token, cost.most_token) == pytest.approx((TOKEN, TOKEN)), "nor are two fast ones an accident"


def test_a_model_that_was_slow_for_a_while_is_affordable_again() -> None:
    """While it is not, none of its steps is seen."""
    cost = measured()
    for _ in range(3):
        cost.observe(0, 1, 1000 * TOKEN)
    for _ in range(20_000):
        cost.recover()
    assert not cost.affordable(8 * TOKEN, 0, 10)
    for _ in range(50_000):
        cost.recover()
    assert cost.affordable(8 * TOKEN, 0, 10)


def test_nothing_is_affordable_of_a_model_that_was_not_measured() -> None:
    cost = DraftCost()
    cost.recover()
    assert cost.affordable(1e9, 1, 1) == 0 and cost.most_token > 1e9
