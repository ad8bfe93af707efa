"""Checks of field values: type and range of each field, then the rules between fields.

A check takes the parameter's row in the table, the value (never None), its path in the request body for error messages,
and the profile. It returns the value as CompletionRequest holds it, or raises InvalidRequest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import msgspec

from onward.api import refusals
from onward.api.extension_parameters import LOGIT_EDITS
from onward.api.parameter import Parameter, Profile
from onward.api.schema_checks import (
    check_json_format,
    check_json_schema,
    check_response_format,
    check_typed_grammar,
)
from onward.completions.request import CompletionRequest, Prompt
from onward.errors import InvalidRequest

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_DURATION = re.compile(r"(-?\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+", re.ASCII)
_PROMPT_FORMS = "one of a string, array of strings, array of integers, or array of integer arrays"


def check_integer(row: Parameter, value: object, path: str, profile: Profile) -> int:
    """Return an integer in range; outside the strict profile, at most the row's cap. Raises InvalidRequest."""
    if row.takes_whole_floats and type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise refusals.wrong_type(path, "an integer", value)
    minimum = INT64_MIN if row.minimum is None else row.minimum
    if value < minimum:
        raise refusals.below_minimum(path, "integer", minimum, value)
    strict = row.strict_maximum if profile == "strict" else None
    maximum = next((bound for bound in (strict, row.maximum) if bound is not None), INT64_MAX)
    if value > maximum:
        raise refusals.above_maximum(path, "integer", maximum, value)
    return value if row.cap is None else min(value, row.cap)


def check_number(row: Parameter, value: object, path: str, profile: Profile) -> float:
    """Return an integer or a float in range, as float. Raises InvalidRequest, also for NaN from Python callers."""
    if type(value) is bool or not isinstance(value, (int, float)):
        raise refusals.wrong_type(path, "a decimal", value)
    if row.minimum is not None and value < row.minimum:
        raise refusals.below_minimum(path, "decimal", row.minimum, value)
    if row.maximum is not None and not value <= row.maximum:  # also true for NaN
        raise refusals.above_maximum(path, "decimal", row.maximum, value)
    return float(value)


def check_boolean(row: Parameter, value: object, path: str, profile: Profile) -> bool:
    """Return a boolean. Raises InvalidRequest, also for 0 and 1."""
    if type(value) is not bool:
        raise refusals.wrong_type(path, "a boolean", value)
    return value


def check_string(row: Parameter, value: object, path: str, profile: Profile) -> str | None:
    """Return a string; None for an empty one, which means "not set" (behaviour §2.12). Raises InvalidRequest."""
    return unicode_text(value, path) or None


def unicode_text(value: object, path: str) -> str:
    """Return a string that can be encoded as UTF-8.

    Lone surrogates are rejected: Python callers may pass them, JSON bodies cannot contain them. Raises InvalidRequest.
    """
    if not isinstance(value, str):
        raise refusals.wrong_type(path, "a string", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise refusals.not_unicode(path) from None
    return value


def check_fixed(row: Parameter, value: object, path: str, profile: Profile) -> None:
    """Raise InvalidRequest unless the value is one of `row.only`, which describe the server's behaviour.

    Without any, the field is refused whatever its value, for the reason in its help.
    """
    if not row.only:
        raise refusals.unavailable(path, row.help)
    if not any((type(value) is bool) == (type(allowed) is bool) and value == allowed for allowed in row.only):
        raise refusals.unsupported_value(path, value, refusals.json_text(row.only[0]))


def check_duration(row: Parameter, value: object, path: str, profile: Profile) -> None:
    """Raise InvalidRequest unless the value is a duration such as "5m" or a number of seconds, and not zero. A negative
    one means forever."""
    if isinstance(value, str) and _DURATION.fullmatch(value):
        is_zero = not re.search("[1-9]", value)
    elif type(value) is not bool and isinstance(value, (int, float)):
        is_zero = value == 0
    else:
        raise refusals.wrong_type(path, "one of a duration string or a number of seconds", value)
    if is_zero:
        raise refusals.unsupported_value(path, value, "a time other than zero")


def check_link(row: Parameter, value: object, path: str, profile: Profile) -> None:
    """Raise InvalidRequest unless the value is a string. The field has no effect."""
    unicode_text(value, path)


def check_stop(row: Parameter, value: object, path: str, profile: Profile) -> tuple[str, ...]:
    """Return the stop strings of one string or an array (behaviour §2.11); `[]` means none.

    The lenient profile accepts more of them (behaviour W20). Raises InvalidRequest.
    """
    if isinstance(value, str):
        return (_stop_string(value, path),)
    if not isinstance(value, (list, tuple)):
        raise refusals.wrong_type(path, "one of a string or array of strings", value)
    max_items = row.lenient_max_items if profile == "lenient" else row.max_items
    if max_items is not None and len(value) > max_items:
        raise refusals.array_too_long(path, max_items, len(value))
    return tuple(_stop_string(text, f"{path}[{index}]") for index, text in enumerate(value))


def _stop_string(value: object, path: str) -> str:
    text = unicode_text(value, path)
    if not text:
        raise refusals.empty_string(path)
    return text


def check_logit_bias(row: Parameter, value: object, path: str, profile: Profile) -> dict[int, float]:
    """Return biases by token id (behaviour §2.8). Raises InvalidRequest.

    The limit of the vocabulary is checked in `completions.plan`.
    """
    if not isinstance(value, dict):
        raise refusals.wrong_type(path, "an object", value)
    if row.max_items is not None and len(value) > row.max_items:
        raise refusals.too_many_properties(path, row.max_items, len(value))
    return {_bias_token(key): check_number(row, bias, f"{path}.{key}", profile) for key, bias in value.items()}


def _bias_token(key: object) -> int:
    """Return a key's token id. JSON keys are decimal strings; Python callers may also pass integers."""
    text = str(key) if type(key) is not int or key.bit_length() <= 64 else "9" * 20
    if not (text.isascii() and text.isdigit()):
        raise refusals.logit_bias_key(text)
    digits = text.lstrip("0") or "0"  # Python refuses to convert thousands of digits, zeros included
    if len(digits) > len(str(INT64_MAX)) or int(digits) > INT64_MAX:
        raise refusals.logit_bias_key_too_large(text, INT64_MAX)
    return int(digits)


def check_prompt(row: Parameter, value: object, path: str, profile: Profile) -> Prompt | None:
    """Return a prompt in one of the four forms (behaviour §2.2), or None for `[]`, which means no prompt.

    The first element of an array determines its form. Token ids are only checked to be 64-bit integers; the
    limit of the vocabulary is checked in `completions.plan`. Raises InvalidRequest.
    """
    if isinstance(value, str):
        return unicode_text(value, path)
    if not isinstance(value, (list, tuple)):
        raise refusals.wrong_type(path, _PROMPT_FORMS, value)
    if not value:
        return None
    first = value[0]
    if isinstance(first, str):
        return [unicode_text(text, f"{path}[{index}]") for index, text in enumerate(value)]
    if type(first) is int:
        return _prompt_ids(value, path)
    if isinstance(first, (list, tuple)):
        return [_prompt_ids(tokens, f"{path}[{index}]") for index, tokens in enumerate(value)]
    raise refusals.wrong_type(f"{path}[0]", "one of a string, an integer or an array of integers", first)


def _prompt_ids(value: object, path: str) -> list[int]:
    tokens = _token_ids(value, path)
    if min(tokens) < INT64_MIN or max(tokens) > INT64_MAX:
        raise refusals.token_out_of_range(max(tokens, key=abs), INT64_MAX)
    return tokens


def _token_ids(value: object, path: str) -> list[int]:
    """Return a non-empty array of integers. Uses C loops only: 100,000 ids take a few milliseconds."""
    if not isinstance(value, (list, tuple)):
        raise refusals.wrong_type(path, "an array of integers", value)
    if not value:
        raise refusals.empty_array(path)
    if set(map(type, value)) != {int}:
        index = next(index for index, token in enumerate(value) if type(token) is not int)
        raise refusals.wrong_type(f"{path}[{index}]", "an integer", value[index])
    return list(value)


def check_token_ids(row: Parameter, value: object, path: str, profile: Profile) -> tuple[int, ...]:
    """Return token ids, possibly none; the vocabulary is the concern of `completions.token_rules`. Raises
    InvalidRequest."""
    if isinstance(value, str) and row.text == "commas":
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
            raise refusals.wrong_type(path, "an array of integers, or integers separated by commas", value)
        value = [int(part) for part in parts]
    if isinstance(value, (list, tuple)) and not value:
        return ()
    if isinstance(value, (list, tuple)) and row.max_items is not None and len(value) > row.max_items:
        raise refusals.array_too_long(path, row.max_items, len(value))
    tokens = _token_ids(value, path)
    for extreme in (min(tokens), max(tokens)):
        check_integer(replace(row, minimum=0), extreme, f"{path}[{tokens.index(extreme)}]", profile)
    return tuple(tokens)


def check_prediction(row: Parameter, value: object, path: str, profile: Profile) -> str | None:
    """Return the predicted text, its parts joined; None for an empty one. Raises InvalidRequest.

    The format is that of OpenAI's Chat API.
    """
    fields = _typed_object(value, path, "content", profile)
    content, path = fields["content"], f"{path}.content"
    if isinstance(content, str):
        return unicode_text(content, path) or None
    if not isinstance(content, (list, tuple)):
        raise refusals.wrong_type(path, "one of a string or array of objects", content)
    if not content:
        raise refusals.empty_array(path)
    return "".join(_text_part(part, f"{path}[{index}]", profile) for index, part in enumerate(content)) or None


def _text_part(value: object, path: str, profile: Profile) -> str:
    return unicode_text(_typed_object(value, path, "text", profile)["text"], f"{path}.text")


def _typed_object(value: object, path: str, kind: str, profile: Profile) -> dict[str, object]:
    """Return an object whose `type` is `kind` and which has a field named `kind`."""
    if not isinstance(value, dict):
        raise refusals.wrong_type(path, "an object", value)
    if profile != "lenient":
        for name in value:
            if name not in ("type", kind):
                raise refusals.unknown_inner(f"{path}.{name}")
    for name in ("type", kind):
        if name not in value:
            raise refusals.missing(f"{path}.{name}")
    given = unicode_text(value["type"], f"{path}.type")
    if given != kind:
        raise refusals.no_such_value(f"{path}.type", given, kind)
    return value


def check_strings(row: Parameter, value: object, path: str, profile: Profile) -> tuple[str, ...]:
    """Return an array of strings. Raises InvalidRequest, also for a string that is not one of `row.only`."""
    if isinstance(value, str) and row.text == "json":
        value = _array_in_json(value, path)
    if not isinstance(value, (list, tuple)):
        raise refusals.wrong_type(path, "an array of strings", value)
    if row.max_items is not None and len(value) > row.max_items:
        raise refusals.array_too_long(path, row.max_items, len(value))
    texts = tuple(unicode_text(text, f"{path}[{index}]") for index, text in enumerate(value))
    for index, text in enumerate(texts):
        if row.only and text not in row.only:
            raise refusals.no_such_value(f"{path}[{index}]", text, "', '".join(map(str, row.only)))
    return texts


def _array_in_json(text: str, path: str) -> object:
    """Return what a string contains, with or without the brackets of an array."""
    try:
        return msgspec.json.decode(text if text.lstrip().startswith("[") else f"[{text}]")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise refusals.wrong_type(path, "an array of strings, also in JSON", text) from None


def check_snippets(row: Parameter, value: object, path: str, profile: Profile) -> tuple[tuple[str, str], ...]:
    """Return (filepath, body) pairs. Raises InvalidRequest."""
    return _check_texts(row, value, path, profile, ("filepath", "body", "score"))


def check_files(row: Parameter, value: object, path: str, profile: Profile) -> tuple[tuple[str, str], ...]:
    """Return (filename, text) pairs; a file may have no name. Raises InvalidRequest."""
    return _check_texts(row, value, path, profile, ("filename", "text", "time"))


def _check_texts(
    row: Parameter, value: object, path: str, profile: Profile, names: tuple[str, str, str]
) -> tuple[tuple[str, str], ...]:
    """Return pairs of the values of the first two `names`; the third is accepted and has no effect."""
    if not isinstance(value, (list, tuple)):
        raise refusals.wrong_type(path, "an array of objects", value)
    if row.max_items is not None and len(value) > row.max_items:
        raise refusals.array_too_long(path, row.max_items, len(value))
    return tuple(_file(each, f"{path}[{index}]", profile, names) for index, each in enumerate(value))


def _file(value: object, path: str, profile: Profile, names: tuple[str, str, str]) -> tuple[str, str]:
    name_of, text_of, _ = names
    if not isinstance(value, dict):
        raise refusals.wrong_type(path, "an object", value)
    if text_of not in value:
        raise refusals.missing(f"{path}.{text_of}")
    for name in value:
        if name not in names and profile != "lenient":
            raise refusals.unknown_inner(f"{path}.{name}")
    return (
        unicode_text(value.get(name_of, "tmp"), f"{path}.{name_of}"),
        unicode_text(value[text_of], f"{path}.{text_of}"),
    )


def check_token_biases(row: Parameter, value: object, path: str, profile: Profile) -> dict[int, float]:
    """Return biases by token id; `false` bans the token. Raises InvalidRequest, also for a token that is text."""
    if isinstance(value, dict):
        return check_logit_bias(row, value, path, profile)
    if not isinstance(value, (list, tuple)):
        raise refusals.wrong_type(path, "one of an object or array of pairs", value)
    if row.max_items is not None and len(value) > row.max_items:
        raise refusals.array_too_long(path, row.max_items, len(value))
    biases: dict[int, float] = {}
    for index, pair in enumerate(value):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise refusals.wrong_type(f"{path}[{index}]", "a pair of a token id and a bias", pair)
        token, bias = pair
        if type(token) is not int:
            raise refusals.wrong_type(f"{path}[{index}][0]", "a token id", token)
        banned = row.minimum or 0.0
        biases[_bias_token(token)] = (
            banned if bias is False else check_number(row, bias, f"{path}[{index}][1]", profile)
        )
    return biases


def check_fields_together(request: CompletionRequest) -> CompletionRequest:
    """Return the request unchanged if its fields are compatible. Raises InvalidRequest.

    Rejected are `best_of` below `n`, streaming with `best_of` above `n` (behaviour §2.5) or `prompt_logprobs`,
    `min_tokens` above `max_tokens`, and several constraints. `best_of` equal to `n` can be streamed: nothing is ranked.
    """
    best_of = request.best_of
    if best_of is not None and best_of < request.n:
        raise refusals.best_of_below_n(request.n, best_of)
    if best_of is not None and best_of > request.n and request.stream:
        raise refusals.best_of_streamed(request.n, best_of)
    if request.prompt_logprobs is not None and request.stream:
        raise refusals.prompt_logprobs_streamed()
    if request.truncate_prompt_tokens == 0:
        raise refusals.unsupported_value("truncate_prompt_tokens", 0, "-1 or a positive number")
    _check_order(request.samplers or ())
    if request.min_tokens > request.max_tokens:
        raise refusals.above_maximum("min_tokens", "integer", request.max_tokens, request.min_tokens)
    check_constraints(request)
    return request


def _check_order(samplers: tuple[str, ...]) -> None:
    """Raise InvalidRequest if a sampler that changes logits is listed after one that reads them."""
    first = [name for name in LOGIT_EDITS if name in samplers]
    if list(samplers[: len(first)]) != first:
        raise InvalidRequest(
            "Unsupported value: 'samplers' can list 'penalties' and 'dry' only first, in this order: they change "
            "logits, which the others read.",
            param="samplers",
            code="unsupported_value",
        )


def check_constraints(request: CompletionRequest) -> None:
    """Raise InvalidRequest if several parameters constrain the text."""
    if len(request.constraints) > 1:
        raise refusals.several_constraints(*request.constraints[:2])


CHECKS: dict[str, Callable[[Parameter, object, str, Profile], object]] = {
    "string": check_string,
    "integer": check_integer,
    "number": check_number,
    "boolean": check_boolean,
    "prompt": check_prompt,
    "prediction": check_prediction,
    "stop": check_stop,
    "logit_bias": check_logit_bias,
    "fixed": check_fixed,
    "duration": check_duration,
    "link": check_link,
    "strings": check_strings,
    "files": check_files,
    "snippets": check_snippets,
    "token_biases": check_token_biases,
    "token_ids": check_token_ids,
    "json_schema": check_json_schema,
    "response_format": check_response_format,
    "json_format": check_json_format,
    "typed_grammar": check_typed_grammar,
}
"""The check of each `Parameter.kind` except "object", whose fields are checked one by one."""
