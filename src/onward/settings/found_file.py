"""The settings file that is found in the current folder: it may be another's, since nobody named it.

It is read only if it belongs to the user or to the system. Commands that a person runs in any folder let it choose
neither code, nor where files are written, nor what is downloaded; `onward serve`, which it is made for, does.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from onward.errors import SetupError
from onward.settings.declared import Settings

FOUND_FILE = "onward.toml"
LIMITED = frozenset({"cache_dir"})
"""Settings that a file found in the current folder does not choose for commands other than `onward serve`."""
REMEDY = f"pass --config {FOUND_FILE}, or set ONWARD_CONFIG={FOUND_FILE}, to use it"


def check_owner(path: Path) -> None:
    """Raise SetupError if others than the user and the system can have written a file that was found, not named."""
    if os.name != "posix":
        return
    try:
        found = path.stat()
    except OSError:
        return  # reading it says why
    if found.st_uid not in (0, os.geteuid()):
        raise SetupError(f"The settings file {path} in this folder belongs to another user; {REMEDY}.")
    if found.st_mode & stat.S_IWOTH:
        raise SetupError(
            f"The settings file {path} in this folder can be written by every user; run chmod o-w on it, or {REMEDY}."
        )


def check_code(settings: Settings, origins: Mapping[str, str]) -> None:
    """Raise SetupError if a file that was found, not named, chooses code to run. It is not ignored: it may have been
    meant to keep text from being shown."""
    if origins["content_filter"] != FOUND_FILE:
        return
    for each in settings.content_filter:
        if each.entry_point is not None:
            raise SetupError(
                f"The content filter {each.name!r} of {FOUND_FILE} in this folder would run code, which only a "
                f"settings file that was named may choose; {REMEDY}."
            )
