"""Clients that are web pages, driven in the Chromium that the machine has."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.playground.browser import CHROMIUM

from .clones import Clone
from .environments import NodeEnvironment, PythonEnvironment, Unavailable, install

PROGRAMS = Path(__file__).parent / "programs"
PLAYWRIGHT = PythonEnvironment("playwright", ("playwright==1.65.2",))
NO_CHROMIUM = "Chromium is not installed, or its path is not in CHROMIUM"


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page that is one file. Where its scripts import modules from elsewhere, `bundled` names these, and the program
    `bundler` makes one file of them all."""

    clone: Clone
    bundled: NodeEnvironment | None = None
    bundler: str = ""

    @property
    def folder(self) -> Path:
        return self.clone.folder if self.bundled is None else self.bundled.folder

    @property
    def _file(self) -> Path:
        return self.folder / self.clone.file

    def make(self) -> None:
        """Clone it, and bundle its scripts. Raises Unavailable."""
        if CHROMIUM is None:
            raise Unavailable(NO_CHROMIUM)
        self.clone.make()
        PLAYWRIGHT.make()
        if self.bundled is None:
            return
        self.bundled.make()
        bundler = shutil.copy(PROGRAMS / self.bundler, self.folder)
        paths = (bundler, self.clone.folder.absolute() / self.clone.file, self._file)
        install([str(self.bundled.program("node")), *map(str, paths)], self.folder)

    def command(self, program: Path) -> list[str | Path]:
        """Return the command that runs the checks in the file `program`, with the paths of the page and Chromium."""
        return [PLAYWRIGHT.program("python"), program, self._file, CHROMIUM or ""]

    def version(self, package: str) -> str:
        return self.clone.version()


@dataclass(frozen=True, slots=True)
class SillyTavern:
    """A web server from npm, with the page that it serves."""

    server: NodeEnvironment

    @property
    def folder(self) -> Path:
        return self.server.folder

    def make(self) -> None:
        """Install it. Raises Unavailable."""
        if CHROMIUM is None:
            raise Unavailable(NO_CHROMIUM)
        if os.name == "nt":
            raise Unavailable("it is not tested on Windows")
        PLAYWRIGHT.make()
        self.server.make()

    def command(self, program: Path) -> list[str | Path]:
        """Return the command that runs the checks, with the paths of the server's package, Node and Chromium."""
        package = self.folder / "node_modules" / "sillytavern"
        return [PLAYWRIGHT.program("python"), program, package, CHROMIUM or "", self.server.program("node")]

    def version(self, package: str) -> str:
        return self.server.version(package)


KOBOLDAI_LITE = WebPage(
    Clone(
        "koboldai-lite",
        "https://github.com/LostRuins/lite.koboldai.net",
        "27eb1dcc59d686675ce5018ccf696f0ee8cf5794",
        own="ONWARD_KOBOLDAI_LITE",
        file="index.html",
    )
)
_MODULES = ("react@19.2.0", "react-dom@19.2.0", "htm@3.1.1", "marked@16.4.1", "react-error-boundary@5.0.0")
MIKUPAD = WebPage(
    Clone(
        "mikupad",
        "https://github.com/lmg-anon/mikupad",
        "b2a2a3e6728671b4594d5668c74b9f879dff8a3f",
        own="ONWARD_MIKUPAD",
        file="mikupad.html",
    ),
    NodeEnvironment("mikupad-modules", (*_MODULES, "esbuild@0.28.2")),
    "mikupad_build.mjs",
)
SILLYTAVERN = SillyTavern(NodeEnvironment("sillytavern", ("sillytavern@1.19.0",)))
