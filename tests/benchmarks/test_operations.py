"""The shares of a step's operations: every record of the tape is measured once, under a name."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.measure import BenchmarkError

from benchmarks import operations

pytestmark = pytest.mark.usefixtures("small_memory")


def measured(*flags: str) -> dict[str, Any]:
    """Return what the benchmark reports."""
    found: dict[str, Any] = {}
    operations.main(operations.arguments().parse_args(flags), found.update)
    return found


def test_every_operation_of_a_step_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    report = measured("--rows", "1", "3", "--context", "40", "--prefill", "70", "--runs", "2")
    assert report["read_gb_s"] > 0
    assert list(report["steps"]) == ["1 rows", "3 rows", "a prompt of 70"]
    figures = [step["operations"] for step in report["steps"].values()]
    counts = [{name: each["count"] for name, each in found.items()} for found in figures]
    assert counts[0] == counts[1] and counts[0]["attention"] == counts[0]["gated unit"] > 1
    twice = {name: count - counts[0][name] for name, count in counts[2].items() if count != counts[0][name]}
    assert twice.pop("rotation, keys and values") == twice.pop("norms") == 1  # the last layer's keys and values
    assert list(twice.values()) == [2]
    assert any(name.startswith("product Q8_0 8192 x ") for name in counts[0])
    assert all(each["seconds"] > 0 for found in figures for each in found.values())
    assert all(step["seconds"] > 0 for step in report["steps"].values())
    for found in figures:
        assert all((each["bytes"] > 0) == name.startswith("product") for name, each in found.items())
    assert "x attention" in capsys.readouterr().out


def test_a_long_prompt_is_measured_in_its_chunks() -> None:
    steps = measured("--rows", "--prefill", "70", "600", "--runs", "1")["steps"]
    short, long = (step["operations"] for step in steps.values())
    assert long["attention"]["count"] == 2 * short["attention"]["count"] - 1  # only the last chunk has a last row
    assert list(long) == sorted(long, key=lambda name: -long[name]["seconds"])


def test_what_does_not_fit_is_reported_in_one_message() -> None:
    for flags in (["--context", "5000"], ["--rows", "--prefill", "5000"]):
        with pytest.raises(BenchmarkError, match="not fit into the KV cache"):
            measured(*flags, "--runs", "1")
