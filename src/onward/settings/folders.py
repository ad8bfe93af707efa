"""Folders of the user."""

from __future__ import annotations

import os
from pathlib import Path


def home_folder() -> Path:
    """Return the user's home folder, or /nonexistent for a user without one (a container with an arbitrary user id)."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def cache_folder() -> Path:
    """Return the default folder for downloads and compiled models: $XDG_CACHE_HOME/onward, or ~/.cache/onward. A path
    that is not absolute is ignored, as the XDG Base Directory Specification says: it would be a folder of wherever one
    happens to be."""
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (stated if stated.is_absolute() else home_folder() / ".cache") / "onward"
