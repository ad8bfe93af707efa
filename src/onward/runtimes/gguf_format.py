"""GGUF files as a model format. Imports a runtime only to load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onward.checkpoints.paths import is_companion, is_gguf, part_paths
from onward.model_files.files import file_problem
from onward.runtimes.base import LoadedModel, Progress
from onward.runtimes.checkpoint_format import (
    FACTS,
    LOADING_ONLY_FILES,
    PACKAGES,
    contents_problem,
    load_checkpoint,
)

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer
    from onward.runtimes.options import RuntimeOptions

SUFFIX = ".gguf"


class GGUFFormat:
    """A GGUF file, one part of several, or a folder that contains one model in such files."""

    name = "GGUF"
    is_listed = True
    takes_adapters = True
    patterns: tuple[str, ...] = ()
    packages = PACKAGES
    loading_only_files = LOADING_ONLY_FILES

    def matches(self, path: Path) -> bool:
        try:
            if path.is_dir():
                return bool(_gguf_files(path)) and not any(path.glob("*.safetensors"))
            return path.is_file() and (path.suffix.lower() == SUFFIX or is_gguf(path))
        except OSError:
            return False

    def files(self, path: Path) -> list[Path]:
        if not self.matches(path):
            return []
        models = _models(path)
        return [part for part in part_paths(models[0]) if part.exists()]

    def problems(self, path: Path) -> list[str]:
        models = _models(path)
        if len(models) > 1:
            names = ", ".join(each.name for each in models[:8])
            return [f"{path} contains several models ({names}): pass the path of one."]
        missing = [problem for part in part_paths(models[0]) if (problem := file_problem(part))]
        return missing or contents_problem(models[0])

    def facts(self, path: Path) -> dict[str, int | str]:
        from onward.checkpoints.checkpoint import read_checkpoint
        from onward.checkpoints.types import FILE_TYPES

        parameters = read_checkpoint(_model(path)).parameters
        file_type = parameters.whole("general.file_type")
        tokens = parameters.whole("tokenizer.ggml.tokens")
        found: dict[str, int | str] = {
            "context_length": parameters.integer("context_length"),
            "kind": parameters.architecture,
        }
        original = parameters.whole(f"{parameters.architecture}.rope.scaling.original_context_length")
        if isinstance(original, int):
            found["original_context_length"] = original
        if (name := FILE_TYPES.get(file_type if isinstance(file_type, int) else -1)) is not None:
            found["quantisation"] = name
        return found | ({"vocabulary": len(tokens)} if isinstance(tokens, list) else {}) | FACTS

    def listed_files(self, path: Path) -> list[str]:
        return []

    def notes(self, path: Path) -> list[str]:
        from onward.checkpoints.notes import notes_of

        return notes_of(_model(path))

    def conversion(self, source: str) -> str:
        return ""

    def load(self, path: Path, options: RuntimeOptions, progress: Progress) -> LoadedModel:
        return load_checkpoint(_model(path), options, progress)

    def load_tokenizer(self, path: Path, cache_dir: Path | None = None) -> Tokenizer:
        from onward.checkpoints.checkpoint import read_checkpoint
        from onward.model_files.tokenizer import HuggingFaceTokenizer, TokenizerContent
        from onward.model_files.tokenizer_cache import cached_tokenizer_files

        model = _model(path)
        files = cached_tokenizer_files(read_checkpoint(model).parameters, cache_dir)
        return HuggingFaceTokenizer(TokenizerContent(model, files.tokenizer, files.configuration, [files.generation]))


def _models(path: Path) -> list[Path]:
    """Return the first part of each model at a path."""
    if not path.is_dir():
        return [path]
    found = sorted({part_paths(each)[0] for each in _gguf_files(path)})
    return [each for each in found if not is_companion(each.name)] or found


def _gguf_files(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.suffix.lower() == SUFFIX]


def _model(path: Path) -> Path:
    return _models(path)[0]
