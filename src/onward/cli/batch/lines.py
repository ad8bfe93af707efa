"""The input file: one request per line, checked as a whole before the first is sent."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from onward.errors import SetupError

METHOD = "POST"
URLS = ("/v1/completions", "/completions")


@dataclass(frozen=True, slots=True)
class Line:
    """A request. `custom_id` is unique in the file; `number` counts all lines from 1, including blank ones."""

    number: int
    custom_id: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class InvalidLine:
    """A line that is not a valid request. `custom_id` is None if it has none; `code` is OpenAI's validation code."""

    number: int
    custom_id: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Checked:
    """The lines of a file. Bodies of the requests contain only the model."""

    requests: list[Line]
    invalid: list[InvalidLine]


def read_lines(path: Path) -> Generator[Line | InvalidLine, None, None]:
    """Yield every line that is not blank; a byte order mark is skipped."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if number == 1:
                raw = raw.removeprefix(BOM_UTF8)
            if raw.strip():
                yield _line(raw, number)


def check_lines(path: Path) -> Checked:
    """Check formats and unique ids of the whole file. Raises SetupError if no line is a valid request."""
    first: dict[str, Line] = {}
    invalid: list[InvalidLine] = []
    for line in read_lines(path):
        if isinstance(line, InvalidLine):
            invalid.append(line)
        elif (earlier := first.get(line.custom_id)) is not None:
            message = f"Line {line.number}: the custom_id {line.custom_id!r} is already used in line {earlier.number}."
            invalid.append(InvalidLine(line.number, line.custom_id, "duplicate_custom_id", message))
        else:
            first[line.custom_id] = Line(line.number, line.custom_id, {"model": line.body.get("model")})
    if invalid and not first:
        raise SetupError(f"{path} contains no valid request. {invalid[0].message}")
    return Checked(list(first.values()), invalid)


def _line(raw: bytes, number: int) -> Line | InvalidLine:
    place = f"Line {number}"
    try:
        value = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as problem:
        return InvalidLine(number, None, "invalid_json_line", f"{place} {_json_problem(raw, problem)}.")
    if not isinstance(value, dict):
        return InvalidLine(number, None, "invalid_json_line", f"{place} is not a JSON object.")
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        message = f"{place} has no custom_id, a string that is unique in the file."
        return InvalidLine(number, None, "missing_required_parameter", message)
    method, url = value.get("method", METHOD), value.get("url", URLS[0])
    if method != METHOD or url not in URLS:
        message = f"{place} requests {method} {url}; only {METHOD} {URLS[0]} is supported."
        return InvalidLine(number, custom_id, "invalid_method" if method != METHOD else "invalid_url", message)
    if not isinstance(body, dict):
        message = f"{place} has no body with the fields of a completion request."
        return InvalidLine(number, custom_id, "missing_required_parameter", message)
    return Line(number, custom_id, body)


def _json_problem(raw: bytes, problem: Exception) -> str:
    """Return what is wrong with a line. The JSON decoder counts bytes from the start of a string."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"is not UTF-8 text ({error.reason} at byte {error.start})"
    return f"is not JSON: {str(problem).removeprefix('JSON is malformed: ')}"
