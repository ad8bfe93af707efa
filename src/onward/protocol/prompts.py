"""The four forms of a prompt (spec/completions §2.2). Its first element says which one an array is."""

from __future__ import annotations

from onward.protocol import refusals
from onward.protocol.parameter import Parameter, Profile
from onward.protocol.ranges import INT64_MAX, INT64_MIN, unicode_text
from onward.protocol.request import Prompt

_FORMS = "one of a string, array of strings, array of integers, or array of integer arrays"


def check_prompt(row: Parameter, value: object, path: str, profile: Profile) -> Prompt | None:
    """A prompt in one form throughout; None for `[]`, which stands for no prompt.

    Token ids are only known to be 64-bit integers here: the vocabulary is checked where it is known.
    """
    if isinstance(value, str):
        return unicode_text(value, path)
    if not isinstance(value, (list, tuple)):
        raise refusals.wrong_type(path, _FORMS, value)
    if not value:
        return None
    first = value[0]
    if isinstance(first, str):
        return [unicode_text(text, f"{path}[{index}]") for index, text in enumerate(value)]
    if type(first) is int:
        return _tokens(value, path)
    if isinstance(first, (list, tuple)):
        return [_tokens(tokens, f"{path}[{index}]") for index, tokens in enumerate(value)]
    raise refusals.wrong_type(f"{path}[0]", "one of a string, an integer or an array of integers", first)


def _tokens(value: object, path: str) -> list[int]:
    """A non-empty array of 64-bit integers. Built on C loops: 100,000 ids take a few milliseconds."""
    if not isinstance(value, (list, tuple)):
        raise refusals.wrong_type(path, "an array of integers", value)
    if not value:
        raise refusals.empty_array(path)
    if set(map(type, value)) != {int}:
        index = next(index for index, token in enumerate(value) if type(token) is not int)
        raise refusals.wrong_type(f"{path}[{index}]", "an integer", value[index])
    for extreme in (min(value), max(value)):
        if not INT64_MIN <= extreme <= INT64_MAX:
            raise refusals.token_out_of_range(extreme, INT64_MAX)
    return list(value)
