"""Editors' plug-ins as clients: a pinned commit of the plug-in, run in the editor that the machine has."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from .clones import Clone
from .environments import Unavailable


@dataclass(frozen=True, slots=True)
class VimPlugin:
    """A plug-in for Vim."""

    clone: Clone

    @property
    def folder(self) -> Path:
        return self.clone.folder

    def make(self) -> None:
        """Clone it unless it is there. Raises Unavailable, also where there is no Vim or no terminal for it."""
        if sys.platform == "win32" or shutil.which("vim") is None:
            raise Unavailable("vim is not installed, or this system has no pseudo-terminals")
        self.clone.make()

    def command(self, program: Path) -> list[str | Path]:
        """Return the command that runs the checks in the file `program`, with the plug-in's folder."""
        return [sys.executable, program, self.folder]

    def version(self, package: str) -> str:
        return self.clone.version()


LLAMA_VIM = VimPlugin(
    Clone(
        "llama.vim",
        "https://github.com/ggml-org/llama.vim",
        "a1c8e6e40cb45df59b78add5b65d575386832465",
        own="ONWARD_LLAMA_VIM",
        file="plugin",
    )
)
