"""Folders of safetensors files, as Hugging Face's libraries save them, as a model format."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from onward.checkpoints.paths import CONFIG, INDEX, QUANTISATION, SAFETENSORS, WHOLE
from onward.errors import CheckpointError
from onward.model_files.checkpoint import CheckpointFiles
from onward.model_files.files import (
    TOKENIZER_FILES,
    added_tokens,
    config_facts,
    file_problem,
    json_problem,
    present,
    rows_problem,
    tokenizer_problem,
    tokenizer_source,
)

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer


class SafetensorsFiles(CheckpointFiles):
    """A folder with config.json, tokenizer.json, and the weights in one file or several."""

    format = "safetensors"
    patterns = (WHOLE, INDEX, QUANTISATION, *TOKENIZER_FILES)

    @classmethod
    def matches(cls, path: Path) -> bool:
        try:
            has_config = (path / CONFIG).is_file() and any(path.glob(f"*{SAFETENSORS}"))
            return has_config or bool(present(path, (WHOLE, INDEX)))
        except OSError:
            return False

    @property
    def checkpoint_path(self) -> Path:
        return self.path

    def paths(self) -> list[Path]:
        if not self.matches(self.path):
            return []
        return [*self._weights(), *present(self.path, [INDEX, QUANTISATION, *TOKENIZER_FILES])]

    def problems(self) -> list[str]:
        from onward.model_files.tokenizer_folder import made_tokenizer_problem

        found = [
            file_problem(self.path / CONFIG) or json_problem(self.path / CONFIG),
            tokenizer_problem(self.path),
            made_tokenizer_problem(self.path),
        ]
        found += [file_problem(part) for part in self._weights()]
        return [problem for problem in found if problem] or self.contents_problems() or self._missing_rows()

    def facts(self) -> dict[str, int | str]:
        from onward.checkpoints.notes import size_facts

        return config_facts(self.path) | size_facts(self.checkpoint())

    def listed_files(self) -> list[str]:
        from onward.checkpoints.folder import folder_paths

        with suppress(CheckpointError):
            return [part.name for part in folder_paths(self.path)]
        return []

    def configuration_problem(self) -> str | None:
        from onward.checkpoints.folder import read_configuration

        try:
            read_configuration(self.path)
        except CheckpointError as problem:
            return str(problem)
        return None

    def load_tokenizer(self, cache_dir: Path | None = None) -> Tokenizer:
        from onward.model_files.tokenizer import HuggingFaceTokenizer

        return HuggingFaceTokenizer(self.path)

    def _missing_rows(self) -> list[str]:
        num_rows = self.checkpoint().tensor("token_embd.weight").shape[0]
        problem = rows_problem(str(self.path), added_tokens(self.path), num_rows)
        return [problem] if problem else []

    def _weights(self) -> list[Path]:
        """Return the files of the weights; all that might be them where the list of files is broken."""
        from onward.checkpoints.folder import folder_paths

        try:
            return list(folder_paths(self.path))
        except CheckpointError:
            return sorted(self.path.glob(f"*{SAFETENSORS}"))


class TokenizerFolder(SafetensorsFiles):
    """A folder with a tokenizer and no weights, of a model that another server computes."""

    @classmethod
    def matches(cls, path: Path) -> bool:
        try:
            return (path / tokenizer_source(path)).is_file()
        except OSError:
            return False

    def paths(self) -> list[Path]:
        return [self.path / tokenizer_source(self.path)]
