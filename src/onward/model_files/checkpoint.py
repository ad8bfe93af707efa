"""What formats have in common whose parameters and tensors `checkpoints` reads."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from onward.errors import CheckpointError
from onward.model_files.base import ModelFiles

if TYPE_CHECKING:
    from onward.checkpoints.checkpoint import Checkpoint


class CheckpointFiles(ModelFiles):
    """Files that are read as a Checkpoint, and that adapters may change."""

    @property
    @abstractmethod
    def checkpoint_path(self) -> Path:
        """What `read_checkpoint` takes: a file, or a folder."""

    def checkpoint(self) -> Checkpoint:
        """Return parameters and tensors, whose bytes stay in the files until they are used. Raises CheckpointError."""
        from onward.checkpoints.checkpoint import read_checkpoint

        return read_checkpoint(self.checkpoint_path)

    def notes(self) -> list[str]:
        from onward.checkpoints.notes import notes_of

        return notes_of(self.checkpoint_path)

    def contents_problems(self) -> list[str]:
        """Return what the files' own statements make impossible. Reads what they state, not their weights."""
        from onward.checkpoints.notes import problem_of

        problem = problem_of(self.checkpoint_path)
        return [problem] if problem else []

    def adapter_misfit(self, adapter: Path) -> str:
        """Return why an adapter does not fit the model, "" if nothing was found. Reads no weights."""
        from onward.checkpoints.adapter import read_changes

        try:
            read_changes(self.checkpoint(), adapter)
        except CheckpointError as problem:
            return str(problem)
        return ""
