"""Clients in languages that are compiled: each is built from a folder next to this file, on demand, outside git."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .environments import HOME, Unavailable, install

HERE = Path(__file__).parent
EXE = ".exe" if os.name == "nt" else ""


@dataclass(frozen=True, slots=True)
class BuiltEnvironment:
    """A program that is built from the sources in `tests/clients/SOURCE`, whose manifest pins the client's version.

    Commands run in a copy of that folder: `build` makes the program that `run` starts, after `upgrade` if `newest` is
    set, which replaces the pinned version by the newest one. `version_in` is a file and the pattern of the version that
    the build chose.
    """

    name: str
    source: str
    build: tuple[str, ...]
    run: tuple[str, ...]
    upgrade: tuple[str, ...]
    version_in: tuple[str, str]
    newest: bool = False

    @property
    def folder(self) -> Path:
        return HOME / (self.name + ("-newest" if self.newest else ""))

    def make(self) -> None:
        """Build it unless these sources were built. The newest version is looked up each time. Raises Unavailable."""
        for command in (self.build, self.run):
            if shutil.which(command[0]) is None and not command[0].startswith("./"):
                raise Unavailable(f"{command[0]} is not installed")
        stamp, wanted = self.folder / "built.txt", self._digest()
        if not self.newest and stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
            return
        shutil.copytree(HERE / self.source, self.folder, dirs_exist_ok=True)
        stamp.unlink(missing_ok=True)
        if self.newest:
            install(list(self.upgrade), self.folder)
        install(list(self.build), self.folder)
        stamp.write_text(wanted, encoding="utf-8")

    def command(self, program: Path) -> list[str | Path]:
        """Return the command that runs the checks. `program`, a file of `programs`, is not used."""
        return [*self.run]

    def version(self, package: str) -> str:
        """Return the version of `package` that the program was built with."""
        file, pattern = self.version_in
        found = re.search(pattern, (self.folder / file).read_text(encoding="utf-8"))
        assert found is not None, f"no version of {package} in {file}"
        return found[1]

    def _digest(self) -> str:
        digest = hashlib.sha256(repr((self.build, self.run)).encode())
        for path in sorted((HERE / self.source).rglob("*")):
            if path.is_file():
                digest.update(path.read_bytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class GoProgram:
    """A program that `go install` makes of a published module, or that the variable `own` names a copy of."""

    name: str
    package: str
    pinned: str
    own: str

    @property
    def folder(self) -> Path:
        return HOME / self.name

    @property
    def _path(self) -> Path:
        return Path(os.environ.get(self.own) or self.folder / f"{self.package.rpartition('/')[2]}{EXE}")

    def make(self) -> None:
        """Install it unless it is there. Raises Unavailable."""
        if self._path.is_file():
            return
        go = shutil.which("go")
        if go is None:
            raise Unavailable("go is not installed")
        self.folder.mkdir(parents=True, exist_ok=True)
        install([go, "install", f"{self.package}@v{self.pinned}"], self.folder, GOBIN=str(self.folder))

    def command(self, program: Path) -> list[str | Path]:
        """Return the command that runs the checks in the file `program`, with the path of what was installed."""
        return [sys.executable, program, self._path]

    def version(self, package: str) -> str:
        ran = subprocess.run([self._path, "--version"], capture_output=True, text=True, check=True)
        return ran.stdout.split()[-1]


OPENAI_CLI = GoProgram("go-openai-cli", "github.com/openai/openai-cli/cmd/openai", "1.8.0", "ONWARD_OPENAI_CLI")
BUILT = {
    environment.name: environment
    for environment in (
        BuiltEnvironment(
            name="java-openai",
            source="java",
            build=(
                *("mvn", "-q", "-B", "compile", "dependency:copy-dependencies"),
                "-DoutputDirectory=target/lib",
            ),
            run=("java", "-cp", os.pathsep.join(("target/classes", "target/lib/*")), "Main"),
            upgrade=(
                *("mvn", "-q", "-B", "org.codehaus.mojo:versions-maven-plugin:2.18.0:update-properties"),
                *("-DincludeProperties=openai.version", "-DgenerateBackupPoms=false"),
            ),
            version_in=("pom.xml", "<openai.version>(.+?)<"),
        ),
        BuiltEnvironment(
            name="go-openai",
            source="go",
            build=("go", "build", "-o", "clients.exe", "."),
            run=("./clients.exe",),
            upgrade=("go", "get", "github.com/openai/openai-go/v3@latest"),
            version_in=("go.mod", r"openai-go/v3 v([\d.]+)"),
        ),
        BuiltEnvironment(
            name="rust-async-openai",
            source="rust",
            build=("cargo", "build", "--quiet"),
            run=("./target/debug/clients",),
            upgrade=(
                *("cargo", "add", "--quiet", "async-openai", "--no-default-features"),
                *("--features", "byot,completions,model"),
            ),
            version_in=("Cargo.lock", r'name = "async-openai"\nversion = "([\d.]+)"'),
        ),
    )
}
