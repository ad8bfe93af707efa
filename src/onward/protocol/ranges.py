"""Checks of single values: type and range. Each gives the value as CompletionRequest holds it, or raises.

A check gets the parameter's row, the value (never None), and its path in the request body, for the words.
"""

from __future__ import annotations

import re

from onward.protocol import refusals
from onward.protocol.parameter import Parameter, Profile

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_DURATION = re.compile(r"(-?\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+", re.ASCII)


def check_integer(row: Parameter, value: object, path: str, profile: Profile) -> int:
    """An integer in range; one above the row's cap is lowered to it, outside the strict profile."""
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
    if type(value) is bool or not isinstance(value, (int, float)):
        raise refusals.wrong_type(path, "a decimal", value)
    if row.minimum is not None and value < row.minimum:
        raise refusals.below_minimum(path, "decimal", row.minimum, value)
    if row.maximum is not None and not value <= row.maximum:  # "not": NaN, which only Python can pass, is refused
        raise refusals.above_maximum(path, "decimal", row.maximum, value)
    return float(value)


def check_boolean(row: Parameter, value: object, path: str, profile: Profile) -> bool:
    if type(value) is not bool:
        raise refusals.wrong_type(path, "a boolean", value)
    return value


def check_string(row: Parameter, value: object, path: str, profile: Profile) -> str | None:
    """A string; an empty one means "not given" (spec/completions §2.12)."""
    return unicode_text(value, path) or None


def unicode_text(value: object, path: str) -> str:
    """A string that UTF-8 can carry. A lone surrogate can only come from Python, not from a JSON body."""
    if not isinstance(value, str):
        raise refusals.wrong_type(path, "a string", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise refusals.not_unicode(path) from None
    return value


def check_fixed(row: Parameter, value: object, path: str, profile: Profile) -> None:
    """A field that passes only with the value that describes what happens anyway."""
    if not any(type(value) is type(allowed) and value == allowed for allowed in row.only):
        raise refusals.unsupported_value(path, value, refusals.json_word(row.only[0]))


def check_duration(row: Parameter, value: object, path: str, profile: Profile) -> None:
    """A time other than zero: "5m", or a number of seconds; negative means for ever."""
    if isinstance(value, str) and _DURATION.fullmatch(value):
        zero = not re.search("[1-9]", value)
    elif type(value) is not bool and isinstance(value, (int, float)):
        zero = value == 0
    else:
        raise refusals.wrong_type(path, "one of a duration string or a number of seconds", value)
    if zero:
        raise refusals.unsupported_value(path, value, "a time other than zero")


def check_link(row: Parameter, value: object, path: str, profile: Profile) -> None:
    unicode_text(value, path)
