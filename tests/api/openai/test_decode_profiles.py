"""The strict profile follows OpenAI's schema exactly, the lenient profile ignores unknown fields."""

from __future__ import annotations

import json

import pytest

from onward.api.openai.parameters import PARAMETERS
from onward.api.parameter import Profile
from onward.completions.request import CompletionRequest
from onward.errors import InvalidRequest
from tests.api.openai.decoding import decode_request
from tests.tables import each_row

EXTENSIONS = [row for row in PARAMETERS if row.origin == "extension"]


def decode(profile: Profile, body: dict[str, object]) -> CompletionRequest:
    return decode_request(json.dumps(body).encode(), profile=profile)


@each_row("row", EXTENSIONS, ids=lambda row: row.name)
def test_strict_rejects_extensions(row: object) -> None:
    name, example = row.name, row.example  # type: ignore[attr-defined]
    with pytest.raises(InvalidRequest) as caught:
        decode("strict", {"model": "m", name: example})
    assert caught.value.message == f"Unrecognized request argument supplied: {name}"


def test_strict_rejects_continuous_usage() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode("strict", {"model": "m", "stream": True, "stream_options": {"continuous_usage_stats": True}})
    assert caught.value.message == "Unknown parameter: 'stream_options.continuous_usage_stats'."


def test_strict_accepts_every_field_of_openai() -> None:
    body: dict[str, object] = {row.name: row.example for row in PARAMETERS if row.origin == "openai"}
    request = decode("strict", body | {"n": 3})
    assert request.include_usage and request.best_of == request.n == 3


def test_strict_rejects_more_than_five_logprobs() -> None:
    assert decode("strict", {"model": "m", "logprobs": 5}).logprobs == 5
    with pytest.raises(InvalidRequest) as caught:
        decode("strict", {"model": "m", "logprobs": 6})
    assert caught.value.message == (
        "Invalid 'logprobs': integer above maximum value. Expected a value <= 5, but got 6 instead."
    )


def test_lenient_ignores_unknown_fields_at_every_depth() -> None:
    body = {"foo": 1, "bar": {}, "stream": True, "stream_options": {"baz": 1, "include_usage": True}}
    assert decode("lenient", body) == CompletionRequest(stream=True, include_usage=True)


def test_lenient_ignores_unknown_fields_of_a_prediction() -> None:
    part = {"type": "text", "text": "a", "cache_control": {}}
    prediction = {"type": "content", "content": [part], "id": 5}
    assert decode("lenient", {"prediction": prediction}) == CompletionRequest(prediction="a")


def test_lenient_rejects_invalid_values_of_known_fields() -> None:
    with pytest.raises(InvalidRequest):
        decode("lenient", {"return_hidden_states": True})
    with pytest.raises(InvalidRequest):
        decode("lenient", {"temperature": 3})
    with pytest.raises(InvalidRequest):
        decode("lenient", {"prediction": {"content": "a"}})


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": ""}], ids=str)
def test_lenient_does_not_require_a_model(body: dict[str, object]) -> None:
    assert decode("lenient", body).model is None


@pytest.mark.parametrize("profile", ["strict", "default"])
def test_the_other_profiles_require_a_model(profile: Profile) -> None:
    with pytest.raises(InvalidRequest):
        decode(profile, {})


def test_lenient_accepts_any_number_of_stops() -> None:
    stops = tuple(str(i) for i in range(14))
    assert decode("lenient", {"stop": stops}).stop == stops
    with pytest.raises(InvalidRequest):
        decode("strict", {"model": "m", "stop": stops})


def test_lenient_accepts_up_to_64_stop_strings() -> None:
    assert len(decode("lenient", {"stop": ["x"] * 64}).stop) == 64
    with pytest.raises(InvalidRequest, match="maximum length 64, but got an array with length 65"):
        decode("lenient", {"stop": ["x"] * 65})
