"""What is common to formats whose parameters and tensors `checkpoints` reads."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from onward.errors import CheckpointError
from onward.model_files.base import ModelFiles

if TYPE_CHECKING:
    from onward.checkpoints.checkpoint import Checkpoint


class CheckpointFiles(ModelFiles):
    """Files that are read as a Checkpoint, and that adapters may change. They are read once, until `release`: a start
    checks them, builds their tokenizer and has notes about them."""

    @property
    @abstractmethod
    def checkpoint_path(self) -> Path:
        """What `read_checkpoint` takes: a file, or a folder."""

    def checkpoint(self) -> Checkpoint:
        """Return parameters and tensors, whose bytes stay in the files until they are used. Raises CheckpointError."""
        return self._checkpoint

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        from onward.checkpoints.read import read_checkpoint

        return read_checkpoint(self.checkpoint_path)

    @cached_property
    def _tokenizer_notes(self) -> list[str]:
        from onward.checkpoints.notes import require_contents

        return require_contents(self.checkpoint())

    def release(self) -> None:
        for kept in ("_checkpoint", "_tokenizer_notes"):
            self.__dict__.pop(kept, None)

    def notes(self) -> list[str]:
        from onward.checkpoints.notes import float8_notes, output_layer_notes

        checkpoint = self.checkpoint()
        found = [*checkpoint.notes, *self._tokenizer_notes, *output_layer_notes(checkpoint)]
        return [*found, *float8_notes(checkpoint)]

    def contents_problems(self) -> list[str]:
        """Return what keeps the model from being computed, as far as the files' metadata shows it. Reads no weights."""
        try:
            self._tokenizer_notes  # noqa: B018 - for what it raises
        except CheckpointError as problem:
            return [str(problem)]
        return []

    def adapter_misfit(self, adapter: Path) -> str:
        """Return why an adapter does not fit the model, "" if nothing was found. Reads no weights."""
        from onward.checkpoints.adapter import read_changes

        try:
            read_changes(self.checkpoint(), adapter)
        except CheckpointError as problem:
            return str(problem)
        return ""
