"""What is refused, in OpenAI's words, with `param` and `code`."""

from __future__ import annotations

import json

import pytest

from onward.errors import InvalidRequest
from onward.protocol.decode import check_request, decode_request

INT64_MAX = 2**63 - 1
PROMPT_FORMS = "one of a string, array of strings, array of integers, or array of integer arrays"
CONTENT_FORMS = "one of a string or array of objects"
TEXT = {"type": "text", "text": "a"}


def refuse(body: object, **options: object) -> InvalidRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(InvalidRequest) as caught:
        decode_request(raw, **options)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
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
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_not_json_is_refused(body: bytes) -> None:
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
def test_a_body_that_is_not_an_object_is_told_so(body: bytes, got: str) -> None:
    error = refuse(body)
    assert error.message == f"Invalid type for the request body: expected an object, but got {got} instead."
    assert (error.param, error.code) == (None, "invalid_type")


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": ""}, {"foo": 1}, {"n": "x"}], ids=str)
def test_a_missing_model_comes_before_every_other_fault(body: object) -> None:
    error = refuse(body)
    assert (error.message, error.param, error.code) == ("you must provide a model parameter", None, None)


def test_the_body_and_the_path_must_name_one_model() -> None:
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


def at(path: str, value: object) -> dict[str, object]:
    """A body that holds `value` at `path`, with `stream` where stream_options need it."""
    outer, _, inner = path.partition(".")
    stream = {"stream": True} if outer == "stream_options" else {}
    return {"model": "m"} | stream | {outer: {inner: value} if inner else value}


@pytest.mark.parametrize(("path", "expected", "value", "got"), WRONG_TYPES, ids=str)
def test_a_value_of_the_wrong_type_is_told_what_was_expected(path: str, expected: str, value: object, got: str) -> None:
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


@pytest.mark.parametrize(("path", "noun", "minimum", "value"), BELOW, ids=str)
def test_a_value_below_its_minimum_is_told_the_minimum(path: str, noun: str, minimum: float, value: object) -> None:
    error = refuse(at(path, value))
    words = f"{noun} below minimum value. Expected a value >= {minimum}, but got {value} instead."
    assert error.message == f"Invalid '{path}': {words}"
    assert (error.param, error.code) == (path, f"{noun}_below_min_value")


@pytest.mark.parametrize(("path", "noun", "maximum", "value"), ABOVE, ids=str)
def test_a_value_above_its_maximum_is_told_the_maximum(path: str, noun: str, maximum: float, value: object) -> None:
    error = refuse(at(path, value))
    words = f"{noun} above maximum value. Expected a value <= {maximum}, but got {value} instead."
    assert error.message == f"Invalid '{path}': {words}"
    assert (error.param, error.code) == (path, f"{noun}_above_max_value")


@pytest.mark.parametrize(
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
def test_a_mixed_prompt_is_told_where(prompt: object, path: str, expected: str, got: str) -> None:
    error = refuse({"model": "m", "prompt": prompt})
    assert error.message == f"Invalid type for '{path}': expected {expected}, but got {got} instead."
    assert (error.param, error.code) == (path, "invalid_type")


def content(*parts: object) -> dict[str, object]:
    return {"type": "content", "content": list(parts)}


@pytest.mark.parametrize(
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
def test_a_prediction_of_another_shape_is_told_where(prediction: object, path: str, rest: object, code: str) -> None:
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


def test_a_prediction_of_no_parts_is_refused() -> None:
    error = refuse({"model": "m", "prediction": content()})
    assert (error.param, error.code) == ("prediction.content", "empty_array")


@pytest.mark.parametrize("held", ["\ud800", [{"type": "text", "text": "\ud800"}]], ids=["text", "part"])
def test_a_prediction_that_is_no_unicode_is_refused(held: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_request({"model": "m", "prediction": {"type": "content", "content": held}})
    assert caught.value.code == "invalid_unicode"


@pytest.mark.parametrize(("prompt", "path"), [([[]], "prompt[0]"), ([[1], []], "prompt[1]")], ids=str)
def test_an_empty_token_array_is_no_prompt(prompt: object, path: str) -> None:
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
def test_a_token_id_beyond_64_bits_is_out_of_any_vocabulary(prompt: object, token: int) -> None:
    error = refuse({"model": "m", "prompt": prompt})
    assert error.message == (
        f"Invalid token in prompt: {token}. Minimum value is 0, maximum value is {INT64_MAX} (inclusive)."
    )
    assert (error.param, error.code) == (None, None)


def test_more_than_four_stops_are_too_many() -> None:
    error = refuse({"model": "m", "stop": list("abcde")})
    assert error.message == (
        "Invalid 'stop': array too long. Expected an array with maximum length 4, "
        "but got an array with length 5 instead."
    )
    assert (error.param, error.code) == ("stop", "array_above_max_length")


@pytest.mark.parametrize(("stop", "path"), [("", "stop"), ([""], "stop[0]"), (["a", ""], "stop[1]")], ids=str)
def test_an_empty_stop_is_refused(stop: object, path: str) -> None:
    error = refuse({"model": "m", "stop": stop})
    assert error.message == (
        f"Invalid '{path}': empty string. Expected a string with minimum length 1, but got an empty string instead."
    )
    assert (error.param, error.code) == (path, "empty_string")


def test_a_stop_that_is_no_string_is_told_where() -> None:
    error = refuse({"model": "m", "stop": ["a", 1]})
    assert error.message == "Invalid type for 'stop[1]': expected a string, but got an integer instead."


@pytest.mark.parametrize("key", ["AI", "-1", "1.0", "", " 1", "+1", "0x10", "१", "²", "1e3"])
def test_a_logit_bias_key_must_be_a_token_id(key: str) -> None:
    error = refuse({"model": "m", "logit_bias": {"1": 0, key: 1}})
    assert error.message == (
        f"Invalid key in 'logit_bias': {key}. You should only be submitting non-negative integers."
    )
    assert (error.param, error.code) == ("logit_bias", None)


@pytest.mark.parametrize("key", [str(2**63), "9" * 5000])
def test_a_logit_bias_key_beyond_64_bits_is_out_of_any_vocabulary(key: str) -> None:
    error = refuse({"model": "m", "logit_bias": {key: 1}})
    assert error.message == f"Invalid key in 'logit_bias': {key}. Maximum value is {INT64_MAX}."
    assert error.param == "logit_bias"


def test_more_than_1024_biases_are_too_many() -> None:
    error = refuse({"model": "m", "logit_bias": {str(token): 1 for token in range(1025)}})
    assert error.message == (
        "Invalid 'logit_bias': too many properties. Expected an object with at most 1024 properties, "
        "but got an object with 1025 properties instead."
    )
    assert (error.param, error.code) == ("logit_bias", "object_above_max_properties")


def test_a_null_bias_is_no_number() -> None:
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
        ("stop_token_ids", [1], "an array", "an empty array"),
        ("keep_alive", 0, "0", "a time other than zero"),
        ("keep_alive", "0s", "0s", "a time other than zero"),
    ],
)
def test_a_dialect_that_cannot_be_served_is_refused(field: str, value: object, shown: str, supported: str) -> None:
    error = refuse({"model": "m", field: value})
    assert error.message == (f"Unsupported value: '{field}' does not support {shown}. Only {supported} is supported.")
    assert (error.param, error.code) == (field, "unsupported_value")


@pytest.mark.parametrize("value", [True, "soon", "", [], {}], ids=str)
def test_keep_alive_must_be_a_time(value: object) -> None:
    assert refuse({"model": "m", "keep_alive": value}).code == "invalid_type"


@pytest.mark.parametrize("options", [{}, {"include_usage": True}, {"include_usage": None}], ids=str)
@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}], ids=str)
def test_stream_options_need_a_stream(options: object, stream: dict[str, object]) -> None:
    error = refuse({"model": "m", "stream_options": options, **stream})
    assert error.message == "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    assert (error.param, error.code) == ("stream_options", None)


def test_best_of_below_n_is_refused_as_recorded() -> None:
    error = refuse({"model": "m", "n": 2, "best_of": 1})
    assert error.message == (
        "You requested that the server return more choices than it will generate (HINT: you must set 'n' "
        "(currently 2) to be at most 'best_of' (currently 1), or omit either parameter if you don't "
        "specifically want to use them.)"
    )
    assert (error.param, error.code) == (None, None)


def test_the_best_candidates_cannot_be_streamed() -> None:
    error = refuse({"model": "m", "best_of": 2, "stream": True})
    assert error.message.startswith("Results cannot be streamed when 'best_of' (currently 2)")
    assert error.param == "best_of"


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({"min_tokens": 17}, 16), ({"min_tokens": 17, "max_tokens": 20, "max_completion_tokens": 5}, 5)],
    ids=str,
)
def test_no_more_tokens_can_be_asked_for_at_least_than_at_most(fields: dict[str, object], limit: int) -> None:
    error = refuse({"model": "m"} | fields)
    assert error.message.endswith(f"Expected a value <= {limit}, but got 17 instead.")
    assert (error.param, error.code) == ("min_tokens", "integer_above_max_value")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"prompt": "\ud800"}, "invalid_unicode"),
        ({"prompt": ["a", "\udfff"]}, "invalid_unicode"),
        ({"stop": "\ud800"}, "invalid_unicode"),
        ({"model": "\ud800"}, "invalid_unicode"),
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
def test_values_that_only_python_can_hold_are_refused(fields: dict[str, object], code: str | None) -> None:
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
        (b"[" * 100_000, "its arrays and objects are nested too deeply."),
    ],
)
def test_the_error_of_malformed_json_says_what_is_wrong_and_where(body: bytes, reason: str) -> None:
    message = refuse(body).message
    assert message == f"We could not parse the JSON body of your request: {reason}"
    assert "openai" not in message.lower()
