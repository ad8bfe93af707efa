"""GGUF files as a model format. Imports OpenVINO only to load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onward.checkpoints.paths import is_gguf, part_paths
from onward.errors import CheckpointError
from onward.runtimes.base import LoadedModel, Progress
from onward.runtimes.files import file_problem
from onward.runtimes.openvino.file_names import WEIGHTS

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer
    from onward.runtimes.options import RuntimeOptions

SUFFIX = ".gguf"


class GGUFFormat:
    """A GGUF file, one part of several, or a folder that contains one model in such files."""

    name = "GGUF"
    is_listed = True
    patterns: tuple[str, ...] = ()
    packages: tuple[str, ...] = ("openvino", "tokenizers")
    loading_only_files: tuple[str, ...] = (WEIGHTS, "libopenvino", "_pyopenvino.", "tokenizers.")

    def matches(self, path: Path) -> bool:
        try:
            if path.is_dir():
                return any(path.glob(f"*{SUFFIX}")) and not any(path.glob("*.safetensors"))
            return path.is_file() and (path.suffix == SUFFIX or is_gguf(path))
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
        return missing or _contents_problem(models[0])

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
        if (name := FILE_TYPES.get(file_type if isinstance(file_type, int) else -1)) is not None:
            found["quantisation"] = name
        return found | ({"vocabulary": len(tokens)} if isinstance(tokens, list) else {})

    def conversion(self, source: str) -> str:
        return ""

    def load(self, path: Path, options: RuntimeOptions, progress: Progress) -> LoadedModel:
        from onward.runtimes.openvino.converted import converted
        from onward.runtimes.openvino.load import load_model
        from onward.runtimes.openvino.signal_stack import signal_stack_kept

        tokenizer = self.load_tokenizer(path)
        with converted(_model(path), options, progress) as found, signal_stack_kept():
            model = load_model(found.folder, options, content=found.content)
        return LoadedModel(model, tokenizer, model.fingerprint, tuple(model.notes))

    def load_tokenizer(self, path: Path) -> Tokenizer:
        from onward.checkpoints.checkpoint import read_checkpoint
        from onward.checkpoints.tokenizer import tokenizer_files
        from onward.runtimes.tokenizer import HuggingFaceTokenizer, TokenizerContent

        model = _model(path)
        files = tokenizer_files(read_checkpoint(model).parameters)
        return HuggingFaceTokenizer(TokenizerContent(model, files.tokenizer, files.configuration, [files.generation]))


def _models(path: Path) -> list[Path]:
    """Return the first part of each model at a path."""
    if not path.is_dir():
        return [path]
    return sorted({part_paths(each)[0] for each in path.glob(f"*{SUFFIX}")})


def _model(path: Path) -> Path:
    return _models(path)[0]


def _contents_problem(path: Path) -> list[str]:
    """Return what the file's own statements make impossible. Reads its metadata, not its weights."""
    from onward.checkpoints.checkpoint import read_checkpoint
    from onward.runtimes.openvino.graphs.table import architecture_of

    try:
        architecture_of(read_checkpoint(path))
    except CheckpointError as problem:
        return [str(problem)]
    return []
