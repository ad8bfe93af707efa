"""One environment per client, created on demand: their pinned dependencies conflict with each other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".venv-clients"
INSTALL_SECONDS = 900


class Unavailable(Exception):
    """The client cannot be installed: a tool is missing, or a package registry does not respond."""


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """A virtual environment with `requirements` installed."""

    name: str
    requirements: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return HOME / self.name

    def make(self) -> None:
        """Create it unless it exists with these packages. Raises Unavailable."""
        stamp = self.folder / "requirements.txt"
        wanted = "\n".join(self.requirements)
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        venv.create(self.folder, with_pip=False)  # the tests' own pip installs into it, which is seconds faster
        pip = [sys.executable, "-m", "pip", "--python", str(self.program("python")), "--disable-pip-version-check"]
        install([*pip, "install", "--quiet", *self.requirements], self.folder)
        stamp.write_text(wanted, encoding="utf-8")

    def program(self, name: str) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin") / name

    def command(self, program: Path) -> list[str | Path]:
        """Return the command that runs the checks in the file `program`."""
        return [self.program("python"), program]

    def version(self, package: str) -> str:
        """Return the installed version of `package`."""
        words = f"import importlib.metadata as m; print(m.version({package!r}))"
        ran = subprocess.run([self.program("python"), "-c", words], capture_output=True, text=True, check=True)
        return ran.stdout.strip()


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """An npm folder with `packages` installed."""

    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return HOME / self.name

    def make(self) -> None:
        """Create it unless it exists with these packages. Raises Unavailable."""
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable("npm is not installed")
        stamp, wanted = self.folder / "packages.txt", "\n".join(self.packages)
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        (self.folder / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
        install([npm, "install", "--no-audit", "--no-fund", "--silent", *self.packages], self.folder)
        stamp.write_text(wanted, encoding="utf-8")

    def program(self, name: str) -> Path:
        """Return the path of a program: the folder's own if it has one, else the machine's. Raises Unavailable."""
        own = self.folder / "node_modules" / "node" / "bin" / name
        found = own if own.is_file() else Path(shutil.which(name) or "")
        if not found.name:
            raise Unavailable(f"{name} is not installed")
        return found

    def command(self, program: Path) -> list[str | Path]:
        """Return the command that runs the checks in a copy of the file `program`, from whose folder node resolves
        imports. Raises Unavailable."""
        shutil.copy(program.with_name("report.mjs"), self.folder)
        return [self.program("node"), shutil.copy(program, self.folder)]

    def version(self, package: str) -> str:
        words = f"console.log(JSON.parse(require('fs').readFileSync('node_modules/{package}/package.json')).version)"
        node = shutil.which("node") or "node"
        ran = subprocess.run([node, "-e", words], cwd=self.folder, capture_output=True, text=True, check=True)
        return ran.stdout.strip()


def install(command: list[str], cwd: Path, **variables: str) -> None:
    """Run a command that installs or builds, in the folder `cwd`, with these environment variables added. Raises
    Unavailable with its last line."""
    try:
        ran = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS, env=os.environ | variables
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"installation took more than {INSTALL_SECONDS} s") from None
    if ran.returncode:
        lines = (ran.stderr or ran.stdout).strip().splitlines() or [f"exit code {ran.returncode}"]
        raise Unavailable(lines[-1])


PYTHON = {
    environment.name: environment
    for environment in (
        PythonEnvironment("openai-3", ("openai>=3,<4",)),
        PythonEnvironment("openai-2.34", ("openai==2.34.0",)),
        PythonEnvironment("openai-0.28", ("openai==0.28.1",)),
        PythonEnvironment("langchain", ("langchain-openai>=1.0",)),
        PythonEnvironment("llama-index", ("llama-index-llms-openai-like",)),
        PythonEnvironment("llm", ("llm>=0.27",)),
        PythonEnvironment("litellm", ("litellm",)),
        PythonEnvironment("lm-eval", ("lm-eval[api]>=0.4.9",)),
        PythonEnvironment("ollama", ("ollama==0.6.3",)),
        PythonEnvironment("mistralai", ("mistralai==3.7.0",)),
        PythonEnvironment("text-generation", ("text-generation==0.7.0",)),
        PythonEnvironment("schemathesis", ("schemathesis>=4",)),  # for tests/fuzz
        PythonEnvironment(  # for tests/model_files: the last two contain tokenizers of published models
            "transformers-5", ("transformers>=5,<6", "sentencepiece", "protobuf", "mistral-common", "litellm")
        ),
        PythonEnvironment("transformers-4", ("transformers==4.57.*", "sentencepiece", "protobuf")),
    )
}
NODE = {
    environment.name: environment
    for environment in (
        NodeEnvironment("node-openai-6", ("openai@6",)),
        NodeEnvironment("node-openai-7", ("openai@7", "node@22")),
        NodeEnvironment("node-22", ("node@22",)),  # for tests/clients/vscode
        NodeEnvironment("continue", ("@continuedev/openai-adapters@1.37.0", "@continuedev/config-yaml@1.42.0")),
        NodeEnvironment("tabby-agent", ("tabby-agent@1.5.0",)),
    )
}


def main(names: list[str]) -> int:
    """Create the named environments, or all; return how many failed."""
    failed = 0
    environments: list[PythonEnvironment | NodeEnvironment] = [*PYTHON.values(), *NODE.values()]
    for environment in environments:
        if names and environment.name not in names:
            continue
        try:
            environment.make()
            print(f"{environment.name}: ready", flush=True)
        except Unavailable as problem:
            failed += 1
            print(f"{environment.name}: UNAVAILABLE: {problem}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
