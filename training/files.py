"""Write files atomically: readers never see half of one, and a kill never leaves one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.errors import convert_disk_errors


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write a temporary file beside `path` with `write`, flush it to disk, and rename it to `path`.

    Raises RecipeError if the disk is full, OSError for other failures.
    """
    temporary = path.with_name(f".{path.name}.part")
    with convert_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            with temporary.open("rb+") as handle:
                os.fsync(handle.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Write text to `path` atomically."""
    replace_file(path, lambda part: part.write_text(text, encoding="utf-8"))


def replace_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON to `path` atomically."""
    replace_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
