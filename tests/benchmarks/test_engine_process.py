"""The benchmark of the engine's process compares equal work, one of the two servers having a second process."""

from __future__ import annotations

import sys

import pytest
from benchmarks.engine_process import PROCESS, THREAD, Turn, arguments, compare, run, table, turn_of
from benchmarks.measure import BenchmarkError
from benchmarks.outcome import Outcome
from benchmarks.render_scale import engine_process_section


def test_differences_are_taken_within_a_round() -> None:
    rounds = [
        {THREAD: Turn(100.0, 5.0, 1.0, 2.0), PROCESS: Turn(90.0, 6.0, 1.0, 3.0)},
        {THREAD: Turn(50.0, 9.0, 2.0, 4.0), PROCESS: Turn(49.0, 9.5, 2.0, 4.0)},
        {THREAD: Turn(200.0, 4.0, 1.0, 2.0), PROCESS: Turn(192.0, 4.25, 1.0, 2.5)},
    ]
    found = compare(rounds)
    assert found["throughput_ratio"]["median"] == pytest.approx(0.96)
    assert found["ttft_added_ms"] == {"median": 0.5, "least": 0.25, "greatest": 1.0, "rounds": 3}
    assert found["cpu_ratio"]["median"] == 1.25
    assert found[THREAD] == {"tok_s": 100.0, "ttft_ms": 5.0, "itl_ms": 1.0, "cpu_ms": 2.0}


def test_a_turn_in_which_a_request_ended_early_does_not_count() -> None:
    whole = Outcome(0.0, 1.0, ttft=0.25, gaps=[0.5, 0.25], tokens=4, chunks=3)
    assert turn_of([whole, whole], 4, 0.016) == Turn(8.0, 250.0, 375.0, 2.0)
    with pytest.raises(BenchmarkError):
        turn_of([whole, whole], 5, None)


@pytest.mark.slow
def test_a_run_on_the_toy_model_measures_both_kinds_of_server() -> None:
    options = ["--model", "toy", "--clients", "2", "--prompt", "8", "--out", "4", "--rounds", "1", "--waves", "1"]
    figures = run(arguments().parse_args([*options, "--token-range", "97:123"]))
    assert figures["clients"]["2"]["throughput_ratio"]["rounds"] == 1
    section = "\n".join(engine_process_section(figures))
    assert section.startswith("| clients |") and "\n| 2 |" in section
    if sys.platform.startswith("linux"):
        assert "\n| engine's process |" in section
        assert [len(figures["memory"][name]) for name in (THREAD, PROCESS)] == [1, 2]
        assert "process: engine process" in table(figures)
