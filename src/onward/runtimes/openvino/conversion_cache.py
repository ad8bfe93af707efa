"""Converted models in the cache: which there are, when they were used, and which are removed. Cheap to import."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from onward.errors import ModelFolderError
from onward.runtimes import file_lock
from onward.runtimes.base import Progress
from onward.runtimes.files import CONFIG, read_object
from onward.runtimes.openvino.file_names import GRAPH, WEIGHTS

FOLDER = "converted"
"""In the cache folder."""
PART = ".part-"
"""Begins the names of unfinished conversions."""
_LOCKS = "locks"
"""In the cache folder."""
_MANIFEST = "conversion.json"
"""Of a converted model: size and digest of its other files."""
_FILES = (GRAPH, WEIGHTS, CONFIG)
_MAX_PART_SECONDS = 24 * 3600
"""Older unfinished conversions were killed."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted model. `used` is when it was loaded last, in Unix time; `num_bytes` has its part of shared files."""

    name: str
    path: Path
    num_bytes: int
    used: float


def write_manifest(folder: Path, digests: Mapping[str, str]) -> None:
    """Note what the files of a converted model are: the SHA-256 by name. Raises OSError."""
    stated = {name: {"bytes": (folder / name).stat().st_size, "sha256": digest} for name, digest in digests.items()}
    (folder / _MANIFEST).write_text(json.dumps(stated), encoding="utf-8")


def stated_digests(folder: Path) -> dict[Path, str] | None:
    """Return the SHA-256 that each file of a converted model had when it was written; None for a folder that lacks a
    file, or has one of another size."""
    try:
        stated = read_object(folder / _MANIFEST)
        if any(each["bytes"] != (folder / name).stat().st_size for name, each in stated.items()):
            return None
        found = {folder / name: str(each["sha256"]) for name, each in stated.items()}
        return found if all(folder / name in found for name in _FILES) else None
    except (OSError, ModelFolderError, KeyError, TypeError):
        return None


def locked(cache_dir: Path, name: str, progress: Progress) -> AbstractContextManager[None]:
    """Hold the lock of a conversion: another process that wants the same one waits. Raises OSError."""
    path = cache_dir / _LOCKS / f"{name}.lock"
    return file_lock.locked(path, lambda: progress("Another process is converting this model; waiting for it"))


def conversions(cache_dir: Path) -> list[Conversion]:
    """Return the converted models of a cache, the ones used last first."""
    found = []
    for folder in (cache_dir / FOLDER).glob("*"):
        with suppress(OSError):
            if not folder.name.startswith(PART) and folder.is_dir():
                num_bytes = sum(status.st_size // status.st_nlink for status in map(Path.stat, folder.iterdir()))
                found.append(Conversion(folder.name, folder, num_bytes, folder.stat().st_mtime))
    return sorted(found, key=lambda each: -each.used)


def mark_used(folder: Path) -> None:
    """Note that a converted model is loaded now. A folder that may not be written to keeps its time."""
    with suppress(OSError):
        os.utime(folder)


def remove(found: Conversion) -> None:
    """Remove a converted model. A process that has it mapped keeps it. Raises OSError."""
    remove_folder(found.path)


def remove_folder(folder: Path) -> None:
    """Remove a folder, at once: nobody finds half of it. Raises OSError."""
    hidden = folder.with_name(f"{PART}{folder.name}-{os.getpid()}")
    folder.rename(hidden)
    shutil.rmtree(hidden)


def shrink(cache_dir: Path, max_bytes: int, kept: Collection[Path] = ()) -> list[Conversion]:
    """Remove what was used longest ago until the rest has at most `max_bytes`; never what is in `kept`. Return what was
    removed. What cannot be removed stays."""
    removed = []
    for each in reversed(conversions(cache_dir)):
        num_bytes = sum(left.num_bytes for left in conversions(cache_dir))  # anew: files may be shared
        if num_bytes > max_bytes and each.path not in kept:
            with suppress(OSError):
                remove(each)
                removed.append(each)
    return removed


def remove_parts(root: Path, name: str) -> None:
    """Remove what killed processes left: of the conversion of this name, whose lock is held, and of all others if it is
    old."""
    for part in root.glob(f"{PART}*"):
        with suppress(OSError):
            if part.name.startswith(f"{PART}{name}-") or time.time() - part.stat().st_mtime > _MAX_PART_SECONDS:
                shutil.rmtree(part, ignore_errors=True)
