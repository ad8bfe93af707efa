"""Rejected requests: OpenAI's messages, with `param` and `code`."""

from __future__ import annotations

import pytest

from onward.api.openai.decode import check_request
from onward.errors import InvalidRequest
from tests.tables import each_row

from .refuse import at, refuse

INT64_MAX = 2**63 - 1
PROMPT_FORMS = "one of a string, array of strings, array of integers, or array of integer arrays"


@each_row(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"model":"m"',
        b"not json",
        b"{'model':'m'}",
        b'{"model":"m",}',
        b'{"model":"m"} x',
        b'{"temperature":NaN}',
        b'{"temperature":Infinity}',
        b'{"temperature":1e999}',
        b'{"n":' + b"9" * 5000 + b"}",
        b'{"prompt":"\xff"}',
        b'{"prompt":"\xed\xa0\x80"}',
        b'{"prompt":"\\ud800"}',
        b'{"prompt":"\\udc00"}',
        b'{"\\ud83d":1}',
        b"\xef\xbb\xbf\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b" \xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_not_json_is_rejected(body: bytes) -> None:
    error = refuse(body)
    assert error.message.startswith("We could not parse the JSON body of your request: ")
    assert (error.param, error.code) == (None, None)


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (b"[]", "an array"),
        (b"null", "null"),
        (b"1", "an integer"),
        (b"1.5", "a decimal number"),
        (b'"x"', "a string"),
        (b"true", "a boolean"),
    ],
)
def test_a_body_that_is_not_an_object_is_rejected(body: bytes, got: str) -> None:
    error = refuse(body)
    assert error.message == f"Invalid type for the request body: expected an object, but got {got} instead."
    assert (error.param, error.code) == (None, "invalid_type")


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": ""}, {"foo": 1}, {"n": "x"}], ids=str)
def test_a_missing_model_is_reported_before_all_other_errors(body: object) -> None:
    error = refuse(body)
    assert (error.message, error.param, error.code) == ("you must provide a model parameter", None, None)


def test_the_models_of_body_and_path_must_be_equal() -> None:
    error = refuse({"model": "a"}, path_model="b")
    assert (error.message, error.param) == ("Cannot specify both model and engine", "model")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"foo": 1}, "Unrecognized request argument supplied: foo"),
        ({"foo": None}, "Unrecognized request argument supplied: foo"),
        ({"foo": 1, "n": 1, "bar": 2}, "Unrecognized request arguments supplied: foo, bar"),
        ({"foo": 1, "n": "x"}, "Unrecognized request argument supplied: foo"),
        ({"messages": []}, "Unrecognized request argument supplied: messages"),
        ({"include_usage": True}, "Unrecognized request argument supplied: include_usage"),
        ({"temprature": 1}, "Unrecognized request argument supplied: temprature. Did you mean 'temperature'?"),
        ({"x" * 5000: 1}, f"Unrecognized request argument supplied: {'x' * 5000}"),
    ],
    ids=str,
)
def test_an_unknown_field_is_named(fields: dict[str, object], words: str) -> None:
    error = refuse({"model": "m"} | fields)
    assert (error.message, error.param, error.code) == (words, None, None)


WRONG: dict[str, list[tuple[object, str]]] = {
    "integer": [
        ("1", "a string"),
        (True, "a boolean"),
        (1.5, "a decimal number"),
        (1.0, "a decimal number"),
        ([1], "an array"),
        ({}, "an object"),
    ],
    "decimal": [("1", "a string"), (False, "a boolean"), ([1], "an array"), ({}, "an object")],
    "boolean": [("true", "a string"), (1, "an integer"), (0.0, "a decimal number"), ([], "an array")],
    "string": [(1, "an integer"), (True, "a boolean"), (["a"], "an array"), ({}, "an object")],
    "object": [(1, "an integer"), (True, "a boolean"), ("{}", "a string"), ([], "an array")],
    "one of a string or array of strings": [(1, "an integer"), (True, "a boolean"), ({}, "an object")],
    PROMPT_FORMS: [(5, "an integer"), (1.5, "a decimal number"), (True, "a boolean"), ({"a": 1}, "an object")],
}
KINDS = {
    "integer": [
        "best_of", "logprobs", "max_tokens", "n", "seed", "top_k", "min_tokens", "max_completion_tokens",
        "n_predict", "options.num_predict", "options.seed",
    ],
    "decimal": [
        "frequency_penalty", "presence_penalty", "temperature", "top_p", "min_p", "repetition_penalty",
        "repeat_penalty", "options.temperature", "logit_bias.5",
    ],
    "boolean": [
        "echo", "stream", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "no_stop_trim",
        "return_tokens_as_token_ids", "add_special_tokens", "stream_options.include_usage",
        "stream_options.include_obfuscation", "stream_options.continuous_usage_stats",
    ],
    "string": ["model", "suffix", "user", "$schema"],
    "object": ["logit_bias", "stream_options", "options", "prediction"],
    "one of a string or array of strings": ["stop"],
    PROMPT_FORMS: ["prompt"],
}  # fmt: skip
ARTICLES = {"integer": "an integer", "decimal": "a decimal", "boolean": "a boolean", "string": "a string"}
WRONG_TYPES = [
    (path, ARTICLES.get(kind, "an object" if kind == "object" else kind), value, got)
    for kind, paths in KINDS.items()
    for path in paths
    for value, got in WRONG[kind]
]


@each_row(("path", "expected", "value", "got"), WRONG_TYPES, ids=str)
def test_the_error_of_a_wrong_type_names_the_expected_type(path: str, expected: str, value: object, got: str) -> None:
    error = refuse(at(path, value))
    assert error.message == f"Invalid type for '{path}': expected {expected}, but got {got} instead."
    assert (error.param, error.code) == (path, "invalid_type")


BELOW = [
    ("best_of", "integer", 0, -1),
    ("logprobs", "integer", 0, -1),
    ("max_tokens", "integer", 0, -5),
    ("max_completion_tokens", "integer", 0, -1),
    ("n_predict", "integer", 0, -1),
    ("options.num_predict", "integer", 0, -1),
    ("n", "integer", 1, 0),
    ("seed", "integer", -(2**63), -(2**63) - 1),
    ("top_k", "integer", -1, -2),
    ("min_tokens", "integer", 0, -1),
    ("frequency_penalty", "decimal", -2, -2.1),
    ("presence_penalty", "decimal", -2, -3),
    ("temperature", "decimal", 0, -0.1),
    ("top_p", "decimal", 0, -0.5),
    ("min_p", "decimal", 0, -1),
    ("repetition_penalty", "decimal", 0.01, 0),
    ("repeat_penalty", "decimal", 0.01, -1),
    ("logit_bias.5", "decimal", -100, -100.5),
]
ABOVE = [
    ("best_of", "integer", 20, 21),
    ("n", "integer", 128, 129),
    ("seed", "integer", INT64_MAX, 2**63),
    ("max_tokens", "integer", INT64_MAX, 2**63),
    ("logprobs", "integer", INT64_MAX, 10**30),
    ("top_k", "integer", INT64_MAX, 2**64),
    ("frequency_penalty", "decimal", 2, 2.5),
    ("presence_penalty", "decimal", 2, 3),
    ("temperature", "decimal", 2, 2.5),
    ("top_p", "decimal", 1, 1.5),
    ("min_p", "decimal", 1, 1.01),
    ("repetition_penalty", "decimal", 100, 101),
    ("options.top_p", "decimal", 1, 2),
    ("logit_bias.5", "decimal", 100, 101),
]


@each_row(("path", "noun", "minimum", "value"), BELOW, ids=str)
def test_the_error_of_a_value_below_the_minimum_names_the_minimum(
    path: str, noun: str, minimum: float, value: object
) -> None:
    error = refuse(at(path, value))
    words = f"{noun} below minimum value. Expected a value >= {minimum}, but got {value} instead."
    assert error.message == f"Invalid '{path}': {words}"
    assert (error.param, error.code) == (path, f"{noun}_below_min_value")


@each_row(("path", "noun", "maximum", "value"), ABOVE, ids=str)
def test_the_error_of_a_value_above_the_maximum_names_the_maximum(
    path: str, noun: str, maximum: float, value: object
) -> None:
    error = refuse(at(path, value))
    words = f"{noun} above maximum value. Expected a value <= {maximum}, but got {value} instead."
    assert error.message == f"Invalid '{path}': {words}"
    assert (error.param, error.code) == (path, f"{noun}_above_max_value")


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids", "banned_tokens", "custom_token_bans"])
@pytest.mark.parametrize(
    ("token", "words", "code"),
    [
        (-1, "below minimum value. Expected a value >= 0", "below_min"),
        (-(2**70), "below minimum value. Expected a value >= 0", "below_min"),
        (2**63, f"above maximum value. Expected a value <= {INT64_MAX}", "above_max"),
    ],
    ids=["negative", "below 64 bits", "above 64 bits"],
)
def test_a_token_id_out_of_range_is_located(field: str, token: int, words: str, code: str) -> None:
    error = refuse({"model": "m", field: [5, token]})
    assert error.message == f"Invalid '{field}[1]': integer {words}, but got {token} instead."
    assert (error.param, error.code) == (f"{field}[1]", f"integer_{code}_value")


@each_row(
    ("fields", "code"),
    [
        ({"prompt": "\ud800"}, "invalid_unicode"),
        ({"prompt": ["a", "\udfff"]}, "invalid_unicode"),
        ({"stop": "\ud800"}, "invalid_unicode"),
        ({"model": "\ud800"}, "invalid_unicode"),
        ({"json_schema": "\ud800"}, "invalid_unicode"),
        ({"json_schema": {"const": "\ud800"}}, "invalid_unicode"),
        ({"choice": ["\ud800"]}, "invalid_unicode"),
        ({"temperature": float("nan")}, "decimal_above_max_value"),
        ({"top_p": float("inf")}, "decimal_above_max_value"),
        ({"logit_bias": {5: float("nan")}}, "decimal_above_max_value"),
        ({"logit_bias": {-5: 1}}, None),
        ({"logit_bias": {True: 1}}, None),
        ({"logit_bias": {10**9999: 1}}, None),
        ({"n": 10**9999}, "integer_above_max_value"),
        ({"prompt": [10**9999]}, None),
        ({"temperature": 10**9999}, "decimal_above_max_value"),
        ({"prompt": {1, 2}}, "invalid_type"),
        ({"prompt": b"bytes"}, "invalid_type"),
        ({"max_tokens": 1 + 2j}, "invalid_type"),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, dict) else ",".join(value),
)
def test_values_that_only_python_can_pass_are_rejected(fields: dict[str, object], code: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_request({"model": "m"} | fields)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "it is empty."),
        (b" \r\n ", "it is empty."),
        (b'{"a": 1', "it ends before the JSON is complete."),
        (
            b'{"prompt": "\xc3\xa9",\n\n  model: 1}',
            "object keys must be strings in double quotes near line 3, column 3.",
        ),
        (b'{"prompt": "\xc3\xa9\xc3\xa9" 1}', "expected ',' or '}' near line 1, column 17."),
        (b'{"a": 1,}', "trailing comma in object near line 1, column 9."),
        (b'{"a":\n"\xc3\xa9\xff"}', "it is not valid UTF-8 at line 2, column 3."),
        (b'{"a": 1e999}', "it contains a number that is out of range."),
        (b'{"a": -' + b"9" * 5000 + b"}", "it contains a number that is out of range."),
        (b"[" * 100_000, "its arrays and objects are nested too deeply."),
    ],
)
def test_the_error_of_malformed_json_says_what_is_wrong_and_where(body: bytes, reason: str) -> None:
    message = refuse(body).message
    assert message == f"We could not parse the JSON body of your request: {reason}"
    assert "openai" not in message.lower()
