"""Falcon 7B, 40B, 180B and Falcon 2: attention and feed-forward layer in parallel, with one key for all heads or for
groups of them. Falcon 3 is a Llama; for Falcon-H1 see `falcon_h1`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import LAYER, common, heads_together, require_stated
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tensor import Tensor, split_name

_HAS_TWO_NORMS = "attention.has_own_norm"
"""Of folders alone: files say it by their tensors."""
_USUAL = {"attn_norm": "ffn_norm", "attn_norm_2": "attn_norm"}
"""What norms of a block that has two are called by other architectures."""


def _falcon(checkpoint: Checkpoint) -> Architecture:
    """Falcon (modeling_falcon.py; arXiv 2311.16867): both layers of a block read the same, in 40B and 180B each with a
    norm of its own."""
    has_two = "blk.0.ffn_norm.weight" in checkpoint.tensors
    return replace(
        common(checkpoint, norm="layer", activation="gelu"),
        is_parallel=True,
        has_two_norms=checkpoint.parameters.switch(_HAS_TWO_NORMS, has_two),
    )


def _statements(stated: Mapping[str, Any], _: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Return what config.json states in its own way. Raises CheckpointError for blocks whose layers follow each other,
    as those of Falcon-RW, which has ALiBi positions too, and for other activations."""
    is_new = bool(stated["new_decoder_architecture"])
    only: dict[str, tuple[Any, ...]] = {
        "activation": ("gelu",), "apply_residual_connection_post_layernorm": (False, None),
    }  # fmt: skip
    require_stated(stated, only | ({} if is_new else {"parallel_attn": (True,)}), where)
    heads = stated.get("num_attention_heads", stated.get("n_head"))
    grouped = stated.get("num_kv_heads", stated.get("n_head_kv", heads))
    shared = 1 if stated["multi_query"] else heads
    found: dict[str, MetadataValue] = {
        _HAS_TWO_NORMS: is_new and stated.get("num_ln_in_parallel_attn", 2) == 2,
        "attention.head_count_kv": grouped if is_new else shared,
    }
    if (inner := stated.get("ffn_hidden_size")) is not None:
        found["feed_forward_length"] = inner
    return found


def _apart(_: Parameters, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors, with the norms of blocks that have two by the names of other architectures: GGUF files call
    that of attention `attn_norm_2`, and that of the feed-forward layer `attn_norm`."""
    found = {}
    for name, tensor in tensors.items():
        block, part, kind = split_name(name)
        has_two = {f"{block}.attn_norm.{kind}", f"{block}.attn_norm_2.{kind}"} <= tensors.keys()
        renamed = f"{block}.{_USUAL[part]}.{kind}" if has_two and part in _USUAL else name
        found[renamed] = replace(tensor, name=renamed)
    return found


_TYPE = ModelType(
    defaults={
        "hidden_act": "gelu", "activation": "gelu", "layer_norm_epsilon": 1e-5, "max_position_embeddings": 2048,
        "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True,
    },
    attention_bias="bias",
    feed_forward_bias="bias",
    is_tied=True,
    cuts_by="falcon",
    statements=_statements,
)  # fmt: skip
ARCHITECTURES: dict[str, Declaration] = {
    "falcon": Declaration(
        decoder=_falcon,
        keys=frozenset({LAYER}),
        is_gated=False,
        has_norm_biases=True,
        kinds_apart=heads_together,
        names={
            "word_embeddings": "token_embd", "self_attention.query_key_value": "attn_qkv",
            "self_attention.dense": "attn_output", "ln_attn": "attn_norm", "ln_mlp": "ffn_norm",
        },
        apart=_apart,
        model_types={
            "falcon": _TYPE,
            "RefinedWebModel": _TYPE,
            "RefinedWeb": replace(_TYPE, defaults={**_TYPE.defaults, "new_decoder_architecture": True}),
        },
    ),
}  # fmt: skip
