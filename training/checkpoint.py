"""The state of a run on disk: always whole, so a kill at any moment loses a few minutes at most."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from training.errors import RecipeError
from training.files import read_json, replace_file, replace_json
from training.presets import Preset


class RunFolder:
    """Names of everything a run keeps; see training/README.md."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "settings.json"
        self.tokenizer = path / "tokenizer.json"
        self.checkpoint = path / "checkpoint.pt"
        self.history = path / "history.json"
        self.plot = path / "loss.png"
        self.figures = path / "figures.json"
        self.notes = path / "notes.md"
        self.float_model = path / "float"
        self.model = path / "storyteller"

    def claim(self, preset: Preset) -> None:
        """Record the preset, or check that the run begun here had the same one (its length may change)."""
        described = replace_lengths(preset)
        if not self.settings.exists():
            replace_json(self.settings, described)
            return
        if read_json(self.settings) != described:
            raise RecipeError(
                f"{self.path} holds a run with other settings; choose another folder with --run, "
                "or delete this one to start afresh."
            )


def replace_lengths(preset: Preset) -> dict[str, Any]:
    """The preset's JSON form without what may change between two parts of a run."""
    described = replace(preset, minutes=None, tokens=None).as_dict()
    described["stages"] = list(described["stages"])
    for changeable in (
        "evaluation",
        "checkpoint_every_seconds",
        "validate_every_seconds",
        "tokens_per_microbatch",
    ):
        described.pop(changeable)
    return described


def save_checkpoint(folder: RunFolder, state: dict[str, Any]) -> None:
    """Replace the run's checkpoint with `state`, atomically.

    Serialised in memory first: torch's own file writer hides why a write failed.
    """
    serialised = io.BytesIO()
    torch.save(state, serialised)
    replace_file(folder.checkpoint, lambda part: part.write_bytes(serialised.getbuffer()))


def load_checkpoint(folder: RunFolder) -> dict[str, Any] | None:
    """The last checkpoint, on the CPU; None when the run has none yet."""
    if not folder.checkpoint.exists():
        return None
    try:
        return torch.load(folder.checkpoint, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise RecipeError(f"{folder.checkpoint} is damaged ({error}); delete it to start the run afresh.") from error
