"""Command R7B: one norm for both layers of a block, windows whose layers alone know positions, scaled logits."""

from __future__ import annotations

from dataclasses import replace

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import LAYER, WINDOWS, common, windowed
from onward.checkpoints.parameters import WINDOW

_PATTERN = 4


def _cohere2(checkpoint: Checkpoint) -> Architecture:
    """Command R7B (modeling_cohere2.py): one norm for both layers of a block; three layers of four have a window, and
    only those have positions; scaled logits."""
    parameters = checkpoint.parameters
    found = replace(
        common(checkpoint, norm="layer"), is_parallel=True, logit_scale=parameters.real("logit_scale", 1.0) or 1.0
    )
    if parameters.has(WINDOW):
        parameters.integer(WINDOW, minimum=1)
    found = windowed(found, parameters, _PATTERN)
    return replace(found, ropeless_layers=frozenset(range(found.num_layers)) - found.window_layers)


ARCHITECTURES: dict[str, Declaration] = {
    "cohere2": Declaration(
        decoder=_cohere2,
        keys=frozenset({LAYER, "logit_scale", *WINDOWS}),
        has_pairs_in_gguf=True,
        has_pairs_in_folders=True,
        model_types={
            "cohere2": ModelType(
                defaults={
                    "sliding_window": 4096, "sliding_window_pattern": 4, "logit_scale": 0.0625, "layer_norm_eps": 1e-5,
                },
                attention_bias="attention_bias",
                is_tied=True,
            ),
        },
    ),
}  # fmt: skip
