"""Folders of safetensors files, as Hugging Face's libraries save them, as a model format."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from onward.checkpoints.paths import CONFIG, INDEX, SAFETENSORS, WHOLE
from onward.errors import CheckpointError
from onward.model_files.files import (
    TOKENIZER_FILES,
    added_tokens,
    config_facts,
    file_problem,
    json_problem,
    present,
    rows_problem,
    tokenizer_problem,
)
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


class SafetensorsFormat:
    """A folder with config.json, tokenizer.json, and the weights in one file or several."""

    name = "safetensors"
    is_listed = True
    takes_adapters = True
    patterns: tuple[str, ...] = (WHOLE, INDEX, *TOKENIZER_FILES)
    packages = PACKAGES
    loading_only_files = LOADING_ONLY_FILES

    def matches(self, path: Path) -> bool:
        try:
            has_config = (path / CONFIG).is_file() and any(path.glob(f"*{SAFETENSORS}"))
            return has_config or bool(present(path, (WHOLE, INDEX)))
        except OSError:
            return False

    def files(self, path: Path) -> list[Path]:
        if not self.matches(path):
            return []
        return [*_weights(path), *present(path, [INDEX, *TOKENIZER_FILES])]

    def problems(self, path: Path) -> list[str]:
        from onward.model_files.tokenizer_folder import made_tokenizer_problem

        found = [
            file_problem(path / CONFIG) or json_problem(path / CONFIG),
            tokenizer_problem(path),
            made_tokenizer_problem(path),
        ]
        found += [file_problem(part) for part in _weights(path)]
        return [problem for problem in found if problem] or contents_problem(path) or _missing_rows(path)

    def facts(self, path: Path) -> dict[str, int | str]:
        return config_facts(path) | FACTS

    def listed_files(self, path: Path) -> list[str]:
        from onward.checkpoints.folder import folder_paths

        with suppress(CheckpointError):
            return [part.name for part in folder_paths(path)]
        return []

    def notes(self, path: Path) -> list[str]:
        from onward.checkpoints.notes import notes_of

        return notes_of(path)

    def conversion(self, source: str) -> str:
        return ""

    def load(self, path: Path, options: RuntimeOptions, progress: Progress) -> LoadedModel:
        return load_checkpoint(path, options, progress)

    def load_tokenizer(self, path: Path, cache_dir: Path | None = None) -> Tokenizer:
        from onward.model_files.tokenizer import HuggingFaceTokenizer

        return HuggingFaceTokenizer(path)


def _missing_rows(path: Path) -> list[str]:
    from onward.checkpoints.checkpoint import read_checkpoint

    num_rows = read_checkpoint(path).tensor("token_embd.weight").shape[0]
    problem = rows_problem(str(path), added_tokens(path), num_rows)
    return [problem] if problem else []


def _weights(path: Path) -> list[Path]:
    """Return the files of the weights; all that might be them where the list of files is broken."""
    from onward.checkpoints.folder import folder_paths

    try:
        return list(folder_paths(path))
    except CheckpointError:
        return sorted(path.glob(f"*{SAFETENSORS}"))
