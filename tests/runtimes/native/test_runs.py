"""Runs: what states take in, what of drafts is logged, and which rows do not follow."""

from __future__ import annotations

import numpy as np
import pytest

from onward.engine.model import Row
from onward.kernels.records import RUN
from onward.runtimes.native.runs import MAX_DRAFTS, Runs


def row(start: int, count: int = 1, *, state: int = 0, is_draft: bool = False) -> Row:
    return Row(state, [7] * count, start, [0], 1, state=state, is_draft=is_draft)


def drafted(start: int, num_drafts: int, *, state: int = 0) -> list[Row]:
    """A token and its drafts."""
    return [row(start + index, state=state, is_draft=index > 0) for index in range(1 + num_drafts)]


def step(runs: Runs, *rows: Row) -> list[dict[str, int]]:
    words = np.zeros((len(rows), 8), np.int64)
    runs.begin_step()
    count = runs.fill(words, rows)
    return [dict(zip(RUN.fields, line, strict=True)) for line in words[:count].tolist()]


def run(first_row: int, rows: int, slot: int, known: int, drafts: int = 0, **log: int) -> dict[str, int]:
    fields = {"first_row": first_row, "rows": rows, "slot": slot, "known": known, "drafts": drafts}
    return fields | {"logged": 0, "log": 0, "next_log": 0} | log


def test_rows_of_a_sequence_are_a_run() -> None:
    runs = Runs(3)
    assert step(runs, row(0, 5), row(0, 2, state=2)) == [run(0, 5, 0, 0), run(5, 2, 2, 0)]
    assert step(runs, row(2, state=2), row(5), row(6), row(7, 3)) == [run(0, 1, 2, 2), run(1, 5, 0, 5)]
    assert step(runs, row(9)) == [run(0, 1, 0, 10)], "the newest row, once more"
    assert step(runs, row(0, 4)) == [run(0, 4, 0, 0)], "a sequence begins"


def test_accepted_drafts_are_taken_in_by_the_next_step() -> None:
    runs = Runs(2)
    step(runs, row(0, 5), row(0, 3, state=1))
    first, second = step(runs, *drafted(5, 3), *drafted(3, 2, state=1))
    half = first["next_log"]
    assert first == run(0, 4, 0, 5, 3, next_log=half) and second == run(4, 3, 1, 3, 2, next_log=half + 3)
    accepted, rejected = step(runs, *drafted(8, 1), *drafted(4, 1, state=1))
    other = MAX_DRAFTS - half
    assert accepted == run(0, 2, 0, 6, 1, logged=2, log=half, next_log=other)
    assert rejected == run(2, 2, 1, 4, 1, log=half + 3, next_log=other + 1)
    assert step(runs, row(10)) == [run(0, 1, 0, 9, logged=1, log=other)]


def test_drafts_are_kept_for_one_step() -> None:
    runs = Runs(2)
    step(runs, row(0, 5), row(0, 2, state=1))
    step(runs, *drafted(5, 3))
    step(runs, row(2, state=1))
    with pytest.raises(RuntimeError, match="continues at position 8, but its state has taken in 6"):
        step(runs, row(8))
    assert step(Runs(1), row(0, 2)) == [run(0, 2, 0, 0)]


def test_neither_a_copy_nor_a_new_sequence_has_drafts() -> None:
    runs = Runs(2)
    step(runs, row(0, 5), row(0, 5, state=1))
    step(runs, *drafted(5, 2), *drafted(5, 2, state=1))
    runs.copy(0, 1)
    with pytest.raises(RuntimeError, match="continues at position 7"):
        step(runs, row(7, state=1))
    assert step(runs, row(0, 3)) == [run(0, 3, 0, 0)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(6)], "continues at position 6, but its state has taken in 5"),
        ([row(3)], "continues at position 3, but its state has taken in 5"),
        ([row(4, 2)], "continues at position 4, but its state has taken in 5"),
        ([row(5, is_draft=True)], "continues at position 5"),
        ([row(5), row(7, is_draft=True)], "continues at position 7, not after its last row"),
        ([*drafted(5, 2), row(8)], "continues at position 8, not after its last row"),
        ([row(0, state=2)], "has none of the 2 states"),
        ([row(5), row(0, state=1), row(6)], "not next to each other"),
        (drafted(5, MAX_DRAFTS + 1), f"More than {MAX_DRAFTS} tokens"),
    ],
)
def test_rows_that_do_not_follow_are_refused(rows: list[Row], message: str) -> None:
    runs = Runs(2)
    step(runs, row(0, 5))
    with pytest.raises(RuntimeError, match=message):
        step(runs, *rows)
