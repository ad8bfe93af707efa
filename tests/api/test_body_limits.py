"""A body with more than a request may contain is refused before any of it is built."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.api.body import MIN_COUNTED_BYTES, NUM_OTHER_ITEMS, BodyLimits, decode_object
from onward.errors import InvalidRequest

PADDING = b" " * MIN_COUNTED_BYTES
NONE = -NUM_OTHER_ITEMS
"""A `max_prompts` that leaves room for no string, array or object at all."""


def repeated(before: str, each: str, after: str) -> bytes:
    """A body of a megabyte."""
    return (before + ",".join([each] * (1_000_000 // (len(each) + 1))) + after).encode()


ABUSIVE = {
    "prompts of one token": repeated('{"prompt":[', "[1]", "]}"),
    "strings": repeated('{"prompt":[', '"a"', "]}"),
    "empty strings": repeated('{"stop":[', '""', "]}"),
    "keys": repeated("{", '"k":1', "}"),
    "biases": repeated('{"logit_bias":{', '"5":1', "}}"),
    "token ids": repeated('{"prompt":[', "1", "]}"),
    "objects": repeated('{"prompt":[', "{}", "]}"),
    "escaped quotes": repeated('{"prompt":[', r'"\""', "]}"),
}


@pytest.mark.parametrize("name", ABUSIVE)
def test_a_body_of_too_many_values_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"The body of this request has more than \d+ (values|strings)"):
        decode_object(ABUSIVE[name], BodyLimits(max_prompts=1000, max_prompt_tokens=10_000))


def test_a_body_is_refused_before_any_object_is_built() -> None:
    body = ABUSIVE["prompts of one token"]
    before = sys.getallocatedblocks()
    with pytest.raises(InvalidRequest) as caught:
        decode_object(body, BodyLimits(max_prompts=1000))
    assert sys.getallocatedblocks() - before < 1000
    assert caught.value.status == 400


def items_in(value: Any) -> int:
    """Strings (also keys), arrays and objects in a JSON value."""
    match value:
        case str():
            return 1
        case list():
            return 1 + sum(map(items_in, value))
        case dict():
            return 1 + sum(1 + items_in(inner) for inner in value.values())
        case _:
            return 0


texts = st.text(st.sampled_from('"\\[]{},:é🙂\n aA/'), max_size=20)
documents = st.recursive(
    st.integers() | st.booleans() | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(texts, documents, max_size=5), st.booleans(), st.sampled_from([None, 4]))
def test_the_count_is_exact_and_nothing_else_is_refused(
    value: dict[str, Any], ensure_ascii: bool, indent: int | None
) -> None:
    body = PADDING + json.dumps(value, ensure_ascii=ensure_ascii, indent=indent).encode()
    count = items_in(value)
    assert decode_object(body, BodyLimits(NONE + count, 1000)) == value
    with pytest.raises(InvalidRequest, match="has more than"):
        decode_object(body, BodyLimits(NONE + count - 1, 1000))


@pytest.mark.parametrize("text", ["a" * 1_000_000, "\\" * 300_000, '"' * 300_000, "é\n" * 300_000, "[{,"])
def test_a_long_string_is_one_item(text: str) -> None:
    for ensure_ascii in (True, False):
        body = PADDING + json.dumps({"prompt": text}, ensure_ascii=ensure_ascii).encode()
        assert decode_object(body, BodyLimits(NONE + 3, 0)) == {"prompt": text}


@pytest.mark.parametrize(
    "end", [b'"', b'"\\', b'"abc', b"[", b"\xff", b"1 2", b'{"a":"\\ud800"}', b"[" * 100_000, b"]},{[" * 90_000]
)
def test_a_malformed_body_is_left_to_the_parser(end: bytes) -> None:
    with pytest.raises(InvalidRequest, match="We could not parse the JSON body of your request"):
        decode_object(PADDING + end)


def test_as_many_token_ids_as_allowed_are_accepted() -> None:
    limits = BodyLimits(max_prompts=200, max_prompt_tokens=200_000)
    prompts = [[7] * 1000] * 200
    assert decode_object(json.dumps({"prompt": prompts}).encode(), limits) == {"prompt": prompts}
