"""A model format as another runtime would add it: single files, or folders with one, computed by the toy.

As a program it is `onward` with this format in the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onward.cli.main import main
from onward.compose import backend, worker
from onward.engine.model import Tokenizer
from onward.runtimes import formats
from onward.runtimes.base import LoadedModel, Progress
from onward.runtimes.options import RuntimeOptions
from onward.runtimes.toy.model import ToyModel
from onward.runtimes.toy.tokenizer import ToyTokenizer

CONTENT = "a model\n"
NOTE = "Computed by the toy."


class OneFileFormat:
    """`*.onefile`, which must contain CONTENT."""

    name = "OneFile"
    is_listed = True
    takes_adapters = False
    patterns: tuple[str, ...] = ("*.onefile",)
    packages: tuple[str, ...] = ("onefile-runtime",)
    loading_only_files: tuple[str, ...] = ("libonefile.",)

    def matches(self, path: Path) -> bool:
        return bool(self.files(path))

    def files(self, path: Path) -> list[Path]:
        if path.is_dir():
            return sorted(path.glob("*.onefile"))
        return [path] if path.suffix == ".onefile" and path.is_file() else []

    def problems(self, path: Path) -> list[str]:
        wrong = [each for each in self.files(path) if each.read_text() != CONTENT]
        return [f"{each} is damaged: download it again." for each in wrong]

    def facts(self, path: Path) -> dict[str, int | str]:
        return {"context_length": 99, "kind": "one file"}

    def listed_files(self, path: Path) -> list[str]:
        return []

    def notes(self, path: Path) -> list[str]:
        return []

    def conversion(self, source: str) -> str:
        return f"`onefile {source}`"

    def load(self, path: Path, options: RuntimeOptions, progress: Progress) -> LoadedModel:
        progress("Opening one file")
        return LoadedModel(ToyModel(context_length=99), "fp_onefile", (NOTE,))

    def load_tokenizer(self, path: Path, cache_dir: Path | None = None) -> Tokenizer:
        return ToyTokenizer()


if __name__ == "__main__":
    formats.MODEL_FORMATS += (OneFileFormat(),)
    backend.WORKER = (sys.executable, "-m", "tests.journeys.one_file_format", "worker")
    if sys.argv[1:] == ["worker"]:
        worker.main()
    main()
