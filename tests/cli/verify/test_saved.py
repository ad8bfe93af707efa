"""The position at which an answer begins to differ."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onward.cli.verify.saved import Difference, Saved, first_difference
from tests.examples import UNICODE
from tests.tables import each_row

LOGPROBS: dict[str, Any] = {
    "tokens": [" a", " fox"],
    "token_logprobs": [-1.5, -2.5],
    "top_logprobs": [{" a": -1.5}, {" fox": -2.5}],
    "text_offset": [4, 6],
}
COMPUTED: dict[str, Any] = {
    "choices": [
        {"index": 0, "text": " a fox", "logprobs": LOGPROBS, "finish_reason": "length", "token_ids": [5, 7]},
        {"index": 1, "text": " a 🙂 bear", "logprobs": None, "finish_reason": "stop"},
    ],
    "usage": {
        "prompt_tokens": 1,
        "completion_tokens": 5,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 9},
    },
}


def saved(**change: Any) -> Saved:
    known = copy.deepcopy(COMPUTED)
    return Saved(**{"id": "x", "fields": {}, "choices": known["choices"], "usage": known["usage"], **change})


def changed(index: int, **fields: Any) -> Saved:
    choices = copy.deepcopy(COMPUTED["choices"])
    choices[index] |= fields
    return saved(choices=choices)


def cut(index: int, **fields: Any) -> Saved:
    """The beginning of a choice, whose end was not received."""
    return replace(changed(index, **{"finish_reason": None, **fields}), is_whole=False, usage=None)


@each_row(
    ("answer", "expected"),
    [
        (saved(), None),
        (saved(usage=None), None),
        (saved(usage=COMPUTED["usage"] | {"prompt_tokens_details": {"cached_tokens": 0}}), None),
        (changed(0, text=" a dog"), (0, "text", 3, 2, "dog", "fox")),
        (changed(0, text=" a dog", logprobs=LOGPROBS | {"tokens": [" a", " dog"]}), (0, "text", 3, 1, "dog", "fox")),
        (changed(1, text=" a 🙃 bear"), (1, "text", 3, None, "🙃 bear", "🙂 bear")),
        (changed(1, text=" a 🙂"), (1, "text", 4, None, "", " bear")),
        (changed(1, finish_reason="length"), (1, "finish_reason", None, None, "length", "stop")),
        (
            changed(0, logprobs=LOGPROBS | {"token_logprobs": [-1.5, -2.25]}),
            (0, "logprobs.token_logprobs", None, 1, -2.25, -2.5),
        ),
        (changed(0, logprobs=LOGPROBS | {"text_offset": [4]}), (0, "logprobs.text_offset", None, 1, None, 6)),
        (changed(1, token_ids=[1]), (1, "token_ids", None, None, [1], None)),
        (saved(choices=COMPUTED["choices"][:1]), (1, "choice", None, None, None, " a 🙂 bear")),
        (
            saved(choices=[*COMPUTED["choices"], {"index": 2, "text": "b", "finish_reason": "stop"}]),
            (2, "choice", None, None, "b", None),
        ),
        (saved(choices=COMPUTED["choices"][:1], is_whole=False), None),
        (saved(choices=2 * COMPUTED["choices"][:1]), (0, "choice", None, None, " a fox", None)),
        (
            saved(choices=[COMPUTED["choices"][0], *2 * COMPUTED["choices"][1:]]),
            (1, "choice", None, None, " a 🙂 bear", None),
        ),
        (changed(1, text=" a 🙂", finish_reason=None), (1, "text", 4, None, "", " bear")),
        (changed(1, finish_reason=None), (1, "finish_reason", None, None, None, "stop")),
        (cut(0, text=" a", logprobs={name: each[:1] for name, each in LOGPROBS.items()}), None),
        (cut(0, text="", logprobs={name: [] for name in LOGPROBS}), None),
        (cut(0, text=" a", logprobs=None), None),
        (
            cut(0, text=" a", logprobs={"token_logprobs": [-1.25]}),
            (0, "logprobs.token_logprobs", None, 0, -1.25, -1.5),
        ),
        (
            cut(0, logprobs=LOGPROBS | {"text_offset": [4, 6, 8]}),
            (0, "logprobs.text_offset", None, 2, 8, None),
        ),
        (cut(0, token_ids=[5]), None),
        (cut(0, token_ids=[6]), (0, "token_ids", None, None, [6], [5, 7])),
        (cut(1, token_ids=[6]), (1, "token_ids", None, None, [6], None)),
        (
            saved(usage=COMPUTED["usage"] | {"completion_tokens": 4}),
            (None, "usage.completion_tokens", None, None, 4, 5),
        ),
        (cut(1, text=" a 🙂"), None),
        (cut(1, text=" b"), (1, "text", 1, None, "b", "a")),
        (cut(1, text=" a 🙂 bear and"), (1, "text", 9, None, " and", "")),
        (saved(choices=[{"text": " a 🙂 bear", "finish_reason": "stop"}], is_whole=False), None),
        (saved(choices=[{"text": " a 🙂 be", "finish_reason": None}], is_whole=False), None),
        (
            saved(choices=[{"text": " a 🙂 wolf", "finish_reason": "stop"}], is_whole=False),
            (1, "text", 5, None, "wolf", "bear"),
        ),
    ],
)
def test_the_first_difference_is_found(answer: Saved, expected: tuple[Any, ...] | None) -> None:
    found = first_difference(answer, COMPUTED)
    if expected is None:
        assert found is None
        return
    names = ("choice", "field", "character", "token", "saved", "computed")
    assert found == Difference(**dict(zip(names, expected, strict=True)))
    assert found.in_words() and set(found.as_document()) >= {"field", "saved", "computed"}


@given(st.text(UNICODE, max_size=30), st.text(UNICODE, max_size=30), st.text(UNICODE, max_size=30))
def test_a_difference_is_at_the_first_character_that_differs(beginning: str, one: str, other: str) -> None:
    texts = beginning + one, beginning + other
    answers = [{"index": 0, "text": text, "finish_reason": "stop"} for text in texts]
    found = first_difference(Saved(id="x", fields={}, choices=answers[:1]), {"choices": answers[1:]})
    if texts[0] == texts[1]:
        assert found is None
        return
    assert found is not None and found.character is not None
    at = found.character
    assert texts[0][:at] == texts[1][:at] and texts[0][at : at + 1] != texts[1][at : at + 1]
