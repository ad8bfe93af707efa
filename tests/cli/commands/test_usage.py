"""`onward usage`: sums by key, model and day, as a table, for spreadsheets and for programs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from msgspec.structs import replace

from onward.service.ledger import write_row
from tests.service.databases import new_store
from tests.service.spool_rows import EMPTY

from ..conftest import onward

DAY_MS = 86_400_000


def fill(folder: Path, prompt_cost: int = 250_000) -> tuple[str, ...]:
    store = new_store(folder / "onward.db")
    with store.begin() as connection:
        for number, (name, model, day) in enumerate(
            [("alice", "=m", 0), ("alice", "n", 1), ("bob", "=m", 1), ("bob", "=m", 9)]
        ):
            row = replace(
                EMPTY, id=str(number), key_id=f"key_{name}", key_name=name, model=model, ended_ms=day * DAY_MS + 5,
                prompt_tokens=10, cached_tokens=4, completion_tokens=5, prompt_cost=prompt_cost, completion_cost=1,
            )  # fmt: skip
            write_row(connection, row, None, None)
    store.close()
    return ("usage", "--data-dir", str(folder), "--since", "1970-01-01", "--until", "1970-01-05")


def test_sums_by_key_as_json_are_exact(tmp_path: Path) -> None:
    found = json.loads(onward(*fill(tmp_path), "--format", "json").stdout)
    numbers = {"requests": 2, "prompt_tokens": 20, "cached_tokens": 8, "completion_tokens": 10, "cost": 0.500002}
    assert found == [
        {"key": "alice", **numbers},
        {
            "key": "bob",
            "requests": 1,
            "prompt_tokens": 10,
            "cached_tokens": 4,
            "completion_tokens": 5,
            "cost": 0.250001,
        },
    ]


def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe_and_numbers_do_not(tmp_path: Path) -> None:
    rows = list(csv.reader(io.StringIO(onward(*fill(tmp_path), "--by", "model,day", "--format", "csv").stdout)))
    assert rows[0][:3] == ["model", "day", "requests"]
    assert [row[:3] for row in rows[1:]] == [
        ["'=m", "1970-01-01", "1"],
        ["'=m", "1970-01-02", "1"],
        ["n", "1970-01-02", "1"],
    ]


def test_small_costs_have_no_exponent(tmp_path: Path) -> None:
    words = fill(tmp_path, prompt_cost=12)
    assert onward(*words).stdout.splitlines()[1].split()[-1] == "0.000026"
    assert onward(*words, "--format", "csv").stdout.splitlines()[2].endswith(",0.000013")


def test_usage_is_a_table_by_default_and_wrong_arguments_are_errors(tmp_path: Path) -> None:
    words = fill(tmp_path)
    shown = onward(*words).stdout.splitlines()
    assert shown[1].split()[:2] == ["alice", "2"]
    assert onward(*words, "--format", "text").stdout.splitlines() == shown
    assert onward(*words, "--by", "colour").exit_code == 2
    assert onward("usage", "--since", "yesterday").exit_code == 2
    assert onward("usage").exit_code == 1
