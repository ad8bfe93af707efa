"""What formats of model files share: the native runtime, which is imported only to load."""

from __future__ import annotations

from pathlib import Path

from onward.errors import CheckpointError, SetupError
from onward.runtimes.base import LoadedModel, Progress
from onward.runtimes.options import RuntimeOptions

PACKAGES: tuple[str, ...] = ("llvmlite", "tokenizers")
LOADING_ONLY_FILES: tuple[str, ...] = ("tokenizers.",)
FACTS: dict[str, int | str] = {"runtime": "native", "runtime_reason": "the same bits on every machine"}
"""What computes them, and why."""


def load_checkpoint(path: Path, options: RuntimeOptions, progress: Progress) -> LoadedModel:
    """Load what `read_checkpoint` reads at `path`. Slow; blocks. Raises as ModelFormat.load."""
    if options.runtime == "openvino":
        raise SetupError(
            f"{path} is not OpenVINO IR, and OpenVINO computes nothing else: remove --runtime openvino, or export the "
            "model to an IR folder."
        )
    from onward.checkpoints.checkpoint import read_checkpoint
    from onward.runtimes.native.load import load_model

    return load_model(read_checkpoint(path), options, progress)


def contents_problem(path: Path) -> list[str]:
    """Return what the files' own statements make impossible. Reads what they state, not their weights."""
    from onward.checkpoints.notes import problem_of

    problem = problem_of(path)
    return [problem] if problem else []


def adapter_misfit(path: Path, adapter: Path) -> str:
    """Return why an adapter does not fit a model file, "" if nothing was found. Reads no weights."""
    from onward.checkpoints.adapter import read_changes
    from onward.checkpoints.checkpoint import read_checkpoint

    try:
        read_changes(read_checkpoint(path), adapter)
    except CheckpointError as problem:
        return str(problem)
    return ""
