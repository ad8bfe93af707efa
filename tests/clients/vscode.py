"""VS Code as a client: code-server, which is VS Code in the browser, with an extension, driven by Playwright."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.playground.browser import CHROMIUM

from .environments import HOME, NODE, Unavailable, install

NATIVE = ("@vscode/spdlog", "@vscode/native-watchdog")
"""Modules that VS Code's server needs and that have to be compiled. Those for terminals and for files that change come
compiled; ripgrep, which would be downloaded, is only for searching."""


@dataclass(frozen=True, slots=True)
class CodeServer:
    """code-server from npm, with the version of Node that it needs."""

    pinned: str

    @property
    def folder(self) -> Path:
        return HOME / f"code-server-{self.pinned}"

    @property
    def package(self) -> Path:
        return self.folder / "node_modules" / "code-server"

    @property
    def command(self) -> list[str]:
        return [str(NODE["node-22"].program("node")), str(self.package)]

    def make(self) -> None:
        """Install and compile it unless that was done. Raises Unavailable."""
        NODE["node-22"].make()
        stamp = self.folder / "made.txt"
        if stamp.is_file():
            return
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable("npm is not installed")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        (self.folder / "package.json").write_text('{"private": true}', encoding="utf-8")
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        install([npm, "install", *quiet, f"code-server@{self.pinned}"], self.folder)
        code = self.package / "lib" / "vscode"
        node = NODE["node-22"].program("node").parent
        path = f"{node}{os.pathsep}{os.environ['PATH']}"
        install([npm, "install", "--omit=dev", *quiet], code, PATH=path)
        install([npm, "rebuild", *self._headers(), *NATIVE], code, PATH=path)
        stamp.write_text(self.pinned, encoding="utf-8")

    @staticmethod
    def _headers() -> list[str]:
        """Return the folder of the machine's Node headers, with which modules of this kind can be compiled for any
        later version; nothing if there is none, and they are downloaded."""
        node = shutil.which("node")
        prefix = Path(node).resolve().parent.parent if node else Path()
        return [f"--nodedir={prefix}"] if (prefix / "include/node/node_api.h").is_file() else []


@dataclass(frozen=True, slots=True)
class VSCodeExtension:
    """An extension from Open VSX, or the folder of an installed one, which the variable `own` names."""

    name: str
    pinned: str
    own: str
    editor: CodeServer

    @property
    def folder(self) -> Path:
        return HOME / f"{self.name}-{self.pinned}"

    def make(self) -> None:
        """Install the editor and the extension. Raises Unavailable, also where there is no browser."""
        if importlib.util.find_spec("playwright") is None:
            raise Unavailable("Playwright is not installed: pip install 'onward[browser]'")
        if CHROMIUM is None:
            raise Unavailable("no Chromium was found")
        self.editor.make()
        own = os.environ.get(self.own)
        if own:
            target = self.folder / f"{self.name}-{self.pinned}"
            shutil.rmtree(self.folder, ignore_errors=True)
            shutil.copytree(own, target, ignore=shutil.ignore_patterns("node_modules", ".git", "src"))
        elif not self._installed():
            ask = ["--extensions-dir", str(self.folder), "--install-extension", f"{self.name}@{self.pinned}"]
            install([*self.editor.command, *ask], HOME)

    def command(self, program: Path) -> list[str | Path]:
        """Return the command that runs the checks in the file `program`, with the folder of extensions, the browser and
        code-server's command."""
        return [sys.executable, program, self.folder, CHROMIUM or "", *self.editor.command]

    def version(self, package: str) -> str:
        """Return the versions of the extension and of VS Code."""
        code = json.loads((self.editor.package / "lib" / "vscode" / "package.json").read_text(encoding="utf-8"))[
            "version"
        ]
        return f"{self._manifest()['version']}, VS Code {code}"

    def _installed(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self.name}-*/package.json"))

    def _manifest(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self._installed()[0].read_text(encoding="utf-8"))
        return found


LLAMA_VSCODE = VSCodeExtension("ggml-org.llama-vscode", "0.0.63", "ONWARD_LLAMA_VSCODE", CodeServer("4.112.0"))
