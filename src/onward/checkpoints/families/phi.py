"""Phi 1, 1.5 and 2: attention and feed-forward layer in parallel. Phi 3 and Phi 4: Llama with joined matrices, and
LongRoPE."""

from __future__ import annotations

from dataclasses import replace

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import EVERY_LAYER, LAYER, RMS, common, windowed
from onward.checkpoints.parameters import WINDOW


def _phi2(checkpoint: Checkpoint) -> Architecture:
    """Phi 1, 1.5 and 2 (modular_phi.py; arXiv 2306.11644): one norm for both layers of a block, which are parallel,
    biases everywhere, and rotation of a part of each head."""
    checkpoint.tensor("output.bias")
    return replace(common(checkpoint, norm="layer", activation="gelu_tanh"), is_parallel=True)


def _phi3(checkpoint: Checkpoint) -> Architecture:
    """Phi 3 (modeling_phi3.py): a window on all layers where there is one."""
    return windowed(common(checkpoint), checkpoint.parameters, EVERY_LAYER)


ARCHITECTURES: dict[str, Declaration] = {
    "phi2": Declaration(
        decoder=_phi2,
        keys=frozenset({LAYER}),
        is_gated=False,
        biases="always",
        has_norm_biases=True,
        is_untied=True,
        names={"self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
        model_types={
            "phi": ModelType(
                defaults={"partial_rotary_factor": 0.5, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5},
                attention_bias=True,
                feed_forward_bias=True,
                cuts_by="gpt-2",
            ),
        },
    ),
    "phi3": Declaration(
        decoder=_phi3,
        keys=frozenset({RMS, WINDOW}),
        has_joined_gates=True,
        model_types={"phi3": ModelType(defaults={"rms_norm_eps": 1e-5})},
    ),
}  # fmt: skip
