"""Any body decodes to a request or raises ApiError."""

from __future__ import annotations

import json
from typing import get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.api.openai.errors import error_envelope, error_event
from onward.api.openai.parameters import PARAMETERS
from onward.api.parameter import Profile
from onward.completions.request import CompletionRequest
from onward.errors import ApiError, InvalidRequest
from tests.api.openai.decoding import decode_request
from tests.examples import UNICODE, examples

profiles = st.sampled_from(["strict", "default", "lenient"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 130)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(UNICODE, max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(UNICODE, max_size=8), inner, max_size=3),
    max_leaves=8,
)
inner_names = [each.name for row in PARAMETERS for each in row.inner]
names = st.sampled_from([row.name for row in PARAMETERS])
objects = st.dictionaries(st.sampled_from(inner_names), values, max_size=3)
bodies = st.dictionaries(names | st.text(UNICODE, max_size=8), values | objects, max_size=6)


TYPES = {name: hint for name, hint in get_type_hints(CompletionRequest).items() if name != "prompt"}
"""The declared types, except the prompt's, a union of arrays that msgspec cannot check."""


def is_prompt(prompt: object) -> bool:
    forms = (str, list[str], list[int], list[list[int]])
    return any(conforms(prompt, form) for form in forms)


def conforms(value: object, declared: object) -> bool:
    try:
        msgspec.convert(value, declared)
    except msgspec.ValidationError:
        return False
    return True


def check(body: bytes, profile: Profile) -> None:
    try:
        request = decode_request(body, profile=profile)
    except ApiError as error:
        assert isinstance(error, InvalidRequest)
        content, _ = error_envelope(error)
        assert json.loads(content)["error"]["message"] == error.message
        assert error_event(error).startswith(b'data: {"error":')
    else:
        for name, declared in TYPES.items():
            msgspec.convert(getattr(request, name), declared)
        assert request.prompt is None or is_prompt(request.prompt)
        assert request.prompts and request.candidates >= request.n >= 1
        assert 0 <= request.min_tokens <= request.max_tokens


@settings(max_examples=examples(250))
@given(bodies, st.booleans(), profiles)
def test_any_object_decodes_or_is_rejected(body: dict[str, object], modelled: bool, profile: Profile) -> None:
    check(json.dumps(body | ({"model": "m"} if modelled else {})).encode(), profile)


@settings(max_examples=examples(120))
@given(values, profiles)
def test_any_json_decodes_or_is_rejected(body: object, profile: Profile) -> None:
    check(json.dumps(body).encode(), profile)


@settings(max_examples=examples(120))
@given(st.binary(max_size=60), profiles)
def test_any_bytes_decode_or_are_rejected(body: bytes, profile: Profile) -> None:
    check(body, profile)


@settings(max_examples=examples(120))
@given(st.text(st.characters(codec=None), max_size=20), names)
def test_any_python_string_decodes_or_is_rejected(text: str, name: str) -> None:
    check(json.dumps({"model": "m", name: text}).encode(), "default")


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_truncated_body_is_rejected(cut: int) -> None:
    body = json.dumps({"model": "m", "prompt": ["Once upon a time"], "logit_bias": {"5": 1.5}}).encode()
    with pytest.raises(InvalidRequest, match="We could not parse the JSON body"):
        decode_request(body[:cut])
