"""The bar of a running batch."""

from __future__ import annotations

from onward.cli.batch.progress import BAR_CELLS, Counts, bar


def test_a_bar_before_the_first_line() -> None:
    assert bar(Counts(total=1500), 3.0) == "─" * BAR_CELLS + " 0/1,500"


def test_a_bar_with_everything() -> None:
    counts = Counts(total=100, answered=46, rejected=3, unsent=1, tokens=500, finished_before=30)
    assert bar(counts, 10.0) == "━" * 20 + "─" * 20 + " 50/100 50 tok/s 3 rejected 1 not sent 0:00:25 left"


def test_a_full_bar() -> None:
    assert bar(Counts(total=3, answered=3), 1.0) == "━" * BAR_CELLS + " 3/3 0:00:00 left"
    assert bar(Counts(), 1.0) == "─" * BAR_CELLS + " 0/0"
