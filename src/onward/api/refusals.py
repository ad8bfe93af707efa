"""The errors of invalid requests, with OpenAI's messages. Every function returns an error for its caller to raise.

Messages about types and ranges are those of the API since 2024 ("G3" in behaviour §2), the others were recorded
on this endpoint (§2, §11). `path` locates the value in the body: `stop`, `stop[1]`, `stream_options.include_usage`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Literal

from onward.errors import InvalidRequest

NO_MODEL = "you must provide a model parameter"

MIN_SIMILARITY = 0.8
"""difflib's ratio of two names from which one may be a typing error for the other."""

Noun = Literal["integer", "decimal"]

_TYPE_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal number",
    str: "a string",
    list: "an array",
    tuple: "an array",
    dict: "an object",
}


def _show(value: object) -> str:
    """Return a value for a message. Huge integers are not printed: Python raises ValueError above 4,300 digits."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return str(value)


def not_an_object(value: object) -> InvalidRequest:
    got = _TYPE_NAMES.get(type(value), "something else")
    return InvalidRequest(
        f"Invalid type for the request body: expected an object, but got {got} instead.", code="invalid_type"
    )


def no_model() -> InvalidRequest:
    return InvalidRequest(NO_MODEL)


def model_and_engine() -> InvalidRequest:
    return InvalidRequest("Cannot specify both model and engine", param="model")


def unrecognized(names: Sequence[str], known: Iterable[str] = ()) -> InvalidRequest:
    """Return the error for unknown fields. `known`: the names of which one may have been meant."""
    plural = "s" if len(names) > 1 else ""
    near = difflib.get_close_matches(names[0], list(known), n=1, cutoff=MIN_SIMILARITY) if len(names[0]) < 64 else []
    hint = f". Did you mean '{near[0]}'?" if near else ""
    return InvalidRequest(f"Unrecognized request argument{plural} supplied: {', '.join(names)}{hint}")


def unknown_inner(path: str) -> InvalidRequest:
    return InvalidRequest(f"Unknown parameter: '{path}'.", param=path, code="unknown_parameter")


def missing(path: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter")


def wrong_type(path: str, expected: str, value: object) -> InvalidRequest:
    """Return the error of a wrong type. `expected` has an article: "an integer", "one of a string or …"."""
    got = _TYPE_NAMES.get(type(value)) or f"a value of type {type(value).__name__}"
    return InvalidRequest(
        f"Invalid type for '{path}': expected {expected}, but got {got} instead.",
        param=path,
        code="invalid_type",
    )


def below_minimum(path: str, noun: Noun, minimum: float, value: object) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{path}': {noun} below minimum value. Expected a value >= {minimum}, but got {_show(value)} instead.",
        param=path,
        code=f"{noun}_below_min_value",
    )


def above_maximum(path: str, noun: Noun, maximum: float, value: object) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{path}': {noun} above maximum value. Expected a value <= {maximum}, but got {_show(value)} instead.",
        param=path,
        code=f"{noun}_above_max_value",
    )


def array_too_long(path: str, maximum: int, length: int) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{path}': array too long. Expected an array with maximum length {maximum}, "
        f"but got an array with length {length} instead.",
        param=path,
        code="array_above_max_length",
    )


def string_too_long(path: str, maximum: int, length: int) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{path}': string too long. Expected a string with maximum length {maximum}, but got a string with "
        f"length {length} instead.",
        param=path,
        code="string_above_max_length",
    )


def empty_array(path: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        param=path,
        code="empty_array",
    )


def empty_string(path: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{path}': empty string. Expected a string with minimum length 1, but got an empty string instead.",
        param=path,
        code="empty_string",
    )


def not_unicode(path: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{path}': string is not valid Unicode. A surrogate code point cannot be encoded as UTF-8.",
        param=path,
        code="invalid_unicode",
    )


def too_many_properties(path: str, maximum: int, count: int) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{path}': too many properties. Expected an object with at most {maximum} properties, "
        f"but got an object with {count} properties instead.",
        param=path,
        code="object_above_max_properties",
    )


def no_such_value(path: str, value: str, supported: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid value: '{value[:64]}'. Supported values are: '{supported}'.", param=path, code="invalid_value"
    )


def unsupported_value(path: str, value: object, supported: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported value: '{path}' does not support {json_text(value)}. Only {supported} is supported.",
        param=path,
        code="unsupported_value",
    )


def several_constraints(first: str, second: str) -> InvalidRequest:
    return InvalidRequest(f"Setting '{first}' and '{second}' at the same time is not supported.", param=second)


def unavailable(path: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"Unsupported parameter: '{path}'. {reason}", param=path, code="unsupported_parameter")


def json_text(value: object) -> str:
    """Return a value as JSON if that is short, otherwise the name of its type."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float() | str():
            return _show(value)[:64]
        case []:
            return "an empty array"
        case _:
            return _TYPE_NAMES.get(type(value), "this value")


def logit_bias_key(key: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid key in 'logit_bias': {key}. You should only be submitting non-negative integers.",
        param="logit_bias",
    )


def logit_bias_key_too_large(key: str, maximum: int) -> InvalidRequest:
    return InvalidRequest(f"Invalid key in 'logit_bias': {key}. Maximum value is {maximum}.", param="logit_bias")


def token_out_of_range(token: int, maximum: int) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid token in prompt: {_show(token)}. Minimum value is 0, maximum value is {maximum} (inclusive)."
    )


def best_of_below_n(n: int, best_of: int) -> InvalidRequest:
    return InvalidRequest(
        "You requested that the server return more choices than it will generate (HINT: you must set 'n' "
        f"(currently {n}) to be at most 'best_of' (currently {best_of}), or omit either parameter if you "
        "don't specifically want to use them.)"
    )


def best_of_streamed(n: int, best_of: int) -> InvalidRequest:
    return InvalidRequest(
        f"Results cannot be streamed when 'best_of' (currently {best_of}) is greater than 'n' "
        f"(currently {n}): the best candidates are known only when all of them are complete.",
        param="best_of",
    )


def prompt_logprobs_streamed() -> InvalidRequest:
    return InvalidRequest(
        "Setting 'prompt_logprobs' and 'stream' at the same time is not supported. Set 'echo' and 'logprobs' to stream "
        "the log probabilities of a prompt.",
        param="prompt_logprobs",
    )


def stream_options_without_stream() -> InvalidRequest:
    return InvalidRequest(
        "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
    )
