"""Phi 3 and Phi 4: Llama with joined matrices, and LongRoPE."""

from __future__ import annotations

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import EVERY_LAYER, RMS, common, windowed
from onward.checkpoints.parameters import WINDOW


def _phi3(checkpoint: Checkpoint) -> Architecture:
    """Phi 3 (modeling_phi3.py): a window on all layers where there is one."""
    return windowed(common(checkpoint), checkpoint.parameters, EVERY_LAYER)


ARCHITECTURES: dict[str, Declaration] = {
    "phi3": Declaration(
        decoder=_phi3,
        keys=frozenset({RMS, WINDOW}),
        has_joined_gates=True,
        model_types={"phi3": ModelType(defaults={"rms_norm_eps": 1e-5})},
    ),
}  # fmt: skip
