"""Every field of every dialect acts, is refused, or says why it has no meaning: none is accepted and ignored."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest

from onward.api.checks import CHECKS
from onward.api.dialects import DIALECTS, served_dialects
from onward.api.parameter import Parameter
from onward.completions.request import CompletionRequest
from onward.settings import options

OWN = {name: import_module(f"tests.api.test_{name.replace('-', '_')}").OWN_FIELDS for name in DIALECTS}
"""Fields that the dialect's own code reads; its test shows what each does."""


def flat(rows: Iterator[Parameter]) -> Iterator[Parameter]:
    for row in rows:
        yield row
        yield from flat(iter(row.inner))


ROWS = [
    pytest.param(dialect, row, id=f"{route.path}-{row.name}")
    for dialect, routes in DIALECTS.items()
    for route in routes
    for row in flat(iter((route.body or {}).values()))
]


@pytest.mark.parametrize(("dialect", "row"), ROWS)
def test_a_field_acts_or_says_why_not(dialect: str, row: Parameter) -> None:
    assert row.kind == "object" or row.kind in CHECKS
    assert row.help.endswith(".") and row.dialect is not None
    if row.field is not None:
        assert row.field in CompletionRequest.__struct_fields__ or row.field in OWN[dialect]
    elif not row.has_effect:
        assert row.help.startswith("No meaning here: ")
    else:
        assert row.kind in ("fixed", "object", "duration")


def test_the_own_fields_of_dialects_exist() -> None:
    for dialect, routes in DIALECTS.items():
        known = {row.field for each in routes for row in flat(iter((each.body or {}).values()))}
        assert known >= OWN[dialect], dialect


def test_the_setting_names_all_dialects() -> None:
    (setting,) = [each for each in options() if each.name == "dialects"]
    assert setting.parser.choices == ("all", "none", *DIALECTS)  # type: ignore[attr-defined]
    assert served_dialects(("all",)) == tuple(DIALECTS) and served_dialects(("none", "tgi")) == ()
    assert served_dialects(("tgi", "ollama")) == ("ollama", "tgi")
