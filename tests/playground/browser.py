"""Finds the browser and Node, and runs Node programs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "playground"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
HEADLESS = os.environ.get("CHROMIUM") or shutil.which("chromium-headless-shell") or CHROMIUM
"""Debian's shell has no window, tabs and menus, which take half of a processor's time for a page that nobody sees."""
KEY = "sk-of-the-playground-test"
PATIENCE_MS = 20_000
"""Only a guard against hanging."""

needs_node = pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node: npm is not installed")


def node_program(*command: str) -> list[str]:
    """Return a command for a Node program of the playground. Skips where `npm ci` did not run."""
    if not (SOURCES / "node_modules").is_dir():
        pytest.skip("needs the playground's packages: run `npm ci` in playground/")
    return [shutil.which(command[0]) or command[0], *command[1:]]
