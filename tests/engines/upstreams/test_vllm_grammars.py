"""A vLLM that enforces grammars itself: which ones it is sent, and what happens to a text that violates one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from onward.compose import upstreams
from onward.constraints.process import masks
from onward.model_files.toy import END
from tests.engines.upstreams.harness import ask, spell
from tests.engines.upstreams.standin import StandIn, stand_in


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A vLLM whose masks are llguidance's, as in one that Onward starts. No grammar counts as slow, on any machine."""
    monkeypatch.setattr(masks, "QUICK_COMPILE_SECONDS", math.inf)
    monkeypatch.setattr(masks, "QUICK_MASK_SECONDS", math.inf)
    monkeypatch.setattr(upstreams, "upstream_at", partial(upstreams.upstream_at, has_grammars=True))
    with stand_in("vllm") as running:
        yield running


def given(server: StandIn) -> list[bool]:
    """Which of its requests had a grammar."""
    return ["structured_outputs" in request for request in server.requests]


@pytest.mark.parametrize(
    ("text", "finish", "fields"),
    [
        ("xyzq", "stop", {"regex": "[x-z]{3}q"}),
        ("xyzq", "stop", {"regex": "[x-z]{3}q.*"}),
        ("xyz", "length", {"regex": "[x-z]{3}q", "max_tokens": 3}),
        ("xyz", "stop", {"regex": "[x-z]{3}q", "stop": ["q"]}),
        ("yes", "stop", {"choice": ["yes", "no"]}),
        ("xyzq", "stop", {"regex": "[x-z]{3}q", "presence_penalty": 1, "logit_bias": {"7": 1}}),
    ],
)
def test_vllm_enforces_a_grammar_in_one_request(
    server: StandIn, text: str, finish: str, fields: dict[str, Any]
) -> None:
    spell(server, "xyzq" if text.startswith("x") else text)
    [choice] = ask(server, **{"max_tokens": 9, **fields}).choices
    assert (choice.text, choice.finish_reason) == (text, finish)
    [request] = server.requests
    grammar = request["structured_outputs"]["grammar"]
    assert grammar.startswith("%llguidance {}\n") and grammar.endswith(f"\nstart: text_of_start (<[{END}]>)")
    assert request["stream"] and request["max_tokens"] == fields.get("max_tokens", 9)
    assert "allowed_token_ids" not in request


def test_every_choice_is_sent_with_the_grammar(server: StandIn) -> None:
    spell(server, "xyzq")
    assert [choice.text for choice in ask(server, n=3, max_tokens=9, regex="[x-z]{3}q", temperature=1).choices] == [
        "xyzq"
    ] * 3
    assert given(server) == [True] * 3


def test_a_grammar_that_is_refused_is_refused_once_per_request(server: StandIn) -> None:
    spell(server, "xyzq")
    server.faults = ["refuse"]
    choices = ask(server, n=4, max_tokens=9, regex="[x-z]{3}q", temperature=1).choices
    assert [choice.text for choice in choices] == ["xyzq"] * 4
    assert given(server)[0] and not any(given(server)[1:])


def test_a_grammar_is_asked_for_again_where_the_answer_was_lost(server: StandIn) -> None:
    spell(server, "xyzq")
    server.faults = ["busy"]
    choices = ask(server, n=2, max_tokens=9, regex="[x-z]{3}q", temperature=1).choices
    assert [choice.text for choice in choices] == ["xyzq"] * 2
    assert given(server)[:2] == [True, True]


def test_tokens_that_onwards_own_grammar_forbids_are_not_taken_from_vllm(server: StandIn) -> None:
    spell(server, "xyAq")
    [choice] = ask(server, max_tokens=9, regex="[x-z]{3}q").choices
    assert choice.text[:2] == "xy" and choice.text[2] in "xyz" and choice.text[3:] == "q"
    assert given(server) == [True, False], "the last token is forced"


@pytest.mark.parametrize("fault", ["half", "busy", "refuse"])
def test_a_text_that_is_cut_continues_token_by_token(server: StandIn, fault: str) -> None:
    spell(server, "xyzzyq")
    server.faults = [fault]
    [choice] = ask(server, max_tokens=9, regex="[x-z]{5}q").choices
    assert (choice.text, choice.finish_reason) == ("xyzzyq", "stop")
    assert given(server)[0] and not any(given(server)[1:])


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": 0},
        {"dry_multiplier": 1},
        {"presence_penalty": 1, "repeat_last_n": 1},
        {"regex": None, "grammar": 'start: "x" start? | "yzq"'},
    ],
)
def test_onward_enforces_a_grammar_that_would_mean_something_else_to_vllm(
    server: StandIn, fields: dict[str, Any]
) -> None:
    spell(server, "xyzq")
    assert ask(server, **{"max_tokens": 9, "regex": "[x-z]{3}q", **fields}).choices[0].text == "xyzq"
    assert not any(given(server))


@pytest.mark.parametrize("fields", [{"temperature": 0, "top_p": 0.5}, {"temperature": 1}])
def test_json_is_enforced_by_vllm_if_nothing_is_filtered_after_the_mask(
    server: StandIn, fields: dict[str, Any]
) -> None:
    spell(server, '{"a":  1}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    [choice] = ask(server, max_tokens=9, json_schema=schema, **fields).choices
    assert choice.text.startswith('{"a": ') and not choice.text.startswith('{"a":  ')
    assert given(server)[0] and not any(given(server)[1:])
    server.requests.clear()
    ask(server, max_tokens=9, json_schema=schema, temperature=1, top_p=0.5)
    assert not any(given(server))


@pytest.mark.parametrize("end", [None, 7])
def test_onward_enforces_a_grammar_where_texts_end_differently_in_vllm(server: StandIn, end: int | None) -> None:
    server.end_of_grammars = end
    spell(server, "xyzq")
    assert ask(server, max_tokens=9, regex="[x-z]{3}q").choices[0].text == "xyzq"
    assert not any(given(server))


def test_onward_enforces_a_grammar_that_takes_long_to_compile(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "QUICK_COMPILE_SECONDS", -1.0)
    spell(server, "xyzq")
    assert ask(server, max_tokens=9, regex="[x-z]{3}q").choices[0].text == "xyzq"
    assert not any(given(server))


def test_masks_that_take_long_in_the_middle_are_computed_by_onward_from_then_on(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "QUICK_MASK_SECONDS", -1.0)
    spell(server, "xyzq")
    assert ask(server, max_tokens=9, regex="[x-z]{3}q").choices[0].text == "xyzq"
    assert given(server)[0] and not any(given(server)[1:])


def test_a_vllm_that_others_started_is_sent_no_grammar() -> None:
    with stand_in("vllm") as server:
        spell(server, "xyzq")
        assert ask(server, max_tokens=9, regex="[x-z]{3}q").choices[0].text == "xyzq"
        assert not any(given(server))
