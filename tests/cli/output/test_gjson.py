"""Paths select what GJSON's documentation says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.cli.output.formats import render
from onward.cli.output.gjson import MISSING, find
from tests.examples import UNICODE

VALUE = {
    "id": "cmpl-1",
    "choices": [
        {"text": "a", "index": 0, "logprobs": {"tokens": ["x", "y"]}},
        {"text": "b", "index": 1, "logprobs": None},
    ],
    "usage": {"total_tokens": 3, "a.b": True},
    "fav.movie": "Deer Hunter",
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("id", "cmpl-1"),
        ("choices.0.text", "a"),
        ("choices.#", 2),
        ("choices.#.text", ["a", "b"]),
        ("choices.#.logprobs.tokens", [["x", "y"]]),
        ("choices.#.text|0", "a"),
        ("choices.#.text|#", 2),
        ("choices|1|text", "b"),
        ("choices.1.logprobs", None),
        ("choices.#(index==1).text", "b"),
        ('choices.#(text=="a").index', 0),
        ("choices.#(index>=0)#.text", ["a", "b"]),
        ("choices.#(index>0)#|#", 1),
        ("choices.#(index!=0)#.text", ["b"]),
        ('choices.#(text%"a*").index', 0),
        ('choices.#(text!%"a*").index', 1),
        ("choices.#(logprobs.tokens).text", "a"),
        ("choices.0.logprobs.tokens.#(>x)", "y"),
        ("usage.total*", 3),
        ("usage.t?tal_tokens", 3),
        ("usage.a\\.b", True),
        ("fav\\.movie", "Deer Hunter"),
        ("{id,usage.total_tokens}", {"id": "cmpl-1", "total_tokens": 3}),
        ('{"t":usage.total_tokens,nope}', {"t": 3}),
        ("[id,choices.#,nope]", ["cmpl-1", 2]),
        ("choices.#.{text,index}", [{"text": "a", "index": 0}, {"text": "b", "index": 1}]),
        ("choices.@reverse.0.text", "b"),
        ("choices|@reverse|0|text", "b"),
        ("usage|@keys", ["total_tokens", "a.b"]),
        ("usage.@values", [3, True]),
        ("choices.#.logprobs.tokens|@flatten", ["x", "y"]),
        ("choices.@this.0.index", 0),
        ("usage.@tostr.@fromstr.total_tokens", 3),
    ],
)
def test_a_path_finds_its_value(path: str, expected: Any) -> None:
    assert find(VALUE, path) == expected


NOWHERE = "nope choices.2 choices.-1 choices.text id.x id.# usage|@nope choices.#(index==9) choices.x.y"


@pytest.mark.parametrize("path", NOWHERE.split())
def test_a_path_without_a_match_prints_the_whole_value(path: str) -> None:
    assert find(VALUE, path) is MISSING
    assert json.loads(render(VALUE, format="json", transform=path)) == VALUE


@given(st.text(UNICODE))
def test_no_path_raises_an_unexpected_error(path: str) -> None:
    find(VALUE, path)
