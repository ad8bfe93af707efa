"""Parses the text of a flag to a JSON value, by the kind of its parameter.

Text that only resembles YAML stays text: it is parsed as YAML if it has brackets or quotes and the parameter accepts
the type of the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeGuard

from onward.api.parameter import Parameter
from onward.cli.output.terminal import excerpt, warn
from onward.cli.request.contents import STDIN_NAMES, Stdin, embed
from onward.cli.request.yaml12 import NotYaml, load

TRUE_WORDS = frozenset({"true", "t", "1"})
FALSE_WORDS = frozenset({"false", "f", "0"})
TRI_STATE_WORDS = frozenset({"true", "false", "null"})
"""Words that a bare boolean flag takes from the next argument as its value."""
_LIST_OF_TEXTS = re.compile(r"""\s*\[\s*["']""")


def value_of(row: Parameter, text: str, stdin: Stdin) -> Any:
    """Return the JSON value of `text` for this parameter.

    Raises ValueError, whose message says what is allowed, and UsageError for contents that cannot be read.
    """
    if text == "null" and row.nullable:
        return None
    if row.kind == "prompt" and text in STDIN_NAMES:
        return stdin.take(row.flag)
    value = _PARSERS[row.kind](text)
    if value == text and row.kind in ("prompt", "stop") and _LIST_OF_TEXTS.match(text):
        warn(f"{row.flag}: {excerpt(text)} starts like a list of strings but is not one; using it as literal text.")
    return embed(value, stdin, row.flag)


def _string(text: str) -> str:
    return text


def _integer(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        hint = f": write {text.lstrip('+-0') or '0'} or 0o…" if text.lstrip("+-").isdigit() else ""
        raise ValueError(f"it must be an integer or null{hint}") from None


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or "_" in text:
        raise ValueError("it must be a number or null")
    return value


def _boolean(text: str) -> bool:
    word = text.lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError("it must be true, false or null")


def _prompt(text: str) -> Any:
    """Return a string, strings, token ids or lists of token ids; any other YAML is literal text."""
    value = _flow(text)
    lists_of_ids = isinstance(value, list) and all(_is_ids(item) for item in value)
    is_list = _lists_strings(text, value) or _is_ids(value) or lists_of_ids
    return value if isinstance(value, str) or is_list else text


def _prediction(text: str) -> Any:
    """Return the object; text is wrapped in one."""
    value = _flow(text)
    if isinstance(value, dict):
        return value
    return {"type": "content", "content": value if isinstance(value, str) else text}


def _stop(text: str) -> Any:
    value = _flow(text)
    return value if isinstance(value, str) or _lists_strings(text, value) else text


def _strings(text: str) -> Any:
    value = _stop(text)
    return [value] if isinstance(value, str) else value


def _token_ids(text: str) -> Any:
    value = _flow(text)
    if value != [] and not _is_ids(value):
        raise ValueError("it must be an array of token ids, such as [198, 50256], or null")
    return value


def _json_schema(text: str) -> Any:
    """Return the object; a file's name or other text is for the server to read."""
    value = _flow(text)
    return value if isinstance(value, dict) else text


def _response_format(text: str) -> Any:
    return {"type": text} if text in ("text", "json_object") else _mapping(text)


def _mapping(text: str) -> Any:
    try:
        value = load(text)
    except NotYaml:
        value = None
    if not isinstance(value, dict):
        raise ValueError("it must be an object in YAML or JSON, such as '{key: value}', or null")
    return value


def _anything(text: str) -> Any:
    """Return the YAML value of another server's parameter, or the text if it is not YAML."""
    try:
        return load(text)
    except NotYaml:
        return text


def _flow(text: str) -> Any:
    try:
        return load(text, flow_only=True)
    except NotYaml:
        return text


def _lists_strings(text: str, value: object) -> bool:
    """Return whether a text is a list of strings. One word in brackets without quotes, as in `[END]`, is a text."""
    if not _is_strings(value):
        return False
    return len(value) != 1 or _LIST_OF_TEXTS.match(text) is not None


def _is_strings(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "prompt": _prompt,
    "prediction": _prediction,
    "stop": _stop,
    "strings": _strings,
    "token_ids": _token_ids,
    "json_schema": _json_schema,
    "response_format": _response_format,
    "logit_bias": _mapping,
    "object": _mapping,
    "fixed": _anything,
    "duration": _anything,
}
