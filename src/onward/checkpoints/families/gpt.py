"""GPT-2, GPT-NeoX, StarCoder 1 and 2 and StableLM: layer norms instead of those of the root mean square."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import LAYER, common, require_stated, windowed
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tensor import Tensor
from onward.errors import CheckpointError


def _starcoder2(checkpoint: Checkpoint) -> Architecture:
    """StarCoder 2 (modeling_starcoder2.py): layer norms, biases everywhere, no gate."""
    return windowed(common(checkpoint, norm="layer", activation="gelu_tanh"), checkpoint.parameters)


def _stablelm(checkpoint: Checkpoint) -> Architecture:
    """StableLM (modeling_stablelm.py): layer norms, rotation of a part of each head. Where a block has one norm, both
    of its layers read it."""
    has_second = "blk.0.ffn_norm.weight" in checkpoint.tensors
    return replace(common(checkpoint, norm="layer"), is_parallel=not has_second)


def _gpt2(checkpoint: Checkpoint) -> Architecture:
    """GPT-2 (modeling_gpt2.py): embeddings of positions, layer norms, biases, no gate. StarCoder and SantaCoder
    (modeling_gpt_bigcode.py) are GPT-2 with one key and value for all heads."""
    return replace(common(checkpoint, norm="layer", activation="gelu_tanh"), rope=None)


def _gptneox(checkpoint: Checkpoint) -> Architecture:
    """GPT-NeoX and Pythia (modeling_gpt_neox.py): attention and feed-forward layer in parallel."""
    found = common(checkpoint, norm="layer", activation="gelu")
    return replace(found, is_parallel=checkpoint.parameters.switch("use_parallel_residual", True))


def _with_rows_first(parameters: Parameters, tensor: Tensor) -> Tensor:
    """Return GPT-2's matrices, which its folders have with inputs first. Raises CheckpointError for quantised ones."""
    is_matrix = tensor.name.startswith("blk.") and len(tensor.shape) == 2
    if is_matrix and (tensor.scales is not None or tensor.block_scales is not None):
        raise CheckpointError(
            f"{parameters.where}: {tensor.name!r} is quantised, with its inputs first: use a GGUF file."
        )
    return tensor.transposed() if is_matrix else tensor


def _one_key(stated: Mapping[str, Any], _: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return that all heads have one key and value. Raises CheckpointError for the other form of StarCoder's class,
    which no published model has."""
    require_stated(stated, {"multi_query": (True, None)}, where)
    return {"attention.head_count_kv": 1}


ARCHITECTURES: dict[str, Declaration] = {
    "starcoder": Declaration(
        decoder=_gpt2,
        keys=frozenset({LAYER}),
        is_gated=False,
        biases="always",
        has_norm_biases=True,
        model_types={
            "gpt_bigcode": ModelType(
                defaults={"activation_function": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-5},
                attention_bias=True,
                feed_forward_bias=True,
                is_tied=True,
                cuts_by="starcoder",
                statements=_one_key,
            ),
        },
    ),
    "starcoder2": Declaration(
        decoder=_starcoder2,
        keys=frozenset({LAYER}),
        is_gated=False,
        biases="always",
        has_norm_biases=True,
        model_types={
            "starcoder2": ModelType(
                defaults={
                    "use_bias": True, "num_key_value_heads": 2, "norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh",
                },
                attention_bias="use_bias",
                feed_forward_bias="use_bias",
                is_tied=True,
                cuts_by="starcoder",
            ),
        },
    ),
    "stablelm": Declaration(
        decoder=_stablelm,
        keys=frozenset({LAYER}),
        head_norms="of each head",
        is_untied=True,
        model_types={
            "stablelm": ModelType(
                defaults={"partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5},
                attention_bias="use_qkv_bias",
                may_have_head_norms=True,
            ),
        },
    ),
    "gpt2": Declaration(
        decoder=_gpt2,
        keys=frozenset({LAYER}),
        is_gated=False,
        biases="always",
        has_norm_biases=True,
        as_in_gguf=_with_rows_first,
        model_types={
            "gpt2": ModelType(
                defaults={"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
                attention_bias=True,
                feed_forward_bias=True,
                is_tied=True,
                cuts_by="gpt-2",
            ),
        },
    ),
    "gptneox": Declaration(
        decoder=_gptneox,
        keys=frozenset({LAYER, "use_parallel_residual"}),
        is_gated=False,
        biases="always",
        has_norm_biases=True,
        has_two_norms=True,
        is_untied=True,
        has_heads_together=True,
        model_types={
            "gpt_neox": ModelType(
                defaults={
                    "attention_bias": True, "rotary_pct": 0.25, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
                    "use_parallel_residual": True,
                },
                attention_bias="attention_bias",
                feed_forward_bias=True,
            ),
        },
    ),
}  # fmt: skip
