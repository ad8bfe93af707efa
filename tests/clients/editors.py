"""Editors' plug-ins as clients: a pinned commit of the plug-in, run in the editor that the machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .environments import HOME, Unavailable, install


@dataclass(frozen=True, slots=True)
class VimPlugin:
    """A plug-in for Vim, cloned from `repository`, or the folder that the variable `own` names."""

    name: str
    repository: str
    commit: str
    own: str

    @property
    def folder(self) -> Path:
        return Path(os.environ.get(self.own) or HOME / self.name)

    def make(self) -> None:
        """Clone it unless it is there. Raises Unavailable, also where there is no Vim or no terminal for it."""
        if sys.platform == "win32" or shutil.which("vim") is None:
            raise Unavailable("vim is not installed, or this system has no pseudo-terminals")
        if (self.folder / "plugin").is_dir():
            return
        git = shutil.which("git")
        if git is None:
            raise Unavailable("git is not installed")
        shutil.rmtree(self.folder, ignore_errors=True)
        HOME.mkdir(exist_ok=True)
        install([git, "clone", "--quiet", self.repository, str(self.folder)], HOME, GIT_TERMINAL_PROMPT="0")
        install([git, "checkout", "--quiet", self.commit], self.folder)

    def command(self, program: Path) -> list[str | Path]:
        """Return the command that runs the checks in the file `program`, with the plug-in's folder."""
        return [sys.executable, program, self.folder]

    def version(self, package: str) -> str:
        """Return the beginning of the commit."""
        command = ["git", "-C", str(self.folder), "rev-parse", "--short=8", "HEAD"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        return ran.stdout.strip() or "a copy"


LLAMA_VIM = VimPlugin(
    "llama.vim",
    "https://github.com/ggml-org/llama.vim",
    "a1c8e6e40cb45df59b78add5b65d575386832465",
    "ONWARD_LLAMA_VIM",
)
