"""How the text of a setting is read. Each reader raises ValueError whose words say what is allowed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_UNITS = {
    "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
}  # fmt: skip
"""A bare letter is binary, as in systemd, container tools and JVM flags."""


def text(raw: str) -> str:
    """Anything but nothing, without the white space around it."""
    if not raw.strip():
        raise ValueError("it must not be empty")
    return raw.strip()


def key(raw: str) -> str:
    """An API key: visible ASCII, because it travels in an HTTP header."""
    raw = raw.strip()
    if not raw or not raw.isascii() or not raw.isprintable() or " " in raw:
        raise ValueError("a key is one or more visible ASCII characters without spaces")
    return raw


def pair(raw: str) -> tuple[str, str]:
    """NAME=MODEL as a pair."""
    left, separator, right = (part.strip() for part in raw.partition("="))
    if not (left and separator and right):
        raise ValueError("it must look like NAME=MODEL")
    return left, right


def path(raw: str) -> Path:
    """A path, `~` expanded."""
    try:
        return Path(text(raw)).expanduser()
    except RuntimeError:
        raise ValueError("there is no such home folder") from None


def truth(raw: str) -> bool:
    """A switch."""
    match raw.strip().lower():
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
    raise ValueError("it must be true or false")


def seconds(raw: str) -> float:
    """A duration in seconds; a trailing s is allowed."""
    try:
        value = float(raw.strip().removesuffix("s"))
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError("it must be a number of seconds, 0 or more")
    return value


def size(raw: str) -> int:
    """A size in bytes: 16MB, 2GiB, 4096."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", raw)
    unit = _UNITS.get(match[2].lower() or "b") if match else None
    if match is None or unit is None or not 1 <= (amount := float(match[1]) * unit) < 1 << 62:
        raise ValueError("it must be a size such as 4096, 16MB or 2GiB")
    return int(amount)


def size_text(amount: int) -> str:
    """A size in the shortest spelling that `size` reads back exactly."""
    for unit in ("GiB", "GB", "MiB", "MB", "KiB", "KB"):
        if amount % _UNITS[unit.lower()] == 0:
            return f"{amount // _UNITS[unit.lower()]}{unit}"
    return str(amount)


def size_or_auto(raw: str) -> int | None:
    """A size in bytes, or None for `auto`."""
    if raw.strip().lower() == "auto":
        return None
    try:
        return size(raw)
    except ValueError as problem:
        raise ValueError(f"{problem}, or auto") from None


@dataclass(frozen=True, slots=True)
class ContentFilterSetting:
    """One [[content_filter]]: RE2 patterns, or an entry point that finds flagged text in its own way."""

    name: str
    patterns: tuple[str, ...] = ()
    entry_point: str | None = None
    action: Literal["stop", "omit"] = "stop"

    def __str__(self) -> str:
        """The JSON object that `content_filter` reads."""
        found = {"patterns": list(self.patterns)} if self.patterns else {"entry_point": self.entry_point}
        return json.dumps({"name": self.name, **found, "action": self.action}, ensure_ascii=False)


def content_filter(raw: str) -> ContentFilterSetting:
    """A content filter as a JSON object."""
    try:
        table = json.loads(raw)
    except json.JSONDecodeError:
        table = None
    if not isinstance(table, dict):
        raise ValueError('it must be a JSON object such as {"name": "secrets", "patterns": ["sk-[a-z]{8}"]}')
    if unknown := table.keys() - {"name", "patterns", "entry_point", "action"}:
        raise ValueError(f"it has an unknown key {min(unknown)!r}; known are name, patterns, entry_point, action")
    name, patterns, entry_point = table.get("name"), table.get("patterns", []), table.get("entry_point")
    action = table.get("action", "stop")
    if not isinstance(name, str) or not name:
        raise ValueError("it needs a name")
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError("patterns must be an array of strings")
    if not isinstance(entry_point, (str, type(None))) or (entry_point is None) is (not patterns):
        raise ValueError("it needs either patterns or an entry_point")
    if action not in ("stop", "omit"):
        raise ValueError("action must be stop or omit")
    return ContentFilterSetting(name, tuple(patterns), entry_point, action)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A reader of whole numbers from `least` to `most`."""
    allowed = f"{least} or more" if most is None else f"from {least} to {most}"

    def read(raw: str) -> int:
        try:
            value = int(raw.strip())
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise ValueError(f"it must be a whole number, {allowed}")
        return value

    return read


class one_of:
    """A reader of one word out of `choices`."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, raw: str) -> str:
        if raw.strip().lower() not in self.choices:
            raise ValueError(f"it must be one of {', '.join(self.choices)}")
        return raw.strip().lower()
