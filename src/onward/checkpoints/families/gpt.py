"""GPT-2, OPT, GPT-J, CodeGen, GPT-NeoX, StarCoder 1 and 2 and StableLM: layer norms instead of those of the root mean
square."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import LAYER, common, heads_together, require_stated, windowed
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tensor import Tensor
from onward.errors import CheckpointError

_HAS_NORM_WEIGHTS = "attention.has_norm_weights"
"""Of folders alone."""
_UNUSED_POSITIONS = 2
"""Rows before those of OPT's positions: they are for tokens that fill batches."""
_CODEGEN_PARTS = 4
"""Into which CodeGen's matrices were cut for its training, each with queries, values and keys of some heads."""


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


def _opt(checkpoint: Checkpoint) -> Architecture:
    """OPT (modeling_opt.py; arXiv 2205.01068): GPT-2 with relu. llama.cpp has no such files."""
    found = common(checkpoint, norm="layer", activation="relu")
    return replace(found, rope=None, has_norm_weights=checkpoint.parameters.switch(_HAS_NORM_WEIGHTS, True))


def _opt_statements(
    stated: Mapping[str, Any], found: Mapping[str, MetadataValue], where: str
) -> dict[str, MetadataValue]:
    """Return what config.json states in its own way. Raises CheckpointError for OPT 350M, whose norms follow its
    layers, and whose embeddings have another size."""
    only: dict[str, tuple[Any, ...]] = {
        "do_layer_norm_before": (True,), "_remove_final_layer_norm": (False,),
        "word_embed_proj_dim": (None, found.get("embedding_length")),
    }  # fmt: skip
    require_stated(stated, only, where)
    inner: dict[str, MetadataValue] = {"feed_forward_length": stated["ffn_dim"]} if "ffn_dim" in stated else {}
    return {**inner, LAYER: 1e-5, _HAS_NORM_WEIGHTS: bool(stated["layer_norm_elementwise_affine"])}


def _with_positions_first(_: Parameters, tensor: Tensor) -> Tensor:
    """Return OPT's embeddings of positions without the rows before them."""
    if tensor.name != "position_embd.weight" or tensor.shape[0] <= _UNUSED_POSITIONS:
        return tensor
    return tensor.selected(np.arange(_UNUSED_POSITIONS, tensor.shape[0]))


def _gptneox(checkpoint: Checkpoint) -> Architecture:
    """GPT-NeoX and Pythia (modeling_gpt_neox.py): attention and feed-forward layer in parallel."""
    found = common(checkpoint, norm="layer", activation="gelu")
    is_parallel = checkpoint.parameters.switch("use_parallel_residual", True)
    return replace(found, is_parallel=is_parallel, has_two_norms=is_parallel)


def _gptj(checkpoint: Checkpoint) -> Architecture:
    """GPT-J (modeling_gptj.py; EleutherAI's mesh-transformer-jax) and CodeGen (modeling_codegen.py; arXiv 2203.13474):
    one norm for both layers of a block, which are parallel, rotation of a part of each head, and biases of feed-forward
    layers and of the output layer alone."""
    checkpoint.tensor("output.bias")
    return replace(common(checkpoint, norm="layer", activation="gelu_tanh"), is_parallel=True)


def _codegen_kinds(_: Parameters, count: int) -> NDArray[np.int64] | None:
    """Return the order of CodeGen's queries, values and keys, whose heads are in parts."""
    if count % (3 * _CODEGEN_PARTS):
        return None
    queries, values, keys = np.arange(count).reshape(_CODEGEN_PARTS, 3, -1).swapaxes(0, 1).reshape(3, -1)
    return np.concatenate((queries, keys, values))


def _rotated(stated: Mapping[str, Any], _: Mapping[str, MetadataValue], __: str) -> dict[str, MetadataValue]:
    """Return how many dimensions of a head rotate."""
    return {"rope.dimension_count": stated["rotary_dim"]}


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
    "opt": Declaration(
        decoder=_opt,
        keys=frozenset({LAYER}),
        is_gated=False,
        biases="always",
        has_norm_biases=True,
        as_in_gguf=_with_positions_first,
        names={
            "embed_positions": "position_embd", "self_attn_layer_norm": "attn_norm", "fc1": "ffn_up", "fc2": "ffn_down",
            "final_layer_norm.weight": "ffn_norm.weight", "final_layer_norm.bias": "ffn_norm.bias",
        },
        model_types={
            "opt": ModelType(
                defaults={
                    "activation_function": "relu", "do_layer_norm_before": True, "_remove_final_layer_norm": False,
                    "enable_bias": True, "layer_norm_elementwise_affine": True,
                },
                attention_bias="enable_bias",
                feed_forward_bias="enable_bias",
                is_tied=True,
                cuts_by="gpt-2",
                statements=_opt_statements,
            ),
        },
    ),
    "gptj": Declaration(
        decoder=_gptj,
        keys=frozenset({LAYER}),
        is_gated=False,
        biases="of feed-forward layers",
        has_norm_biases=True,
        is_untied=True,
        has_pairs_in_gguf=True,
        has_pairs_in_folders=True,
        kinds_apart=_codegen_kinds,
        names={
            **{f"attn.{part}_proj": f"attn_{part}" for part in ("q", "k", "v", "qkv")},
            "attn.out_proj": "attn_output", "mlp.fc_in": "ffn_up", "mlp.fc_out": "ffn_down",
        },
        model_types=dict.fromkeys(
            ("gptj", "codegen"),
            ModelType(
                defaults={"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "rotary_dim": 64},
                feed_forward_bias=True,
                cuts_by="gpt-2",
                statements=_rotated,
            ),
        ),
    ),
    "gptneox": Declaration(
        decoder=_gptneox,
        keys=frozenset({LAYER, "use_parallel_residual"}),
        is_gated=False,
        biases="always",
        has_norm_biases=True,
        is_untied=True,
        kinds_apart=heads_together,
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
