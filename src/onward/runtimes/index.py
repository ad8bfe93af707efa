"""A small JSON file of strings by key that saves work between starts. Best effort: without it, work is repeated."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from onward.errors import ModelFolderError
from onward.model_files.files import read_if_present, write_whole

_NAME = "hashes.json"


def read_index(cache_dir: Path | None) -> dict[str, str]:
    """Return all entries; {} where there is no file, or none that can be read."""
    if cache_dir is None:
        return {}
    try:
        found = read_if_present(cache_dir / _NAME)
    except ModelFolderError:
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}


def write_index(cache_dir: Path | None, index: dict[str, str]) -> None:
    """Replace all entries atomically. Ignores errors: a cache that cannot be written costs time, not correctness."""
    if cache_dir is not None:
        with suppress(OSError):
            write_whole(cache_dir / _NAME, json.dumps(index).encode())
