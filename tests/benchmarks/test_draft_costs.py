"""The benchmark of what draft models cost: its figures are speeds relative to decoding without drafts."""

from __future__ import annotations

import argparse

import pytest
from benchmarks.draft_costs import Completions, Load, Machine, never, plain_times, random_text, speeds, tables


@pytest.mark.parametrize("is_known", [False, True])
def test_plain_times_are_those_of_an_engine_without_drafts(is_known: bool) -> None:
    machine = Machine(0.05, change=0.3, is_known=is_known)
    completions = Completions(machine, draft=None)
    for seed in (1, 2):
        times = completions.complete(random_text(40, seed), random_text(50, seed + 10), never)
        assert times == pytest.approx(plain_times(times, machine))


def test_a_good_draft_model_saves_time_and_a_bad_one_costs_little() -> None:
    speed, least = speeds(Load(2, 64, 256, 0.05), 0.05, 1.0)
    assert speed > 2.0 and 0.97 <= least <= 1.0
    speed, least = speeds(Load(2, 64, 256, 0.05), 0.05, 0.0)
    assert 0.97 <= least <= speed < 1.0


def test_there_is_a_table_for_each_number_of_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(
        out=[16, 32], tokens=32, prompt=20, row=0.05, costs=[0.1, 3.0], right=[0.0, 1.0], mtp=True
    )
    found = list(tables(options))
    assert [(each["out"], each["texts"], each["cost"]) for each in found] == [
        (16, 2, 0.1), (16, 2, 3.0), (32, 1, 0.1), (32, 1, 3.0),
    ]  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "2 texts of 16 tokens after prompts of 20" and lines[4].split()[0] == "3.00"
    assert all(0.97 <= least <= 1.0 for each in found for _, least in each["speeds"])
