"""The input: one request a line, checked as a whole before the first is sent."""

from __future__ import annotations

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
    """A request: its own name, unique in the file, and its body."""

    custom_id: str
    body: dict[str, Any]


def read_lines(path: Path) -> Iterator[Line]:
    """Every request, lazily. Raises SetupError that names the line which lacks the format."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if raw.strip():
                yield _line(raw, f"{path} line {number}")


def check_lines(path: Path) -> list[Line]:
    """Reads all of it once: formats and unique names. Gives the lines without their bodies but for the model.

    Raises SetupError.
    """
    seen: dict[str, Line] = {}
    for number, line in enumerate(read_lines(path), 1):
        if line.custom_id in seen:
            raise SetupError(f"{path}: the custom_id {line.custom_id!r} of request {number} was used before.")
        seen[line.custom_id] = Line(line.custom_id, {"model": line.body.get("model")})
    return list(seen.values())


def _line(raw: bytes, place: str) -> Line:
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError as problem:
        raise SetupError(f"{place} is not JSON: {problem}.") from None
    if not isinstance(value, dict):
        raise SetupError(f"{place} is not a JSON object.")
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise SetupError(f"{place} lacks a custom_id, a text that no other line has.")
    if value.get("method", METHOD) != METHOD or value.get("url", URLS[0]) not in URLS:
        raise SetupError(f"{place} asks for {value.get('method')} {value.get('url')}; only {METHOD} {URLS[0]} works.")
    if not isinstance(body, dict):
        raise SetupError(f"{place} lacks a body, the fields of a completion request.")
    return Line(custom_id, body)
