"""What formats of model files share: which runtime computes them, and loading. Imports a runtime only to load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from onward.errors import CheckpointError
from onward.runtimes.base import LoadedModel, Progress
from onward.runtimes.files import CONFIG, TOKENIZER, TOKENIZER_FILES, present
from onward.runtimes.openvino.file_names import SHARED, WEIGHTS
from onward.runtimes.options import RuntimeName, RuntimeOptions

if TYPE_CHECKING:
    from onward.checkpoints.checkpoint import Checkpoint

PACKAGES: tuple[str, ...] = ("openvino", "tokenizers")
LOADING_ONLY_FILES: tuple[str, ...] = (WEIGHTS, SHARED, "libopenvino", "_pyopenvino.", "tokenizers.")


def runtime_of(checkpoint: Checkpoint, options: RuntimeOptions) -> tuple[RuntimeName, str]:
    """Return which runtime computes a checkpoint, and why, in a sentence's words. Raises CheckpointError."""
    if options.runtime != "auto":
        return options.runtime, "it was asked for"
    from onward.runtimes.native.requirements import auto_problem

    if problem := auto_problem(checkpoint, options):
        return "openvino", f"the native runtime does not take it: {problem}"
    return "native", "the same bits on every machine, and nothing to convert"


def runtime_facts(path: Path) -> dict[str, int | str]:
    """Return the facts about the runtime that computes a model by default. Raises CheckpointError."""
    from onward.checkpoints.checkpoint import read_checkpoint

    name, reason = runtime_of(read_checkpoint(path), RuntimeOptions())
    return {"runtime": name, "runtime_reason": reason}


def load_checkpoint(path: Path, options: RuntimeOptions, progress: Progress) -> LoadedModel:
    """Load what `read_checkpoint` reads at `path`. Slow; blocks. Raises as ModelFormat.load."""
    from onward.checkpoints.checkpoint import read_checkpoint

    if options.runtime != "openvino":
        checkpoint = read_checkpoint(path)
        if runtime_of(checkpoint, options)[0] == "native":
            from onward.runtimes.native.load import load_model as load_native

            return load_native(checkpoint, options, progress)
        del checkpoint
    from onward.runtimes.openvino.converted import converted
    from onward.runtimes.openvino.load import load_model
    from onward.runtimes.openvino.signal_stack import signal_stack_kept

    with converted(path, options, progress) as found, signal_stack_kept():
        model = load_model(found.folder, options, content=found.content)
    return LoadedModel(model, model.fingerprint, tuple(model.notes))


def convert_checkpoint(path: Path, folder: Path, options: RuntimeOptions, progress: Progress) -> None:
    """Write what `read_checkpoint` reads at `path` as an IR folder with its tokenizer, which must not exist.

    Slow; blocks. Raises CheckpointError, SetupError.
    """
    from onward.runtimes.openvino.converted import write_ir
    from onward.runtimes.openvino.signal_stack import signal_stack_kept

    with signal_stack_kept():
        write_ir(path, folder, _tokenizer_files(path), options, progress)


def _tokenizer_files(path: Path) -> dict[str, bytes]:
    if path.is_dir():
        return {each.name: each.read_bytes() for each in present(path, TOKENIZER_FILES) if each.name != CONFIG}
    from onward.checkpoints.checkpoint import read_checkpoint
    from onward.checkpoints.tokenizer import tokenizer_files

    files = tokenizer_files(read_checkpoint(path).parameters)
    return {
        TOKENIZER: files.tokenizer,
        "tokenizer_config.json": json.dumps(files.configuration).encode(),
        "generation_config.json": json.dumps(files.generation).encode(),
    }


def contents_problem(path: Path) -> list[str]:
    """Return what the files' own statements make impossible. Reads what they state, not their weights."""
    from onward.checkpoints.notes import problem_of

    problem = problem_of(path)
    return [problem] if problem else []


def merge_problem(path: Path, adapter: Path) -> str:
    """Return why an adapter cannot be merged into a model file, "" if nothing was found. Reads no weights."""
    from onward.checkpoints.adapter import merged
    from onward.checkpoints.checkpoint import read_checkpoint

    try:
        merged(read_checkpoint(path), adapter)
    except CheckpointError as problem:
        return str(problem)
    return ""
