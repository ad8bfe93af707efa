"""Gemma, Gemma 2 and Gemma 3: Llama with scaled embeddings and another activation, then with windows and norms after
what layers add."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onward.checkpoints.architecture import Architecture, Rope
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import (
    RMS,
    WINDOW_BASE,
    WINDOWS,
    common,
    windowed,
    with_local_base,
    without_window,
)
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tensor import Tensor, few_floats, vector

_GEMMA2_PATTERN = 2
_GEMMA3_PATTERN = 6


def _gemma(checkpoint: Checkpoint) -> Architecture:
    """Gemma (modeling_gemma.py): Llama with scaled embeddings and another activation."""
    found = common(checkpoint, activation="gelu_tanh")
    return replace(found, embedding_scale=math.sqrt(found.hidden))


def _gemma2(checkpoint: Checkpoint) -> Architecture:
    """Gemma 2 (modeling_gemma2.py): a window on every second layer, norms before and after, soft caps."""
    parameters, found = checkpoint.parameters, _gemma(checkpoint)
    is_27b = found.num_layers == 46  # its scale is of hidden size per head; the others' is of the head's size
    default = 1 / math.sqrt(found.hidden / found.num_heads) if is_27b else 0.0
    found = replace(
        found,
        has_norms_after=True,
        attention_scale=parameters.real("attention.query_scale", default) or None,
        attention_cap=parameters.real("attn_logit_softcapping", 50.0) or None,
        logit_cap=parameters.real("final_logit_softcapping", 30.0) or None,
    )
    return windowed(with_local_base(found, checkpoint), parameters, _GEMMA2_PATTERN, 4096)


def _gemma3(checkpoint: Checkpoint) -> Architecture:
    """Gemma 3 (modeling_gemma3.py): five layers with a window, then one without; scaled embeddings; two rope bases."""
    parameters, found = checkpoint.parameters, common(checkpoint, activation="gelu_tanh")
    assert found.rope is not None
    is_27b = found.num_layers == 62  # its scale is of hidden size per head; the others' is of the head's size
    default = 1 / math.sqrt(found.hidden / found.num_heads) if is_27b else 0.0
    found = replace(
        found,
        has_norms_after=True,
        embedding_scale=math.sqrt(found.hidden),
        local_rope=Rope(
            found.rope.size,
            parameters.real(WINDOW_BASE, 10_000.0),
            magnitude=parameters.real("rope.scaling.attn_factor", 1.0),
        ),
        attention_scale=parameters.real("attention.query_scale", default) or None,
        logit_cap=parameters.real("final_logit_softcapping", 0.0) or None,
    )
    return windowed(found, parameters, _GEMMA3_PATTERN)


def _with_whole_norms(parameters: Parameters, tensor: Tensor) -> Tensor:
    """Return norms as they are multiplied: folders have them without one."""
    is_norm = tensor.name.endswith("norm.weight")
    return vector(tensor.name, few_floats(tensor, parameters.where)[0] + np.float32(1)) if is_norm else tensor


def _gemma_statements(_: Mapping[str, Any], found: Mapping[str, MetadataValue], __: str) -> dict[str, MetadataValue]:
    """Return the activation, which the first files call "gelu" and do not mean."""
    return {"activation": "gelu_tanh"} if found["activation"] == "gelu" else {}


ARCHITECTURES: dict[str, Declaration] = {
    "gemma": Declaration(
        decoder=_gemma,
        keys=frozenset({RMS}),
        as_in_gguf=_with_whole_norms,
        model_types={
            "gemma": ModelType(
                defaults={
                    "head_dim": 256, "num_attention_heads": 16, "num_key_value_heads": 16,
                    "max_position_embeddings": 8192, "hidden_act": "gelu_pytorch_tanh",
                },
                attention_bias="attention_bias",
                is_tied=True,
                statements=_gemma_statements,
            ),
        },
    ),
    "gemma2": Declaration(
        decoder=_gemma2,
        keys=frozenset({RMS, *WINDOWS, WINDOW_BASE, "attn_logit_softcapping", "final_logit_softcapping"}),
        as_in_gguf=_with_whole_norms,
        model_types={
            "gemma2": ModelType(
                defaults={
                    "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
                    "max_position_embeddings": 8192, "hidden_activation": "gelu_pytorch_tanh",
                    "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 2,
                    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                },
                attention_bias="attention_bias",
                is_tied=True,
                statements=without_window,
            ),
        },
    ),
    "gemma3": Declaration(
        decoder=_gemma3,
        keys=frozenset({RMS, *WINDOWS, WINDOW_BASE, "final_logit_softcapping"}),
        head_norms="always",
        as_in_gguf=_with_whole_norms,
        model_types={
            "gemma3_text": ModelType(
                defaults={
                    "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "rope_theta": 1e6,
                    "rope_local_base_freq": 1e4, "num_attention_heads": 8, "num_key_value_heads": 4,
                    "rms_norm_eps": 1e-6, "max_position_embeddings": 131_072,
                    "hidden_activation": "gelu_pytorch_tanh", "sliding_window_pattern": 6,
                },
                attention_bias="attention_bias",
                is_tied=True,
                with_images="gemma3",
            ),
        },
    ),
}  # fmt: skip
