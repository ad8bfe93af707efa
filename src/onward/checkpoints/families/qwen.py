"""Qwen 2 and 3, with experts or without, the texts of their models that read images, MiMo and Mellum 2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture, Rope
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType, Predicting
from onward.checkpoints.families.common import (
    EXPERT_SIZE,
    EXPERTS,
    LOCAL_BASE,
    RMS,
    SHARED_SIZE,
    WINDOW_LAYERS,
    WINDOWS,
    common,
    local_base,
    windowed,
)
from onward.checkpoints.families.deepseek import EXPERT_NAMES
from onward.checkpoints.families.llama import llama
from onward.checkpoints.mixtures import mixture_of, with_rows_first
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tensor import Tensor
from onward.errors import CheckpointError

_MELLUM_PATTERN = 4


def _qwen3moe(checkpoint: Checkpoint) -> Architecture:
    """Qwen 3 with experts (modeling_qwen3_moe.py). GGUF files have them in all layers, and do not state that weights
    are normalised, which those of all that are published are."""
    parameters, found = checkpoint.parameters, common(checkpoint)
    return replace(found, mixture=mixture_of(parameters, feed_forward=0, is_normalised=True))


def _qwen2moe(checkpoint: Checkpoint) -> Architecture:
    """Qwen 1.5 and 2 with experts (modeling_qwen2_moe.py), whose weights are not normalised, and one that all tokens
    use, as far as the sigmoid of a logit of its own says."""
    parameters, found = checkpoint.parameters, common(checkpoint)
    mixture = mixture_of(parameters, feed_forward=0, is_normalised=False)
    if mixture.shared_feed_forward == 0:
        mixture = replace(mixture, shared_feed_forward=found.feed_forward)
    return windowed(replace(found, mixture=mixture), parameters)


def _mellum(checkpoint: Checkpoint) -> Architecture:
    """Mellum 2 (modular_mellum.py): Qwen 3 with experts and a window on three layers of four, which do not scale their
    positions. Folders state a base of their own for those; GGUF's graph has one."""
    parameters, found = checkpoint.parameters, _qwen3moe(checkpoint)
    assert found.rope is not None
    local = Rope(found.rope.size, parameters.real(LOCAL_BASE, found.rope.base))
    return windowed(replace(found, local_rope=local), parameters, _MELLUM_PATTERN)


def _mellum_statements(
    stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str
) -> dict[str, MetadataValue]:
    """Return the base, and that no layer has a window where a folder does not state which have one."""
    kinds = found.get(WINDOW_LAYERS)
    has_kinds = any(stated.get(name) for name in ("layer_types", "sliding_window_pattern", "use_sliding_window"))
    no_windows: dict[str, MetadataValue] = {}
    if isinstance(kinds, list) and not has_kinds:
        no_windows = {WINDOW_LAYERS: [False] * len(kinds)}
    return {**local_base(stated, found, where), **no_windows}


def _with_rows_first(parameters: Parameters, tensor: Tensor) -> Tensor:
    """Return a folder's tensor, matrices of experts with rows first: Qwen3-VL's are published with inputs first. Those
    that cannot be turned stay as they are, for whoever checks shapes. Raises CheckpointError for square ones."""
    hidden_axis = {"gate_up_exps.weight": 1, "down_exps.weight": 2}.get(tensor.name.partition(".ffn_")[2])
    if hidden_axis is None or len(tensor.shape) != 3:
        return tensor
    if tensor.shape[1] == tensor.shape[2]:
        raise CheckpointError(
            f"{parameters.where}: {tensor.name!r} has the shape {list(tensor.shape)}, which does not say whether rows "
            "or inputs are first: use the model as a GGUF file."
        )
    hidden = parameters.integer("embedding_length", minimum=1)
    return with_rows_first(tensor) if tensor.shape[hidden_axis] == hidden else tensor


def _always_normalised(_: Mapping[str, Any], __: Mapping[str, MetadataValue], ___: str) -> dict[str, MetadataValue]:
    """Return what a configuration of Qwen3-VL cannot change (modeling_qwen3_vl_moe.py)."""
    return {"expert_weights_norm": True}


_SECTIONS = "rope.dimension_sections"
"""Which pairs of a head rotate by which position in an image: in a text all positions are the same."""
_NO_WINDOW = {"use_sliding_window": False}
_QWEN2_VL: dict[str, Any] = {
    **_NO_WINDOW, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": 4096,
    "max_window_layers": 80,
}  # fmt: skip
ARCHITECTURES: dict[str, Declaration] = {
    "qwen2": Declaration(
        decoder=llama,
        keys=frozenset({RMS}),
        predicting=Predicting(
            names=re.compile(r"model\.mtp_layers\.(?P<layer>\d{1,3})\.(?P<rest>[\w.]+)"),
            are_in_gguf=False,
            reads_hidden_first=True,
        ),  # MiMo's
        model_types={
            "qwen2": ModelType(
                defaults=_NO_WINDOW, attention_bias=True, output_bias=False, cuts_by="qwen2", is_composed=True
            ),
            "mimo": ModelType(defaults=_NO_WINDOW, attention_bias=True, output_bias=False),
        },
    ),
    "qwen2vl": Declaration(
        decoder=llama,
        keys=frozenset({RMS, _SECTIONS}),
        model_types={
            f"{kind}_text": ModelType(
                defaults=_QWEN2_VL,
                attention_bias=True,
                output_bias=False,
                with_images=kind,
                cuts_by="qwen2",
                is_composed=True,
            )
            for kind in ("qwen2_vl", "qwen2_5_vl")
        },
    ),
    "qwen3": Declaration(
        decoder=llama,
        keys=frozenset({RMS}),
        head_norms="always",
        model_types={
            "qwen3": ModelType(
                defaults={"head_dim": 128, **_NO_WINDOW},
                attention_bias="attention_bias",
                cuts_by="qwen2",
                is_composed=True,
            ),
        },
    ),
    "qwen3vl": Declaration(
        decoder=llama,
        keys=frozenset({RMS, _SECTIONS}),
        head_norms="always",
        model_types={
            "qwen3_vl_text": ModelType(
                defaults={"head_dim": 128, "num_key_value_heads": 32, "rope_theta": 5e5},
                attention_bias="attention_bias",
                with_images="qwen3_vl",
                cuts_by="qwen2",
                is_composed=True,
            ),
        },
    ),
    "qwen3vlmoe": Declaration(
        decoder=_qwen3moe,
        keys=frozenset({RMS, *EXPERTS, EXPERT_SIZE, _SECTIONS}),
        head_norms="always",
        names=EXPERT_NAMES,
        as_in_gguf=_with_rows_first,
        model_types={
            "qwen3_vl_moe_text": ModelType(
                defaults={
                    "num_key_value_heads": 16, "rope_theta": 5e5, "num_experts": 60, "num_experts_per_tok": 4,
                    "moe_intermediate_size": 1408,
                },
                attention_bias="attention_bias",
                experts="usual",
                with_images="qwen3_vl_moe",
                statements=_always_normalised,
            ),
        },
    ),
    "qwen3moe": Declaration(
        decoder=_qwen3moe,
        keys=frozenset({RMS, *EXPERTS, EXPERT_SIZE}),
        head_norms="always",
        model_types={
            "qwen3_moe": ModelType(
                defaults={
                    **_NO_WINDOW, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                    "norm_topk_prob": False,
                },
                attention_bias="attention_bias",
                experts="usual",
            ),
        },
    ),
    "qwen2moe": Declaration(
        decoder=_qwen2moe,
        keys=frozenset({RMS, *EXPERTS, EXPERT_SIZE, SHARED_SIZE}),
        has_gated_share=True,
        is_untied=True,
        model_types={
            "qwen2_moe": ModelType(
                defaults={
                    **_NO_WINDOW, "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
                    "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "norm_topk_prob": False,
                    "qkv_bias": True,
                },
                attention_bias="qkv_bias",
                output_bias=False,
                experts="usual",
            ),
        },
    ),
    "mellum": Declaration(
        decoder=_mellum,
        keys=frozenset({RMS, *EXPERTS, EXPERT_SIZE, *WINDOWS}),
        head_norms="always",
        is_untied=True,
        model_types={
            "mellum": ModelType(
                defaults={
                    "head_dim": 128, "num_key_value_heads": 4, "sliding_window": 1024, "num_experts": 64,
                    "num_experts_per_tok": 8, "moe_intermediate_size": 896, "norm_topk_prob": True,
                    "rope_parameters": {
                        "full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4},
                    },
                },
                attention_bias="attention_bias",
                experts="usual",
                statements=_mellum_statements,
            ),
        },
    ),
}  # fmt: skip
