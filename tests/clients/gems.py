"""Clients in Ruby: a gem of RubyGems, or a copy of its repository."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from .environments import HOME, Unavailable, install


@dataclass(frozen=True, slots=True)
class Gem:
    """The gem `package`, installed, or the folder of its repository that the variable `own` names.

    What such a copy needs must be installed (Debian's `ruby-connection-pool` for openai).
    """

    name: str
    package: str
    pinned: str
    own: str

    @property
    def folder(self) -> Path:
        return HOME / self.name

    @property
    def _libraries(self) -> list[Path]:
        if own := os.environ.get(self.own):
            return [Path(own) / "lib"]
        return sorted(self.folder.glob("gems/*/lib"))

    def make(self) -> None:
        """Install it unless it is there. Raises Unavailable."""
        if shutil.which("ruby") is None:
            raise Unavailable("ruby is not installed")
        if self._libraries and all(path.is_dir() for path in self._libraries):
            return
        if own := os.environ.get(self.own):
            raise Unavailable(f"{own}, from {self.own}, has no lib")
        gem = shutil.which("gem")
        if gem is None:
            raise Unavailable("gem is not installed")
        HOME.mkdir(exist_ok=True)
        what = [self.package, "--version", self.pinned]
        install([gem, "install", "--quiet", "--no-document", "--install-dir", str(self.folder), *what], HOME)

    def command(self, program: Path) -> list[str | Path]:
        """Return the command that runs the checks in the file `program`, with the folders of libraries."""
        return ["ruby", program, *self._libraries]

    def version(self, package: str) -> str:
        found = [path / self.package / "version.rb" for path in self._libraries]
        texts = [path.read_text(encoding="utf-8") for path in found if path.is_file()]
        (version,) = re.findall(r'VERSION = "([\d.]+)"', "".join(texts))
        return str(version)


OPENAI_RUBY = Gem("ruby-openai", "openai", "0.80.0", "ONWARD_OPENAI_RUBY")
