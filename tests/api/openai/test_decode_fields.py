"""Rejected values of single fields: prompts, predictions, stops, biases, dialects, and rules between fields."""

from __future__ import annotations

import pytest

from onward.api.openai.decode import check_request
from onward.errors import InvalidRequest
from tests.tables import each_row

from .refuse import TEXT, at, content, refuse

INT64_MAX = 2**63 - 1
CONTENT_FORMS = "one of a string or array of objects"


@each_row(
    ("prompt", "path", "expected", "got"),
    [
        ([1, "a"], "prompt[1]", "an integer", "a string"),
        ([1, True], "prompt[1]", "an integer", "a boolean"),
        ([1, 2.0], "prompt[1]", "an integer", "a decimal number"),
        ([1, None], "prompt[1]", "an integer", "null"),
        ([1, [2]], "prompt[1]", "an integer", "an array"),
        (["a", 1], "prompt[1]", "a string", "an integer"),
        (["a", ["b"]], "prompt[1]", "a string", "an array"),
        ([[1], 2], "prompt[1]", "an array of integers", "an integer"),
        ([[1], "a"], "prompt[1]", "an array of integers", "a string"),
        ([[1], [2, "a"]], "prompt[1][1]", "an integer", "a string"),
        ([["a"]], "prompt[0][0]", "an integer", "a string"),
        ([True], "prompt[0]", "one of a string, an integer or an array of integers", "a boolean"),
        ([None], "prompt[0]", "one of a string, an integer or an array of integers", "null"),
        ([1.5], "prompt[0]", "one of a string, an integer or an array of integers", "a decimal number"),
        ([{}], "prompt[0]", "one of a string, an integer or an array of integers", "an object"),
    ],
    ids=str,
)
def test_the_error_of_a_mixed_prompt_locates_the_value(prompt: object, path: str, expected: str, got: str) -> None:
    error = refuse({"model": "m", "prompt": prompt})
    assert error.message == f"Invalid type for '{path}': expected {expected}, but got {got} instead."
    assert (error.param, error.code) == (path, "invalid_type")


@each_row(
    ("prediction", "path", "rest", "code"),
    [
        ({}, ".type", "", "missing_required_parameter"),
        ({"content": "a"}, ".type", "", "missing_required_parameter"),
        ({"type": "content"}, ".content", "", "missing_required_parameter"),
        ({"type": "text", "content": "a"}, ".type", "text", "invalid_value"),
        ({"type": "", "content": "a"}, ".type", "", "invalid_value"),
        ({"type": "x" * 100, "content": "a"}, ".type", "x" * 64, "invalid_value"),
        ({"type": None, "content": "a"}, ".type", ("a string", "null"), "invalid_type"),
        ({"type": 1, "content": "a"}, ".type", ("a string", "an integer"), "invalid_type"),
        ({"type": "content", "content": None}, ".content", (CONTENT_FORMS, "null"), "invalid_type"),
        ({"type": "content", "content": 5}, ".content", (CONTENT_FORMS, "an integer"), "invalid_type"),
        ({"type": "content", "content": {}}, ".content", (CONTENT_FORMS, "an object"), "invalid_type"),
        ({"type": "content", "content": "a", "text": "a"}, ".text", "", "unknown_parameter"),
        (content("a"), ".content[0]", ("an object", "a string"), "invalid_type"),
        (content(TEXT, None), ".content[1]", ("an object", "null"), "invalid_type"),
        (content(TEXT, {"text": "a"}), ".content[1].type", "", "missing_required_parameter"),
        (content({"type": "text"}), ".content[0].text", "", "missing_required_parameter"),
        (content({"type": "text", "text": None}), ".content[0].text", ("a string", "null"), "invalid_type"),
        (content({"type": "text", "text": ["a"]}), ".content[0].text", ("a string", "an array"), "invalid_type"),
        (content({"type": "content", "text": "a"}), ".content[0].type", "content", "invalid_value"),
        (content(TEXT | {"image_url": "x"}), ".content[0].image_url", "", "unknown_parameter"),
    ],
    ids=str,
)
def test_the_error_of_an_invalid_prediction_locates_the_value(
    prediction: object, path: str, rest: object, code: str
) -> None:
    error = refuse({"model": "m", "prediction": prediction})
    path = f"prediction{path}"
    wanted = "text" if "[" in path else "content"
    words = {
        "missing_required_parameter": f"Missing required parameter: '{path}'.",
        "unknown_parameter": f"Unknown parameter: '{path}'.",
        "invalid_value": f"Invalid value: '{rest}'. Supported values are: '{wanted}'.",
        "invalid_type": f"Invalid type for '{path}': expected {rest[0]}, but got {rest[1]} instead."
        if isinstance(rest, tuple)
        else "",
    }
    assert (error.message, error.param, error.code) == (words[code], path, code)


def test_a_prediction_without_parts_is_rejected() -> None:
    error = refuse({"model": "m", "prediction": content()})
    assert (error.param, error.code) == ("prediction.content", "empty_array")


@pytest.mark.parametrize("held", ["\ud800", [{"type": "text", "text": "\ud800"}]], ids=["text", "part"])
def test_a_prediction_that_is_not_unicode_is_rejected(held: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_request({"model": "m", "prediction": {"type": "content", "content": held}})
    assert caught.value.code == "invalid_unicode"


@pytest.mark.parametrize(("prompt", "path"), [([[]], "prompt[0]"), ([[1], []], "prompt[1]")], ids=str)
def test_an_empty_token_array_is_rejected(prompt: object, path: str) -> None:
    error = refuse({"model": "m", "prompt": prompt})
    assert error.message == (
        f"Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty array instead."
    )
    assert (error.param, error.code) == (path, "empty_array")


@pytest.mark.parametrize(
    ("prompt", "token"),
    [([1, 2**63], 2**63), ([[-(2**63) - 1]], -(2**63) - 1), ([2**64, -(2**70)], -(2**70))],
    ids=str,
)
def test_a_token_id_above_64_bits_is_rejected(prompt: object, token: int) -> None:
    error = refuse({"model": "m", "prompt": prompt})
    assert error.message == (
        f"Invalid token in prompt: {token}. Minimum value is 0, maximum value is {INT64_MAX} (inclusive)."
    )
    assert (error.param, error.code) == (None, None)


def test_more_than_four_stops_are_rejected() -> None:
    error = refuse({"model": "m", "stop": list("abcde")})
    assert error.message == (
        "Invalid 'stop': array too long. Expected an array with maximum length 4, "
        "but got an array with length 5 instead."
    )
    assert (error.param, error.code) == ("stop", "array_above_max_length")


@pytest.mark.parametrize(("stop", "path"), [("", "stop"), ([""], "stop[0]"), (["a", ""], "stop[1]")], ids=str)
def test_an_empty_stop_is_rejected(stop: object, path: str) -> None:
    error = refuse({"model": "m", "stop": stop})
    assert error.message == (
        f"Invalid '{path}': empty string. Expected a string with minimum length 1, but got an empty string instead."
    )
    assert (error.param, error.code) == (path, "empty_string")


def test_the_error_of_a_stop_that_is_not_a_string_locates_it() -> None:
    error = refuse({"model": "m", "stop": ["a", 1]})
    assert error.message == "Invalid type for 'stop[1]': expected a string, but got an integer instead."


@pytest.mark.parametrize("zeros", [1, 30, 5000])
def test_a_logit_bias_key_may_have_leading_zeros(zeros: int) -> None:
    for digits, token in (("0", 0), ("17", 17)):
        request = check_request({"model": "m", "logit_bias": {"0" * zeros + digits: 1}})
        assert request.logit_bias == {token: 1.0}


@pytest.mark.parametrize("key", ["AI", "-1", "1.0", "", " 1", "+1", "0x10", "१", "²", "1e3"])
def test_a_logit_bias_key_must_be_a_token_id(key: str) -> None:
    error = refuse({"model": "m", "logit_bias": {"1": 0, key: 1}})
    assert error.message == (
        f"Invalid key in 'logit_bias': {key}. You should only be submitting non-negative integers."
    )
    assert (error.param, error.code) == ("logit_bias", None)


@pytest.mark.parametrize("key", [str(2**63), "9" * 5000])
def test_a_logit_bias_key_above_64_bits_is_rejected(key: str) -> None:
    error = refuse({"model": "m", "logit_bias": {key: 1}})
    assert error.message == f"Invalid key in 'logit_bias': {key}. Maximum value is {INT64_MAX}."
    assert error.param == "logit_bias"


def test_more_than_1024_biases_are_rejected() -> None:
    error = refuse({"model": "m", "logit_bias": {str(token): 1 for token in range(1025)}})
    assert error.message == (
        "Invalid 'logit_bias': too many properties. Expected an object with at most 1024 properties, "
        "but got an object with 1025 properties instead."
    )
    assert (error.param, error.code) == ("logit_bias", "object_above_max_properties")


def test_a_null_bias_is_rejected() -> None:
    error = refuse({"model": "m", "logit_bias": {"5": None}})
    assert error.message == "Invalid type for 'logit_bias.5': expected a decimal, but got null instead."


@pytest.mark.parametrize("path", ["stream_options.foo", "options.mirostat"])
def test_an_unknown_inner_field_is_named(path: str) -> None:
    error = refuse(at(path, 1))
    assert (error.message, error.param, error.code) == (
        f"Unknown parameter: '{path}'.",
        path,
        "unknown_parameter",
    )


@pytest.mark.parametrize(
    ("field", "value", "shown", "supported"),
    [
        ("return_hidden_states", True, "true", "false"),
        ("return_hidden_states", 0, "0", "false"),
        ("use_beam_search", True, "true", "false"),
        ("cache_prompt", False, "false", "true"),
        ("truncate_prompt_tokens", 0, "0", "-1 or a positive number"),
        ("keep_alive", 0, "0", "a time other than zero"),
        ("keep_alive", "0s", "0s", "a time other than zero"),
    ],
)
def test_an_unsupported_value_of_a_dialect_is_rejected(field: str, value: object, shown: str, supported: str) -> None:
    error = refuse({"model": "m", field: value})
    assert error.message == (f"Unsupported value: '{field}' does not support {shown}. Only {supported} is supported.")
    assert (error.param, error.code) == (field, "unsupported_value")


@pytest.mark.parametrize("value", [True, "soon", "", [], {}], ids=str)
def test_keep_alive_must_be_a_time(value: object) -> None:
    assert refuse({"model": "m", "keep_alive": value}).code == "invalid_type"


@pytest.mark.parametrize("options", [{}, {"include_usage": True}, {"include_usage": None}], ids=str)
@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}], ids=str)
def test_stream_options_require_stream(options: object, stream: dict[str, object]) -> None:
    error = refuse({"model": "m", "stream_options": options, **stream})
    assert error.message == "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    assert (error.param, error.code) == ("stream_options", None)


def test_best_of_below_n_is_rejected_as_recorded() -> None:
    error = refuse({"model": "m", "n": 2, "best_of": 1})
    assert error.message == (
        "You requested that the server return more choices than it will generate (HINT: you must set 'n' "
        "(currently 2) to be at most 'best_of' (currently 1), or omit either parameter if you don't "
        "specifically want to use them.)"
    )
    assert (error.param, error.code) == (None, None)


def test_best_of_above_n_cannot_be_streamed() -> None:
    error = refuse({"model": "m", "best_of": 2, "stream": True})
    assert error.message.startswith("Results cannot be streamed when 'best_of' (currently 2)")
    assert error.param == "best_of"


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({"min_tokens": 17}, 16), ({"min_tokens": 17, "max_tokens": 20, "max_completion_tokens": 5}, 5)],
    ids=str,
)
def test_min_tokens_above_max_tokens_is_rejected(fields: dict[str, object], limit: int) -> None:
    error = refuse({"model": "m"} | fields)
    assert error.message.endswith(f"Expected a value <= {limit}, but got 17 instead.")
    assert (error.param, error.code) == ("min_tokens", "integer_above_max_value")
