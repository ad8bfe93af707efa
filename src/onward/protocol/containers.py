"""Checks of `stop` and `logit_bias` (spec/completions §2.8, §2.11)."""

from __future__ import annotations

from onward.protocol import refusals
from onward.protocol.parameter import Parameter, Profile
from onward.protocol.ranges import INT64_MAX, check_number, unicode_text


def check_stop(row: Parameter, value: object, path: str, profile: Profile) -> tuple[str, ...]:
    """One string or an array of them; `[]` is none. Lenient takes any number (spec/wire-rules 20)."""
    if isinstance(value, str):
        return (_stop(value, path),)
    if not isinstance(value, (list, tuple)):
        raise refusals.wrong_type(path, "one of a string or array of strings", value)
    if row.max_items is not None and len(value) > row.max_items and profile != "lenient":
        raise refusals.array_too_long(path, row.max_items, len(value))
    return tuple(_stop(text, f"{path}[{index}]") for index, text in enumerate(value))


def _stop(value: object, path: str) -> str:
    text = unicode_text(value, path)
    if not text:
        raise refusals.empty_string(path)
    return text


def check_logit_bias(row: Parameter, value: object, path: str, profile: Profile) -> dict[int, float]:
    """Token id → bias. Whether an id is in the vocabulary is checked where the vocabulary is known."""
    if not isinstance(value, dict):
        raise refusals.wrong_type(path, "an object", value)
    if row.max_items is not None and len(value) > row.max_items:
        raise refusals.too_many_properties(path, row.max_items, len(value))
    return {_token_id(key): check_number(row, bias, f"{path}.{key}", profile) for key, bias in value.items()}


def _token_id(key: object) -> int:
    """A key's token id. Python callers may give the integer itself, JSON cannot."""
    text = str(key) if type(key) is not int or key.bit_length() <= 64 else "9" * 20
    if not (text.isascii() and text.isdigit()):
        raise refusals.logit_bias_key(text)
    if len(text.lstrip("0")) > len(str(INT64_MAX)) or int(text) > INT64_MAX:
        raise refusals.logit_bias_key_too_large(text, INT64_MAX)
    return int(text)
