"""GGUF files as a model format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onward.checkpoints.paths import is_companion, is_gguf, part_paths
from onward.model_files.checkpoint import CheckpointFiles
from onward.model_files.files import file_problem

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer

SUFFIX = ".gguf"


class GGUFFiles(CheckpointFiles):
    """A GGUF file, one part of several, or a folder that contains one model in such files."""

    format = "GGUF"

    @classmethod
    def matches(cls, path: Path) -> bool:
        try:
            if path.is_dir():
                return bool(_gguf_files(path)) and not any(path.glob("*.safetensors"))
            return path.is_file() and (path.suffix.lower() == SUFFIX or is_gguf(path))
        except OSError:
            return False

    @property
    def checkpoint_path(self) -> Path:
        return _models(self.path)[0]

    def paths(self) -> list[Path]:
        if not self.matches(self.path):
            return []
        return [part for part in part_paths(self.checkpoint_path) if part.exists()]

    def problems(self) -> list[str]:
        models = _models(self.path)
        if len(models) > 1:
            names = ", ".join(each.name for each in models[:8])
            return [f"{self.path} contains several models ({names}): pass the path of one."]
        missing = [problem for part in part_paths(models[0]) if (problem := file_problem(part))]
        return missing or self.contents_problems()

    def facts(self) -> dict[str, int | str]:
        from onward.checkpoints.cursor import Strings
        from onward.checkpoints.notes import size_facts
        from onward.checkpoints.types import FILE_TYPES

        parameters = self.checkpoint().parameters
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
        found |= size_facts(self.checkpoint())
        return found | ({"vocabulary": len(tokens)} if isinstance(tokens, Strings) else {})

    def load_tokenizer(self, cache_dir: Path | None = None) -> Tokenizer:
        from onward.model_files.tokenizer_cache import cached_tokenizer

        return cached_tokenizer(self.checkpoint_path, self.checkpoint().parameters, cache_dir)


def _models(path: Path) -> list[Path]:
    """Return the first part of each model at a path."""
    if not path.is_dir():
        return [path]
    found = sorted({part_paths(each)[0] for each in _gguf_files(path)})
    return [each for each in found if not is_companion(each.name)] or found


def _gguf_files(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.suffix.lower() == SUFFIX]
