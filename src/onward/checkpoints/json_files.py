"""JSON files of models, which may come from anywhere: bounded before they are parsed. Cheap to import."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any, TypeVar

from onward.errors import CheckpointError

T = TypeVar("T")

MAX_JSON_BYTES = 8_000_000
"""Of a configuration. The largest known ones, tokenizer_config.json with all added tokens, have two million."""
MAX_JSON_ENTRIES = 500_000
"""Of such a file, whose objects take a hundred bytes each. The largest known configurations have a tenth; lists of
tensors have as many as a model has tensors."""
AGAIN = "copy or download it again"
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""So that opening a pipe does not block, and Windows converts no line ends."""
_NO_NUMBERS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|-?Infinity|NaN', re.DOTALL)
"""Texts, which stay, and what Python writes for numbers without end and for none, which JSON does not have: they become
texts of their names. A text that never ends is one, too: else the rest of the file would be searched again from each
quote in it. Nothing is tried again ("++", "*+"): the places to return to would take 56 times the memory of the text."""


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file. Never waits for a pipe or device. Raises CheckpointError."""
    try:
        with os.fdopen(os.open(path, _READ_FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CheckpointError(f"{path} is not a regular file: {AGAIN}.")
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}).") from None
    if len(content) > max_bytes:
        raise CheckpointError(
            f"{path} has more than {max_bytes // 1_000_000} MB, more than any model needs there: {AGAIN}."
        )
    return content


def read_object(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the object in a JSON file. Raises CheckpointError."""
    content = read_bounded(path, max_bytes)
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_JSON_ENTRIES:
        raise CheckpointError(f"{path} has more entries than any model's: {AGAIN}.")
    if b"Infinity" in content or b"NaN" in content:
        content = _NO_NUMBERS.sub(lambda found: found[0] if found[0][:1] == b'"' else b'"%b"' % found[0], content)
    return _decoded(content, path, dict[str, Any])


def require_object(content: bytes, path: Path) -> None:
    """Raise CheckpointError if the content of a file is not a JSON object. Builds no objects: there may be millions."""
    import msgspec

    _decoded(content, path, msgspec.defstruct("AnyObject", []))


def _decoded(content: bytes, path: Path, kind: type[T]) -> T:
    import msgspec  # here, because the table of formats has to be cheap to import

    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        problem = f"not a JSON object ({error})"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = f"not valid JSON ({error})"
    except RecursionError:
        problem = "not valid: it is nested too deeply"
    raise CheckpointError(f"{path} is {problem}: {AGAIN}.")
