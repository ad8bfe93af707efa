"""Folders of the user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def home_folder() -> Path:
    """Return the user's home folder, or /nonexistent for a user without one (a container with an arbitrary user id)."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def expanded(path: str) -> Path:
    """Return a path whose ~ or ~USER is a home folder; as it stands where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def exists(path: str) -> bool:
    """Return whether something has this path, which may begin with ~; not where this user may not look for it."""
    try:
        return expanded(path).exists()
    except (OSError, ValueError):
        return False


def runtime_folder() -> Path:
    """Return the folder for sockets between processes of this user: systemd's $RUNTIME_DIRECTORY,
    $XDG_RUNTIME_DIR/onward, or onward-UID in the folder for temporary files.

    It may not exist, or belong to another user.
    """
    if (given := Path(os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0])).is_absolute():
        return given
    if (given := Path(os.environ.get("XDG_RUNTIME_DIR", ""))).is_absolute():
        return given / "onward"
    return Path(tempfile.gettempdir()) / f"onward-{os.getuid()}"


def state_folder() -> Path:
    """Return the default folder for what a server has to keep: systemd's $STATE_DIRECTORY, $XDG_STATE_HOME/onward, or
    ~/.local/state/onward."""
    if (given := Path(os.environ.get("STATE_DIRECTORY", "").partition(":")[0])).is_absolute():
        return given
    stated = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (stated if stated.is_absolute() else home_folder() / ".local" / "state") / "onward"


def cache_folder() -> Path:
    """Return the default folder for downloads and compiled models: $XDG_CACHE_HOME/onward, or ~/.cache/onward. A path
    that is not absolute is ignored, as the XDG Base Directory Specification says: it would be a folder of wherever one
    happens to be."""
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (stated if stated.is_absolute() else home_folder() / ".cache") / "onward"
