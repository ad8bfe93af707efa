"""The parity table is complete, without duplicates, and its page is up to date."""

from __future__ import annotations

from collections import Counter

from onward.api.openai.parameters import PARAMETERS
from onward.errors import ApiError

from . import page
from .rows import AREAS, ELSEWHERE, ROWS
from .rows_front_ends import COVERED as OF_FRONT_ENDS
from .rows_values import COVERED


def test_every_golden_case_has_a_row_or_names_its_test() -> None:
    covered = {number for row in ROWS for number in row.golden} | set(ELSEWHERE)
    assert covered == set(range(1, page.GOLDEN_CASES + 1))


def test_no_two_rows_share_an_id() -> None:
    duplicates = [name for name, count in Counter(row.id for row in ROWS).items() if count > 1]
    assert duplicates == []


def test_every_parameter_of_the_product_has_rows_of_its_own() -> None:
    assert {row.name for row in PARAMETERS} == COVERED | OF_FRONT_ENDS


def test_every_row_names_its_source() -> None:
    assert all(row.source and row.says and row.sent for area in AREAS for row in area.rows)


def test_every_status_that_the_product_answers_with_has_a_row_or_names_its_test() -> None:
    """Wrong keys are the only thing whose rate is limited."""
    elsewhere = dict.fromkeys((403, 408, 415, 429, 431), "tests/server")
    kinds: list[type[ApiError]] = [ApiError, *_descendants(ApiError)]
    for kind in kinds:
        rows = [row for row in ROWS if f"{kind.status}" in f"{row.expected} {row.says}"]
        assert rows or kind.status in elsewhere, kind


def _descendants(kind: type[ApiError]) -> list[type[ApiError]]:
    return [each for child in kind.__subclasses__() for each in (child, *_descendants(child))]


def test_the_page_is_up_to_date() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run `python -m tests.parity.page`"
