"""The toy as a model format: a folder with toy.json, which states how large it is. Imports numpy only to load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onward.errors import ModelFolderError
from onward.model_files.files import json_problem, present, read_object
from onward.runtimes.base import LoadedModel, Progress
from onward.runtimes.toy.tokenizer import ToyTokenizer

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer
    from onward.runtimes.options import RuntimeOptions

SIZES = "toy.json"
MAX_SIZES = {"blocks": 100_000, "context_length": 1 << 24}


class ToyFormat:
    """A folder with `{"blocks": …, "context_length": …}` in toy.json: KV blocks, and tokens per sequence.

    Of the options, only the context length has a meaning here.
    """

    name = "toy"
    is_listed = False
    takes_adapters = False
    patterns: tuple[str, ...] = ()
    packages: tuple[str, ...] = ("numpy",)
    loading_only_files: tuple[str, ...] = ()

    def matches(self, path: Path) -> bool:
        return bool(present(path, [SIZES]))

    def files(self, path: Path) -> list[Path]:
        return present(path, [SIZES])

    def problems(self, path: Path) -> list[str]:
        if problem := json_problem(path / SIZES):
            return [problem]
        sizes = _read(path)
        wrong = [name for name, limit in MAX_SIZES.items() if not _is_within(sizes.get(name), limit)]
        return [f"{path / SIZES}: {name} must be a positive integer, at most {MAX_SIZES[name]}." for name in wrong]

    def facts(self, path: Path) -> dict[str, int | str]:
        return {"context_length": _read(path)["context_length"], "vocabulary": ToyTokenizer().size, "kind": "toy"}

    def listed_files(self, path: Path) -> list[str]:
        return []

    def notes(self, path: Path) -> list[str]:
        return []

    def conversion(self, source: str) -> str:
        return ""

    def load(self, path: Path, options: RuntimeOptions, progress: Progress) -> LoadedModel:
        from onward.runtimes.toy.model import ToyModel

        if problems := self.problems(path):
            raise ModelFolderError(" ".join(problems))
        sizes = _read(path)
        context_length = options.context_within(sizes["context_length"], path.name)
        model = ToyModel(blocks=sizes["blocks"], context_length=context_length)
        return LoadedModel(model, model.fingerprint)

    def load_tokenizer(self, path: Path, cache_dir: Path | None = None) -> Tokenizer:
        return ToyTokenizer()


def _read(path: Path) -> dict[str, int]:
    return read_object(path / SIZES)


def _is_within(value: object, limit: int) -> bool:
    return type(value) is int and 0 < value <= limit
