"""OpenVINO IR folders as a model format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onward.model_files.base import ModelFiles
from onward.model_files.files import (
    CONFIG,
    TOKENIZER_FILES,
    config_facts,
    file_problem,
    json_problem,
    present,
    tokenizer_problem,
)

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer

GRAPH, WEIGHTS = "openvino_model.xml", "openvino_model.bin"
_EXPORTER = (
    "optimum-cli comes with `pip install 'optimum-intel[openvino]==2.2.0' 'transformers==4.57.6'`, best in an "
    "environment of its own because it installs PyTorch"
)
"""Versions that work together: the exporter of Gemma 3 refuses transformers 5, which pip would install."""


class OpenVINOFiles(ModelFiles):
    """A folder that `optimum-cli export openvino` wrote: graph, weights, tokenizer, configuration."""

    format = "OpenVINO IR"
    patterns = (GRAPH, WEIGHTS, *TOKENIZER_FILES)

    @classmethod
    def matches(cls, path: Path) -> bool:
        return bool(present(path, (GRAPH, WEIGHTS)))

    def paths(self) -> list[Path]:
        return present(self.path, self.patterns)

    def problems(self) -> list[str]:
        from onward.model_files.tokenizer_folder import made_tokenizer_problem

        found = [
            file_problem(self.path / GRAPH),
            file_problem(self.path / WEIGHTS),
            tokenizer_problem(self.path),
            made_tokenizer_problem(self.path),
        ]
        found += [json_problem(each) for each in present(self.path, [CONFIG])]
        return [problem for problem in found if problem]

    def facts(self) -> dict[str, int | str]:
        return config_facts(self.path)

    @classmethod
    def conversion(cls, source: str) -> str:
        folder = source.rstrip("/").rpartition("/")[2] or "model"
        # The task: of a folder, the exporter cannot look it up on the hub.
        task = "--task text-generation-with-past --weight-format int8"
        command = f"optimum-cli export openvino --model {source} {task} {folder}-openvino"
        return f"`{command}` ({_EXPORTER})"

    def load_tokenizer(self, cache_dir: Path | None = None) -> Tokenizer:
        from onward.model_files.tokenizer import HuggingFaceTokenizer

        return HuggingFaceTokenizer(self.path)
