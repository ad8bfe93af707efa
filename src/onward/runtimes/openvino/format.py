"""OpenVINO IR folders as a model format. Imports OpenVINO only to load."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from onward.errors import SetupError
from onward.model_files.files import (
    CONFIG,
    TOKENIZER_FILES,
    config_facts,
    file_problem,
    json_problem,
    present,
    tokenizer_problem,
)
from onward.runtimes.base import LoadedModel, Progress
from onward.runtimes.openvino.file_names import GRAPH, WEIGHTS

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer
    from onward.runtimes.options import RuntimeOptions

_EXPORTER = (
    "optimum-cli comes with `pip install 'optimum-intel[openvino]==2.2.0' 'transformers==4.57.6'`, best in an "
    "environment of its own because it installs PyTorch"
)
"""Versions that work together: the exporter of Gemma 3 refuses transformers 5, which pip would install."""


class OpenVINOFormat:
    """A folder that `optimum-cli export openvino` wrote: graph, weights, tokenizer, configuration."""

    name = "OpenVINO IR"
    is_listed = True
    takes_adapters = False
    patterns: tuple[str, ...] = (GRAPH, WEIGHTS, *TOKENIZER_FILES)
    packages: tuple[str, ...] = ("tokenizers",)
    loading_only_files: tuple[str, ...] = (WEIGHTS, "libopenvino", "_pyopenvino.", "tokenizers.")

    def matches(self, path: Path) -> bool:
        return bool(present(path, (GRAPH, WEIGHTS)))

    def files(self, path: Path) -> list[Path]:
        return present(path, self.patterns)

    def problems(self, path: Path) -> list[str]:
        from onward.model_files.tokenizer_folder import made_tokenizer_problem

        found = [
            file_problem(path / GRAPH),
            file_problem(path / WEIGHTS),
            tokenizer_problem(path),
            made_tokenizer_problem(path),
        ]
        found += [json_problem(each) for each in present(path, [CONFIG])]
        return [problem for problem in found if problem]

    def facts(self, path: Path) -> dict[str, int | str]:
        return {**config_facts(path), "runtime": "openvino", "runtime_reason": f"it is {self.name}"}

    def listed_files(self, path: Path) -> list[str]:
        return []

    def notes(self, path: Path) -> list[str]:
        return []

    def conversion(self, source: str) -> str:
        folder = source.rstrip("/").rpartition("/")[2] or "model"
        # The task: of a folder, the exporter cannot look it up on the hub.
        task = "--task text-generation-with-past --weight-format int8"
        command = f"optimum-cli export openvino --model {source} {task} {folder}-openvino"
        return f"`{command}` ({_EXPORTER})"

    def load(self, path: Path, options: RuntimeOptions, progress: Progress) -> LoadedModel:
        if options.runtime == "native":
            raise SetupError(
                f"{path} is {self.name}, which only OpenVINO computes: remove --runtime native, or use the GGUF or "
                "safetensors files of the model."
            )
        if importlib.util.find_spec("openvino") is None:
            raise SetupError(
                f"{path} is {self.name}, which needs OpenVINO: `pip install 'onward[openvino]'`, or use the GGUF or "
                "safetensors files of the model."
            )
        from onward.runtimes.openvino.load import load_model

        model = load_model(path, options)
        return LoadedModel(model, model.fingerprint, tuple(model.notes))

    def load_tokenizer(self, path: Path, cache_dir: Path | None = None) -> Tokenizer:
        from onward.model_files.tokenizer import HuggingFaceTokenizer

        return HuggingFaceTokenizer(path)
