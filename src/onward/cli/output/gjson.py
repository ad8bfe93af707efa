"""A subset of the GJSON path language: keys, indices, `#`, queries, modifiers, multipaths.

Implemented here because the library on the package index is under the GPL. Not supported: `~` in queries,
literals (`!`), JSON lines (`..`) and modifiers beyond those in MODIFIERS.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable
from typing import Any, Final


class _Missing:
    """The result of a path that matches nothing. JSON null is a value."""


MISSING: Final = _Missing()
_OPENING, _CLOSING = "([{", ")]}"
_QUERY = re.compile(r"(?P<path>.*?)\s*(?P<operator>==|!=|<=|>=|!%|<|>|%)\s*(?P<value>.*)", re.DOTALL)


def find(value: Any, path: str) -> Any:
    """Return what `path` selects in `value`, or MISSING."""
    if not path:
        return value
    part, separator, rest = _split(path, ".|")
    if part == "#" or part.startswith("#("):
        return _array(value, part, separator, rest)
    if part.startswith("@"):
        name, _, argument = part[1:].partition(":")
        found = MODIFIERS[name](value, argument) if name in MODIFIERS else MISSING
    elif part[:1] in ("{", "["):
        found = _multipath(value, part)
    else:
        found = _member(value, part)
    return found if found is MISSING else find(found, rest)


def _split(path: str, separators: str) -> tuple[str, str, str]:
    """Split `path` at the first separator outside brackets and quotes: (before, separator, after)."""
    depth, quoted, skip = 0, False, False
    for index, character in enumerate(path):
        if skip:
            skip = False
        elif character == "\\":
            skip = True
        elif character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif depth == 0 and character in separators:
            return path[:index], character, path[index + 1 :]
    return path, "", ""


def _member(value: Any, part: str) -> Any:
    if isinstance(value, list):
        return value[int(part)] if part.isdecimal() and int(part) < len(value) else MISSING
    if not isinstance(value, dict):
        return MISSING
    if re.search(r"(?<!\\)[*?]", part):
        pattern = part.replace("[", "[[]")
        return next((item for key, item in value.items() if fnmatch.fnmatchcase(key, pattern)), MISSING)
    return value.get(re.sub(r"\\(.)", r"\1", part), MISSING)


def _array(value: Any, part: str, separator: str, rest: str) -> Any:
    """`#`: the length, or each item; `#(query)`: the first match; `#(query)#`: all matches."""
    if not isinstance(value, list):
        return MISSING
    if part == "#":
        if separator != ".":
            return find(len(value), rest)
        items = value
    else:
        every = part.endswith(")#")
        condition = part[2:].removesuffix("#").removesuffix(")")
        items = [item for item in value if _matches(item, condition)]
        if not every:
            return find(items[0], rest) if items else MISSING
        if separator != ".":
            return find(items, rest)
    each, _, remaining = _split(rest, "|")
    found = [result for item in items if (result := find(item, each)) is not MISSING]
    return find(found, remaining)


def _matches(item: Any, condition: str) -> bool:
    query = _QUERY.fullmatch(condition)
    if query is None:
        return find(item, condition.strip()) is not MISSING
    left = find(item, query["path"].strip())
    right = _literal(query["value"].strip())
    return left is not MISSING and _compare(left, query["operator"], right)


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _compare(left: Any, operator: str, right: Any) -> bool:
    if operator in ("==", "!="):
        same = left == right and isinstance(left, bool) == isinstance(right, bool)
        return same == (operator == "==")
    if operator in ("%", "!%"):
        like = isinstance(left, str) and fnmatch.fnmatchcase(left, str(right))
        return like == (operator == "%")
    numbers = all(isinstance(side, (int, float)) and not isinstance(side, bool) for side in (left, right))
    if not numbers and not (isinstance(left, str) and isinstance(right, str)):
        return False
    return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator])


def _multipath(value: Any, part: str) -> Any:
    """`{a,"name":b}` and `[a,b]`: several paths at once; paths that match nothing are left out."""
    inner = part[1:-1]
    found: dict[str, Any] = {}
    while inner:
        one, _, inner = _split(inner, ",")
        head, colon, path = _split(one.strip(), ":") if one.strip().startswith('"') else (one.strip(), "", "")
        path = path if colon else head
        result = find(value, path)
        if result is not MISSING:
            found[_literal(head) if colon else re.split(r"(?<!\\)[.|]", path)[-1]] = result
            if part[0] == "[":
                found[str(len(found))] = found.pop(next(reversed(found)))
    return found if part[0] == "{" else list(found.values())


def _reversed(value: Any, _: str) -> Any:
    if isinstance(value, list):
        return value[::-1]
    return dict(reversed(value.items())) if isinstance(value, dict) else value


def _flattened(value: Any, _: str) -> Any:
    if not isinstance(value, list):
        return value
    return [inner for item in value for inner in (item if isinstance(item, list) else [item])]


def _joined(value: Any, _: str) -> Any:
    if not isinstance(value, list):
        return value
    return {key: item for each in value if isinstance(each, dict) for key, item in each.items()}


MODIFIERS: dict[str, Callable[[Any, str], Any]] = {
    "this": lambda value, _: value,
    "reverse": _reversed,
    "flatten": _flattened,
    "join": _joined,
    "keys": lambda value, _: list(value) if isinstance(value, dict) else MISSING,
    "values": lambda value, _: list(value.values()) if isinstance(value, dict) else value,
    "tostr": lambda value, _: json.dumps(value, ensure_ascii=False),
    "fromstr": lambda value, _: _literal(value) if isinstance(value, str) else MISSING,
    "pretty": lambda value, _: value,
    "ugly": lambda value, _: value,
    "valid": lambda value, _: value,
}
