"""The benchmark of the ledger compares equal work, with and without, within a round."""

from __future__ import annotations

import pytest
from benchmarks.engine_process import Turn
from benchmarks.ledger import WITH, WITHOUT, arguments, compare, run, table


def test_ratios_are_taken_within_a_round() -> None:
    sessions = [
        [
            {WITHOUT: Turn(100.0, 5.0, 1.0, 2.0), WITH: Turn(99.0, 6.0, 1.0, 2.1)},
            {WITHOUT: Turn(50.0, 9.0, 2.0, 4.0), WITH: Turn(50.0, 9.5, 2.0, 4.0)},
        ],
        [{WITHOUT: Turn(200.0, 4.0, 1.0, 2.0), WITH: Turn(190.0, 4.25, 1.0, 2.5)}],
    ]
    found = compare(sessions)
    assert (found["throughput_ratio"]["low"], found["throughput_ratio"]["high"]) == (0.95, 1.0)
    assert found["throughput_ratio"]["median"] == pytest.approx(0.99)
    assert found["cpu_ratio"]["median"] == pytest.approx(1.05)
    assert found["ttft_added_ms"]["median"] == 0.5
    assert "99.00%" in table({"32": found})


@pytest.mark.slow
def test_both_servers_are_measured() -> None:
    options = arguments().parse_args(
        ["--clients", "2", "--out", "4", "--prompt", "8", "--rounds", "1", "--waves", "1", "--sessions", "2"]
    )
    assert set(run(options)) == {"2"}
