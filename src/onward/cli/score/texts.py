"""The texts to score: a whole file, one text per line, or JSON objects."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from onward.cli.request.contents import STDIN_NAMES, Stdin
from onward.errors import SetupError

InputFormat = Literal["auto", "text", "lines", "jsonl"]
JSONL_SUFFIXES = (".jsonl", ".ndjson")
CONTEXT_KEYS, TEXT_KEYS = ("context", "prompt"), ("text", "continuation", "completion")
"""Names of the two parts in JSON objects; of each, exactly one may be present."""


@dataclass(frozen=True, slots=True)
class InputText:
    """A text to score. `context` comes before it and is not scored; None: there is none.

    `id` is unique in the input: the object's own, or the number of the text from 1.
    """

    id: str
    text: str
    context: str | None = None

    @property
    def digest(self) -> str:
        """Eight bytes of SHA-256 in hexadecimal, by which a later run recognises the text."""
        parts = f"{self.context is None}\0{self.context or ''}\0{self.text}"
        return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read_texts(path: Path | None, form: InputFormat) -> list[InputText]:
    """Return the texts of a file; None: of standard input. Blank lines and an empty file contain none.

    "auto" reads a file that ends in .jsonl or .ndjson as JSON, others as one text. Raises SetupError, which names the
    line, for what cannot be read; UsageError for a standard input that is closed, or is a terminal and not named.
    """
    name, raw = _content(path)
    is_jsonl = form == "jsonl" or (form == "auto" and path is not None and path.suffix.lower() in JSONL_SUFFIXES)
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise SetupError(f"{name} is not UTF-8 text ({problem.reason} at byte {problem.start}).") from None
    if is_jsonl:
        texts = [_object(line, number, name) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    elif form == "lines":
        texts = [InputText(str(number), line) for number, line in enumerate(_lines(content), 1) if line.strip()]
    else:
        texts = [InputText("1", content)] if content else []
    _check(texts, name)
    return texts


def _content(path: Path | None) -> tuple[str, bytes]:
    if path is None and sys.stdin is not None and sys.stdin.isatty():
        raise click.UsageError("Pass a FILE of texts, or a text through a pipe; - reads what is typed, up to Ctrl-D.")
    if path is None or str(path) in STDIN_NAMES:
        return "Standard input", Stdin().take_bytes("FILE")
    try:
        return str(path), path.read_bytes()
    except OSError as problem:
        raise SetupError(f"{path} cannot be read: {problem.strerror}.") from None


def _lines(content: str) -> list[str]:
    return [line.removesuffix("\r") for line in content.split("\n")]


def _object(line: str, number: int, name: str) -> InputText:
    place = f"{name} line {number}"
    try:
        value = msgspec.json.decode(line)
    except (ValueError, RecursionError) as problem:
        reason = str(problem).removeprefix("JSON is malformed: ")
        raise SetupError(f"{place} is not JSON: {reason}. For plain text, use --input text or --input lines.") from None
    if isinstance(value, str):
        return InputText(str(number), value)
    if not isinstance(value, dict):
        raise SetupError(f"{place} is neither a string nor an object with the key `text`.")
    text = _one_of(value, TEXT_KEYS, place)
    if text is None:
        raise SetupError(f"{place} has none of the keys {', '.join(TEXT_KEYS)}: it needs one, with the text to score.")
    own = value.get("id", number)
    if not isinstance(own, str | int) or isinstance(own, bool):
        raise SetupError(f"{place}: `id` is neither a string nor an integer.")
    return InputText(str(own), text, _one_of(value, CONTEXT_KEYS, place))


def _one_of(value: dict[str, Any], keys: tuple[str, ...], place: str) -> str | None:
    """Return the string of the only one of `keys` that is present and not null, None without one. Raises SetupError."""
    given = [key for key in keys if value.get(key) is not None]
    if len(given) > 1:
        raise SetupError(f"{place} has both `{given[0]}` and `{given[1]}`, which mean the same: keep one.")
    if not given:
        return None
    found = value[given[0]]
    if not isinstance(found, str):
        raise SetupError(f"{place}: `{given[0]}` is not a string.")
    return found


def _check(texts: list[InputText], name: str) -> None:
    if not texts:
        raise SetupError(f"{name} contains no text.")
    first: dict[str, int] = {}
    for place, each in enumerate(texts, 1):
        if (earlier := first.setdefault(each.id, place)) != place:
            raise SetupError(f"{name}: texts {earlier} and {place} have the same id, {each.id!r}; ids must be unique.")
        if not each.text:
            raise SetupError(f"{name}: text {each.id} is empty; there is nothing to score.")
