"""The simulation of routing shows the differences that it is meant to show."""

from __future__ import annotations

import pytest

from benchmarks import routing


@pytest.fixture(autouse=True)
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "FEWEST_REQUESTS", 3_000)


def test_prefixes_meet_their_cache_and_no_replica_has_too_much_to_do() -> None:
    found = {policy: routing.simulate(policy, 16, 1) for policy in routing.POLICIES}
    assert found["Onward"].hits > 1.4 * found["two choices"].hits
    assert found["Onward"].imbalance < 1.5 < found["hash of the prefix"].imbalance


def test_faces_that_share_nothing_stay_in_bounds() -> None:
    assert routing.simulate("Onward", 16, 8).imbalance < 1.5


def test_few_prefixes_move_when_a_replica_leaves_or_joins() -> None:
    left, joined = routing.moved(40)
    assert 0 < left < 0.06 and 0 < joined < 0.06
