"""EXAONE 4: norms after what layers add, and per head; windows whose layers alone know positions."""

from __future__ import annotations

from dataclasses import replace

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import RMS, WINDOWS, common, windowed, without_window

_EXAONE4_PATTERN = 4


def _exaone4(checkpoint: Checkpoint) -> Architecture:
    """EXAONE 4 (modular_exaone4.py): norms after attention and feed-forward layers, and per head; where layers have a
    window, only those have positions. llama.cpp has one on three layers of four of the 32B, whatever its file states.
    """
    found = replace(common(checkpoint), has_norms_before=False, has_norms_after=True)
    period, default = (_EXAONE4_PATTERN, 4096) if found.num_layers == 64 else (None, 0)
    found = windowed(found, checkpoint.parameters, period, default)
    if not found.window:
        return found
    return replace(found, ropeless_layers=frozenset(range(found.num_layers)) - found.window_layers)


ARCHITECTURES: dict[str, Declaration] = {
    "exaone4": Declaration(
        decoder=_exaone4,
        keys=frozenset({RMS, *WINDOWS}),
        head_norms="always",
        model_types={
            "exaone4": ModelType(
                defaults={
                    "num_key_value_heads": 32, "rms_norm_eps": 1e-5, "sliding_window": 4096,
                    "sliding_window_pattern": 4,
                },
                statements=without_window,
            ),
        },
    ),
}  # fmt: skip
