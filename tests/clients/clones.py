"""Clients that are in no registry: a commit of their repository, or a copy that a variable of the environment names."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .environments import HOME, Unavailable, install


@dataclass(frozen=True, slots=True)
class Clone:
    """The files of `repository` at `commit`, or in the folder that the variable `own` names. `file` is one of them."""

    name: str
    repository: str
    commit: str
    own: str
    file: str

    @property
    def folder(self) -> Path:
        return Path(os.environ.get(self.own) or HOME / self.name)

    def make(self) -> None:
        """Clone it unless it is there. Raises Unavailable."""
        if (self.folder / self.file).exists():
            return
        if os.environ.get(self.own):
            raise Unavailable(f"{self.folder}, from {self.own}, has no {self.file}")
        git = shutil.which("git")
        if git is None:
            raise Unavailable("git is not installed")
        shutil.rmtree(self.folder, ignore_errors=True)
        HOME.mkdir(exist_ok=True)
        install([git, "clone", "--quiet", self.repository, str(self.folder)], HOME, GIT_TERMINAL_PROMPT="0")
        install([git, "checkout", "--quiet", self.commit], self.folder)

    def version(self) -> str:
        """Return the beginning of the commit."""
        command = ["git", "-C", str(self.folder), "rev-parse", "--short=8", "HEAD"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        return ran.stdout.strip() or "a copy"
