"""A model format and a runtime as another project would add them: single files, or folders with one, computed by the
toy.

As a program it is `onward` with both in their tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onward.cli.main import main
from onward.compose import spare, worker
from onward.engine.model import Tokenizer
from onward.model_files import formats
from onward.model_files.base import ModelFiles, Progress
from onward.model_files.toy import ToyTokenizer
from onward.runtimes import table
from onward.runtimes.base import LoadedModel, Runtime, RuntimeOptions
from onward.runtimes.toy.model import ToyModel

CONTENT = "a model\n"
NOTE = "Computed by the toy."


class OneFile(ModelFiles):
    """`*.onefile`, which must contain CONTENT."""

    format = "OneFile"
    patterns = ("*.onefile",)
    packages = ()

    @classmethod
    def matches(cls, path: Path) -> bool:
        return bool(cls(path).paths())

    def paths(self) -> list[Path]:
        if self.path.is_dir():
            return sorted(self.path.glob("*.onefile"))
        return [self.path] if self.path.suffix == ".onefile" and self.path.is_file() else []

    def problems(self) -> list[str]:
        wrong = [each for each in self.paths() if each.read_text(encoding="utf-8") != CONTENT]
        return [f"{each} is damaged: download it again." for each in wrong]

    def facts(self) -> dict[str, int | str]:
        return {"context_length": 99, "kind": "one file"}

    @classmethod
    def conversion(cls, source: str) -> str:
        return f"`onefile {source}`"

    def load_tokenizer(self, cache_dir: Path | None = None) -> Tokenizer:
        return ToyTokenizer()


class OneFileRuntime(Runtime):
    """Computes such files."""

    name = "onefile"
    reason = "nothing else does"
    packages = ("onefile-runtime",)
    loading_only_files = ("libonefile.",)

    def computes(self, files: ModelFiles) -> bool:
        return isinstance(files, OneFile)

    def refusal(self, files: ModelFiles) -> str:
        return f"{files.path} is not one file."

    def load(self, files: ModelFiles, options: RuntimeOptions, progress: Progress) -> LoadedModel:
        progress("Opening one file")
        return LoadedModel(ToyModel(context_length=99), "fp_onefile", (NOTE,))


if __name__ == "__main__":
    formats.FORMATS += (OneFile,)
    table.RUNTIMES += (OneFileRuntime(),)
    spare.WORKER = (sys.executable, "-m", "tests.journeys.one_file_format", "worker")
    if sys.argv[1:] == ["worker"]:
        worker.main()
    main()
