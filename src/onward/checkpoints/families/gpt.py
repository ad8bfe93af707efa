"""GPT-2, OPT, GPT-J, CodeGen, GPT-NeoX, StarCoder 1 and 2 and StableLM: layer norms instead of those of the root mean
square."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.architecture import EMBEDDING_IN, EMBEDDING_OUT, Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import LAYER, common, heads_together, require_stated, windowed
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tensor import Tensor
from onward.errors import CheckpointError

_HAS_NORM_WEIGHTS, _HAS_NORMS_OF_SUMS, _EMBEDDING_SIZE = "has_norm_weights", "has_norms_of_sums", "embedding_size"
"""Of folders alone."""
_UNUSED_POSITIONS = 2
"""Rows before those of OPT's positions: they are for tokens that fill batches."""
_CODEGEN_PARTS, _CODEGEN2_PARTS = 4, 8
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
    """OPT (modeling_opt.py; arXiv 2205.01068): GPT-2 with relu; 350M with norms of sums, and embeddings of another
    size. llama.cpp has no such files."""
    parameters, found = checkpoint.parameters, common(checkpoint, norm="layer", activation="relu")
    is_after = parameters.switch(_HAS_NORMS_OF_SUMS, "blk.0.post_attention_norm.weight" in checkpoint.tensors)
    first = checkpoint.tensors.get(f"{EMBEDDING_IN}.weight")
    size = parameters.integer(_EMBEDDING_SIZE, found.hidden if first is None else first.shape[-1], minimum=1)
    return replace(
        found,
        rope=None,
        has_norm_weights=parameters.switch(_HAS_NORM_WEIGHTS, True),
        has_norms_before=not is_after,
        has_norms_of_sums=is_after,
        embedding_size=size if size != found.hidden else 0,
    )


def _opt_statements(stated: Mapping[str, Any], _: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return what config.json states in its own way. Raises CheckpointError for norms before layers without a last
    one."""
    is_after = not stated["do_layer_norm_before"]
    require_stated(stated, {} if is_after else {"_remove_final_layer_norm": (False,)}, where)
    sizes = {"feed_forward_length": stated.get("ffn_dim"), _EMBEDDING_SIZE: stated.get("word_embed_proj_dim")}
    return {
        **{name: size for name, size in sizes.items() if size is not None},
        LAYER: 1e-5,
        _HAS_NORM_WEIGHTS: bool(stated["layer_norm_elementwise_affine"]),
        _HAS_NORMS_OF_SUMS: is_after,
    }


def _sums_apart(parameters: Parameters, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a folder's tensors, with norms of sums by the names of norms after layers."""
    if not parameters.switch(_HAS_NORMS_OF_SUMS, False):
        return {**tensors}
    named = {
        name.replace(".attn_norm.", ".post_attention_norm.").replace(".ffn_norm.", ".post_ffw_norm."): tensor
        for name, tensor in tensors.items()
    }
    return {name: replace(tensor, name=name) for name, tensor in named.items()}


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


def _codegen_kinds(parameters: Parameters, count: int) -> NDArray[np.int64] | None:
    """Return the order of CodeGen's queries, values and keys, whose heads are in parts: in more where the size of heads
    is stated, as by CodeGen 2 1B and 3.7B alone (the rule of CTranslate2's converter)."""
    parts = _CODEGEN2_PARTS if parameters.has("attention.key_length") else _CODEGEN_PARTS
    if count % (3 * parts):
        return None
    queries, values, keys = np.arange(count).reshape(parts, 3, -1).swapaxes(0, 1).reshape(3, -1)
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
            "project_in": EMBEDDING_IN, "project_out": EMBEDDING_OUT,
        },
        apart=_sums_apart,
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
