"""The policy for losses in a row, of every kind of engine that may be lost."""

from __future__ import annotations

import pytest

from onward.engines.child.dispatch import POLICY as CHILD_JOB
from onward.engines.cluster.flight import POLICY as FLIGHT
from onward.engines.losses import Losses, LossPolicy
from onward.engines.upstreams.engine import POLICY as CHOICE


def first(policy: LossPolicy, what: str, *, is_strike: bool = True) -> int | None:
    """The number of losses in a row after which something is first true; None: not after a hundred."""
    losses = Losses(policy)
    for number in range(1, 101):
        losses.lost(is_strike=is_strike)
        if getattr(losses, what):
            return number
    return None


@pytest.mark.parametrize(
    ("policy", "suspect", "waiting", "struck_out", "unanswered"),
    [(CHILD_JOB, 2, 8, None, None), (FLIGHT, 2, None, 4, 30), (CHOICE, None, None, 3, None)],
    ids=["a job of a child process", "a flight", "a choice of an upstream"],
)
def test_how_many_losses_make_a_suspect_and_a_failure(
    policy: LossPolicy, suspect: int | None, waiting: int | None, struck_out: int | None, unanswered: int | None
) -> None:
    assert first(policy, "is_suspect") == suspect
    assert first(policy, "is_suspect", is_strike=False) == waiting
    assert first(policy, "is_struck_out") == struck_out
    assert first(policy, "is_struck_out", is_strike=False) is None
    assert first(policy, "is_unanswered") == first(policy, "is_unanswered", is_strike=False) == unanswered


def test_progress_clears_losses() -> None:
    losses = Losses(LossPolicy(suspect_strikes=2, suspect_losses=2, max_strikes=2, max_losses=2))
    for _ in range(5):
        losses.lost()
        assert not (losses.is_suspect or losses.is_struck_out or losses.is_unanswered)
        losses.progressed()
    losses.lost()
    losses.lost()
    assert losses.is_suspect and losses.is_struck_out and losses.is_unanswered
