"""The input: one request a line, looked at as a whole before the first is sent."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from onward.errors import SetupError

METHOD = "POST"
URLS = ("/v1/completions", "/completions")


@dataclass(frozen=True, slots=True)
class Line:
    """A request: its own name, unique in the file, and its body. `number` counts all lines from 1, blank ones too."""

    number: int
    custom_id: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that is no request. `custom_id` is None where it tells none; `code` as OpenAI's validation names it."""

    number: int
    custom_id: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Checked:
    """A file's lines, the requests without their bodies but for the model."""

    requests: list[Line]
    unreadable: list[Unreadable]


def read_lines(path: Path) -> Iterator[Line | Unreadable]:
    """Every line that is not blank, lazily; without the mark that some editors begin a file with."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if number == 1:
                raw = raw.removeprefix(BOM_UTF8)
            if raw.strip():
                yield _line(raw, number)


def check_lines(path: Path) -> Checked:
    """Reads all of it once: formats and unique names. Raises SetupError for a file without a single request."""
    first: dict[str, Line] = {}
    unreadable: list[Unreadable] = []
    for line in read_lines(path):
        if isinstance(line, Unreadable):
            unreadable.append(line)
        elif (earlier := first.get(line.custom_id)) is not None:
            words = f"Line {line.number}: the custom_id {line.custom_id!r} was used in line {earlier.number} before."
            unreadable.append(Unreadable(line.number, line.custom_id, "duplicate_custom_id", words))
        else:
            first[line.custom_id] = Line(line.number, line.custom_id, {"model": line.body.get("model")})
    if unreadable and not first:
        raise SetupError(f"{path} holds no request. {unreadable[0].message}")
    return Checked(list(first.values()), unreadable)


def _line(raw: bytes, number: int) -> Line | Unreadable:
    place = f"Line {number}"
    try:
        value = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as problem:
        return Unreadable(number, None, "invalid_json_line", f"{place} {_no_json(raw, problem)}.")
    if not isinstance(value, dict):
        return Unreadable(number, None, "invalid_json_line", f"{place} is not a JSON object.")
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        words = f"{place} lacks a custom_id, a text that no other line has."
        return Unreadable(number, None, "missing_required_parameter", words)
    method, url = value.get("method", METHOD), value.get("url", URLS[0])
    if method != METHOD or url not in URLS:
        words = f"{place} asks for {method} {url}; only {METHOD} {URLS[0]} works."
        return Unreadable(number, custom_id, "invalid_method" if method != METHOD else "invalid_url", words)
    if not isinstance(body, dict):
        words = f"{place} lacks a body, the fields of a completion request."
        return Unreadable(number, custom_id, "missing_required_parameter", words)
    return Line(number, custom_id, body)


def _no_json(raw: bytes, problem: Exception) -> str:
    """What is wrong with a line; the decoder of JSON counts bytes from the beginning of a string."""
    try:
        raw.decode()
    except UnicodeDecodeError as fault:
        return f"is not UTF-8 text ({fault.reason} at byte {fault.start})"
    return f"is not JSON: {problem}"
