"""One decoder reads the requests of all APIs: in their order; a name wins over other names, defaults come last."""

from __future__ import annotations

from typing import Any

import pytest

from onward.api.decoder import check_fields
from onward.api.fields import own, refused, same, unused
from onward.api.parameter import FieldTable, Profile
from onward.errors import InvalidRequest

TABLE = FieldTable(
    own("text", "string", "x", "A text.", required=True),
    same("temperature", "temperature", "x", default=0.5),
    same("heat", "temperature", "x"),
    same("warmth", "temperature", "x"),
    same("newest", "temperature", "x", overrides=True),
    same("count", "max_tokens", "x", unset=0),
    own(
        "options",
        "object",
        "x",
        "Options.",
        inner=(same("top_k", "top_k", "x", default=7), unused("cpu", "integer", "x", ".")),
    ),
    own("ignored", "object", "x", "Nothing.", has_effect=False),
    refused("never", "x", "It does not exist."),
)


def check(fields: dict[str, object], profile: Profile = "default") -> dict[str, Any]:
    return check_fields({"text": "a", **fields}, TABLE, profile)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"temperature": 0.5, "top_k": 7}),
        ({"temperature": None, "options": None}, {"temperature": 0.5, "top_k": 7}),
        ({"heat": 1, "temperature": 2}, {"temperature": 2.0}),
        ({"warmth": 0.25, "heat": 1}, {"temperature": 0.25}),
        ({"temperature": 2, "newest": 1}, {"temperature": 1.0}),
        ({"count": 0}, {}),
        ({"count": 3, "options": {"top_k": 2, "cpu": 9}}, {"max_tokens": 3, "top_k": 2}),
        ({"ignored": {"anything": 1}}, {}),
    ],
)
def test_values_are_those_of_the_request_then_of_other_names_then_defaults(
    fields: dict[str, object], expected: dict[str, object]
) -> None:
    assert check(fields) == {"temperature": 0.5, "top_k": 7, "text": "a"} | expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"heat": "a", "count": "b"}, "heat"),
        ({"count": "b", "heat": "a"}, "count"),
        ({"options": {"top_k": "a", "gpu": 1}, "heat": "a"}, "options.top_k"),
        ({"options": {"gpu": 1, "top_k": "a"}}, "options.gpu"),
        ({"options": 3}, "options"),
        ({"text": None, "heat": "a"}, "text"),
        ({"never": 1}, "never"),
        ({"heat": "a", "unknown": 1}, None),
    ],
)
def test_the_first_mistake_of_the_request_is_named(fields: dict[str, object], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as raised:
        check(fields)
    assert raised.value.param == param


def test_the_lenient_profile_ignores_unknown_fields() -> None:
    assert check({"unknown": 1, "options": {"gpu": 1}}, "lenient")["top_k"] == 7


def test_whole_floats_are_integers_where_the_table_says_so() -> None:
    rows = same("count", "max_tokens", "x"), own("text", "string", "x", "A text.")
    assert check_fields({"count": 3.0}, FieldTable.with_whole_floats(*rows), "default") == {"max_tokens": 3}
    for table, value in ((FieldTable(*rows), 3.0), (FieldTable.with_whole_floats(*rows), 3.5)):
        with pytest.raises(InvalidRequest):
            check_fields({"count": value}, table, "default")
