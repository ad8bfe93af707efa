"""Every field of every dialect acts, is refused, or says why it has no meaning: none is accepted and ignored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from onward.api.checks import CHECKS
from onward.api.dialects import DIALECTS, served_dialects
from onward.api.parameter import Parameter
from onward.completions.request import CompletionRequest
from onward.settings import options
from tests.api.served import post, toy_app
from tests.server.fakes import Call, in_loop
from tests.tables import each_row

TESTS = {name: import_module(f"tests.api.test_{name.replace('-', '_')}") for name in DIALECTS}
OWN = {name: test.OWN_FIELDS for name, test in TESTS.items()}
"""Fields that the dialect's own code reads; its test shows what each does."""


def flat(rows: Iterator[Parameter]) -> Iterator[Parameter]:
    for row in rows:
        yield row
        yield from flat(iter(row.inner))


ROWS = [
    (dialect, route.path, row)
    for dialect, routes in DIALECTS.items()
    for route in routes
    for row in flat(iter((route.body or {}).values()))
]


@each_row(("dialect", "path", "row"), ROWS, ids=lambda value: getattr(value, "name", value))
def test_a_field_has_an_effect_or_is_refused_with_the_reason(dialect: str, path: str, row: Parameter) -> None:
    assert row.kind == "object" or row.kind in CHECKS
    assert row.help.endswith(".") and row.dialect is not None
    if row.field is not None:
        assert row.field in CompletionRequest.__struct_fields__ or row.field in OWN[dialect]
    elif not row.has_effect:
        assert row.help.startswith("No meaning here: ")
    else:
        assert row.kind in ("fixed", "object", "duration")


@pytest.mark.parametrize("dialect", DIALECTS)
@in_loop
async def test_the_seed_that_was_drawn_repeats_an_answer(dialect: str) -> None:
    """The header of the response, sent with the same request in the same API."""
    path, body = TESTS[dialect].REQUEST
    fields = body | ({"model": "toy"} if "model" in body else {})
    async with toy_app() as app:
        first = await post(app, path, **fields)
        seed = first.headers["onward-seed"]
        again = await Call(app, "POST", path, json.dumps(fields).encode(), onward_seed=seed).done()
        other = await post(app, path, **fields)
    assert first.status == 200 and other.headers["onward-seed"] != seed == again.headers["onward-seed"]
    assert text_of(again.json) == text_of(first.json) != text_of(other.json)


def text_of(answer: Any) -> str:
    """Return the text of an answer in any API."""
    match answer:
        case {"choices": [{"message": {"content": text}}]} | {"choices": [{"text": text}]}:
            return str(text)
        case {"generated_text": text} | {"content": text} | {"response": text}:
            return str(text)
    raise AssertionError(answer)


def test_own_fields_of_dialects_exist() -> None:
    for dialect, routes in DIALECTS.items():
        known = {row.field for each in routes for row in flat(iter((each.body or {}).values()))}
        assert known >= OWN[dialect], dialect


def test_the_setting_names_all_dialects() -> None:
    (setting,) = [each for each in options() if each.name == "dialects"]
    assert setting.parser.choices == ("all", "none", *DIALECTS)  # type: ignore[attr-defined]
    assert served_dialects(("all",)) == tuple(DIALECTS) and served_dialects(("none", "tgi")) == ()
    assert served_dialects(("tgi", "ollama")) == ("ollama", "tgi")
