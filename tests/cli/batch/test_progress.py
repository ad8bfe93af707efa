"""The bar of a running batch."""

from __future__ import annotations

import pytest

from onward.cli.batch.progress import Counts, bar
from onward.cli.output.progress import MAX_BAR_CELLS


def test_a_bar_is_empty_before_the_first_line() -> None:
    assert bar(Counts(total=1500), 3.0, 119) == "─" * MAX_BAR_CELLS + " 0/1,500"


@pytest.mark.parametrize(("width", "cells"), [(119, 40), (79, 28), (59, 8), (58, 0)])
def test_a_bar_takes_what_the_words_leave_of_the_width(width: int, cells: int) -> None:
    counts = Counts(total=100, answered=46, rejected=3, unsent=1, tokens=500, finished_before=30)
    drawn = "━" * (cells // 2) + "─" * (cells - cells // 2)
    line = " 50/100 50 tok/s 3 rejected 1 not sent 0:00:25 left"
    assert bar(counts, 10.0, width) == (drawn + line if cells else line.strip())


def test_a_bar_is_full_when_every_line_is_answered() -> None:
    assert bar(Counts(total=3, answered=3), 1.0, 80) == "━" * MAX_BAR_CELLS + " 3/3 0:00:00 left"
    assert bar(Counts(), 1.0, 80) == "─" * MAX_BAR_CELLS + " 0/0"
