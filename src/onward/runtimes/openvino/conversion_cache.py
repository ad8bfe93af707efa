"""Converted models in the cache: which there are, when they were used, and which are removed. Cheap to import."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onward.runtimes.files import CONFIG
from onward.runtimes.openvino.file_names import GRAPH, WEIGHTS

FOLDER = "converted"
"""In the cache folder."""
PART = ".part-"
"""Begins the names of unfinished conversions."""
_MAX_PART_SECONDS = 24 * 3600
"""Older unfinished conversions were killed."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted model. `used` is when it was loaded last, in Unix time; `num_bytes` has its part of shared files."""

    name: str
    path: Path
    num_bytes: int
    used: float


def is_complete(folder: Path) -> bool:
    """Return whether a folder contains a converted model."""
    return all((folder / name).is_file() for name in (GRAPH, WEIGHTS, CONFIG))


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
    hidden = found.path.with_name(f"{PART}{found.name}-{os.getpid()}")
    found.path.rename(hidden)  # at once: nobody finds half of it
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


def remove_old_parts(root: Path) -> None:
    """Remove conversions that were killed long ago."""
    for old in root.glob(f"{PART}*"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _MAX_PART_SECONDS:
                shutil.rmtree(old, ignore_errors=True)
