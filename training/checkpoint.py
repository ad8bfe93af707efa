"""The state of a run on disk, always complete: a kill at any moment loses a few minutes at most."""

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
    """Paths of all files of a run; see training/README.md."""

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
        """Record the preset of a new run. Raises RecipeError if this folder has a run of another one; its length may
        change."""
        settings = comparable_settings(preset)
        if not self.settings.exists():
            replace_json(self.settings, settings)
            return
        if read_json(self.settings) != settings:
            raise RecipeError(
                f"{self.path} contains a run with other settings. Choose another folder with --run, "
                "or delete this one to start again."
            )


def comparable_settings(preset: Preset) -> dict[str, Any]:
    """Return the preset as JSON values, without the settings that may change when a run is continued."""
    settings = replace(preset, minutes=None, tokens=None).as_dict()
    settings["stages"] = list(settings["stages"])
    for changeable in (
        "evaluation",
        "checkpoint_every_seconds",
        "validate_every_seconds",
        "tokens_per_microbatch",
    ):
        settings.pop(changeable)
    return settings


def save_checkpoint(folder: RunFolder, state: dict[str, Any]) -> None:
    """Replace the checkpoint of the run with `state`, atomically. Raises RecipeError if the disk is full.

    Serialises in memory first, because torch's file writer hides why a write failed.
    """
    serialised = io.BytesIO()
    torch.save(state, serialised)
    replace_file(folder.checkpoint, lambda part: part.write_bytes(serialised.getbuffer()))


def load_checkpoint(folder: RunFolder) -> dict[str, Any] | None:
    """Return the last checkpoint, on the CPU, None if there is none yet. Raises RecipeError if it is damaged."""
    if not folder.checkpoint.exists():
        return None
    try:
        return torch.load(folder.checkpoint, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise RecipeError(f"{folder.checkpoint} is damaged ({error}). Delete it to start the run again.") from error
