"""The input file: one request per line, checked as a whole before the first is sent."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from codecs import BOM_UTF8
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from onward.api.openai.batch_lines import Fault, parse_line
from onward.errors import SetupError

URLS = ("/v1/completions", "/completions")
MAX_LINE_BYTES = 64_000_000
"""Of one request; no server accepts larger ones."""


@dataclass(frozen=True, slots=True)
class Line:
    """A request. `custom_id` is unique in the file; `number` counts all lines from 1, including blank ones; `digest`
    identifies custom_id and body, with the model that is used."""

    number: int
    custom_id: str
    body: dict[str, Any]
    digest: str


@dataclass(frozen=True, slots=True)
class InvalidLine:
    """A line that is not a valid request. `custom_id` is None if it has none; `code` is OpenAI's validation code."""

    number: int
    custom_id: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckedLines:
    """The lines of a file. Bodies of the requests contain only the model."""

    requests: list[Line]
    invalid: list[InvalidLine]


@contextmanager
def opened_input(path: Path) -> Iterator[BinaryIO]:
    """Open the input, which is read more than once: a pipe is copied to a temporary file first."""
    with path.open("rb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            yield file
            return
        with tempfile.TemporaryFile(prefix="onward-batch-") as copy:
            shutil.copyfileobj(file, copy)
            yield copy


def read_lines(file: BinaryIO, model: str | None) -> Generator[Line | InvalidLine, None, None]:
    """Yield every line that is not blank, from the first on; a byte order mark is skipped. `model` replaces that of
    every line."""
    file.seek(0)
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if number == 1:
            raw = raw.removeprefix(BOM_UTF8)
        if len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(MAX_LINE_BYTES)
            message = f"Line {number} is longer than {MAX_LINE_BYTES // 1_000_000} MB."
            yield InvalidLine(number, None, "line_too_long", message)
        elif raw.strip():
            yield _line(raw, number, model)


def check_lines(file: BinaryIO, path: Path, model: str | None) -> CheckedLines:
    """Check formats and unique ids of the whole file. Raises SetupError if no line is a valid request."""
    first: dict[str, Line] = {}
    invalid: list[InvalidLine] = []
    for line in read_lines(file, model):
        if isinstance(line, InvalidLine):
            invalid.append(line)
        elif (earlier := first.get(line.custom_id)) is not None:
            message = f"Line {line.number}: the custom_id {line.custom_id!r} is already used in line {earlier.number}."
            invalid.append(InvalidLine(line.number, line.custom_id, "duplicate_custom_id", message))
        else:
            body = {"model": line.body.get("model")}
            first[line.custom_id] = Line(line.number, line.custom_id, body, line.digest)
    if invalid and not first:
        raise SetupError(f"{path} contains no valid request. {invalid[0].message}")
    return CheckedLines(list(first.values()), invalid)


def _line(raw: bytes, number: int, model: str | None) -> Line | InvalidLine:
    parsed = parse_line(raw, URLS, None, needs_url=False)
    if isinstance(parsed, Fault):
        what = _json_problem(raw) if parsed.code == "invalid_json_line" else f": {parsed.message}"
        return InvalidLine(number, parsed.custom_id, parsed.code, f"Line {number}{what}")
    body = parsed.fields
    if model is not None:
        body["model"] = model
    return Line(number, parsed.custom_id, body, _digest(parsed.custom_id, body, raw))


def _digest(custom_id: str, body: dict[str, Any], raw: bytes) -> str:
    try:
        content = msgspec.json.encode([custom_id, body], order="sorted")
    except (ValueError, OverflowError, RecursionError):  # such as an integer of more than 64 bits
        content = raw.strip() + repr(body.get("model")).encode(errors="surrogatepass")
    return hashlib.sha256(content).hexdigest()[:32]


def _json_problem(raw: bytes) -> str:
    """Return what is wrong with a line that is not a JSON object. The decoder counts bytes from the start of a
    string."""
    try:
        raw.decode()
        msgspec.json.decode(raw)
    except UnicodeDecodeError as error:
        return f" is not UTF-8 text ({error.reason} at byte {error.start})."
    except RecursionError:
        return " is not JSON that can be read: its arrays and objects are nested too deeply."
    except ValueError as problem:
        return f" is not JSON: {str(problem).removeprefix('JSON is malformed: ').partition(' - at ')[0]}."
    return " is not a JSON object."
