"""Tensors in the layout that runtimes expect, whatever the file's conventions: by GGUF's names; queries, keys and
values apart, the feed-forward layer's two inputs apart, and the two dimensions of a rotated pair half a head apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.declaration import Declaration
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.table import declared
from onward.checkpoints.tensor import Tensor, few_floats, split_name, vector

_LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm", "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.router.layer": "ffn_gate_inp",
    "block_sparse_moe.input_linear": "ffn_gate_up_exps", "block_sparse_moe.output_linear": "ffn_down_exps",
    "shared_mlp.input_linear": "ffn_gate_up_shexp", "shared_mlp.output_linear": "ffn_down_shexp",
    "attention.wqkv": "attn_qkv", "attention.wo": "attn_output", "attention_norm": "attn_norm", "ffn_norm": "ffn_norm",
    "feed_forward.gate": "ffn_gate_inp",
    "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down",
    "pre_ff_layernorm": "ffn_norm",
    "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
    "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
    "linear_attn.in_proj_qkv": "ssm_qkv", "linear_attn.in_proj_z": "ssm_gate", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out", "linear_attn.in_proj_qkvz": "ssm_in", "linear_attn.in_proj_ba": "ssm_ba",
    "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm", "operator_norm": "attn_norm",
    "mamba.in_proj": "ssm_in", "mamba.conv1d": "ssm_conv1d", "mamba.norm": "ssm_norm", "mamba.out_proj": "ssm_out",
    "norm": "attn_norm", "mixer.in_proj": "ssm_in", "mixer.conv1d": "ssm_conv1d", "mixer.norm": "ssm_norm",
    "mixer.out_proj": "ssm_out", "mixer.q_proj": "attn_q", "mixer.k_proj": "attn_k", "mixer.v_proj": "attn_v",
    "mixer.o_proj": "attn_output", "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down",
    "mixer.gate": "ffn_gate_inp", "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "ln_1": "attn_norm", "attn.c_attn": "attn_qkv",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "router.proj": "ffn_gate_inp",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
}  # fmt: skip
"""Of a layer, in all architectures that declare nothing else."""
_NORM_AFTER = "post_feedforward_layernorm"
"""A folder with such norms has `post_attention_layernorm` after attention, too."""
_WHOLE = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "wte": "token_embd",
    "wpe": "position_embd", "ln_f": "output_norm", "embed_in": "token_embd", "final_layer_norm": "output_norm",
    "embed_tokens_per_layer": "per_layer_token_embd", "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm", "embed_out": "output",
    "final_layernorm": "output_norm", "embeddings": "token_embd", "norm_f": "output_norm",
    "embedding_norm": "output_norm", "tok_embeddings": "token_embd", "output": "output",
}  # fmt: skip
HEAD_NORMS = ("attn_q_norm", "attn_k_norm")
_NAME = re.compile(
    r"(?:language_model\.)?(?:(?:model|transformer|gpt_neox|backbone)\.)?(?:(?:language_model|decoder)\.)?"
    r"(?:(?:layers|h)\.(?P<layer>\d{1,5})\.)?(?P<rest>[\w.]+)"
)
_EXPERTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
"""Matrices of one expert."""
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe|feed_forward|mixer)\.experts\.(?P<number>\d{1,5})\.(?P<matrix>\w+)")
SKIPPED = (
    ".rotary_emb.inv_freq",
    ".self_attn.position_ids",
    ".attn.bias",
    ".attn.masked_bias",
    ".attn.causal_mask",
    ".attention.bias",
    ".attention.masked_bias",
)
"""Ends of the names of tensors that older files have and that follow from the configuration."""
OF_IMAGES = tuple(
    f"{prefix}{part}."
    for prefix in ("", "model.")
    for part in (
        "vision_tower",
        "vision_model",
        "audio_tower",
        "multi_modal_projector",
        "embed_vision",
        "embed_audio",
        "visual",
    )
)
"""Beginnings of the names of tensors that only read images and sounds."""


def has_norms_after(names: Iterable[str]) -> bool:
    """Return whether a folder with tensors of these names has norms after attention and feed-forward layers."""
    return any(_NORM_AFTER in name for name in names)


def gguf_name(name: str, architecture: str, *, is_normalised_after: bool = False) -> str:
    """Return GGUF's name of a tensor; the name itself where there is none. `is_normalised_after`: see
    `has_norms_after`."""
    found = _NAME.fullmatch(name)
    if found is None:
        return name
    own, layer = declared(architecture).names, found["layer"]
    part, _, kind = found["rest"].rpartition(".")
    if layer is not None and (expert := _EXPERT.fullmatch(part)) and expert["matrix"] in _EXPERTS:
        return f"blk.{int(layer)}.ffn_{_EXPERTS[expert['matrix']]}.{int(expert['number'])}.{kind}"
    if layer is None:
        whole = own.get(part, _WHOLE.get(part))
        return name if whole is None else f"{whole}.{kind}"
    if whole := own.get(found["rest"]):
        return f"blk.{int(layer)}.{whole}"
    known = own.get(part, _LAYER.get(part))
    if is_normalised_after and part == "post_attention_layernorm":
        known = "post_attention_norm"
    return name if known is None else f"blk.{int(layer)}.{known}.{kind}"


def name_without_experts(name: str, parameters: Parameters) -> str:
    """Return the name of a folder's tensor where the expert that all tokens use is the only feed-forward layer."""
    is_dense = declared(parameters.architecture).may_share_alone and not parameters.integer("expert_count", 0)
    return name.replace("_shexp.", ".") if is_dense else name


def arranged(parameters: Parameters, tensors: Mapping[str, Tensor], *, has_pairs: bool) -> dict[str, Tensor]:
    """Return all tensors, with rows apart and in order. No weights are read.

    `has_pairs`: the two dimensions of a rotated pair are side by side. A tensor whose size contradicts the parameters
    stays as it is, for whoever checks sizes. Raises CheckpointError for sizes of heads that are missing.
    """
    own = declared(parameters.architecture)
    tensors = {name: _without_leading_ones(name, tensor) for name, tensor in tensors.items()}
    if own.norm_name is not None:
        tensors = {_usual_norm(name, own.norm_name, tensors): tensor for name, tensor in tensors.items()}
    if own.apart is not None:
        tensors = own.apart(parameters, tensors)
    has_parts = own.has_joined_gates or any(split_name(name)[1] == "attn_qkv" for name in tensors)
    if not has_pairs and not has_parts:
        return dict(tensors)
    heads = _Heads(parameters, own)
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for part_name, part in _parts(name, tensor, heads):
            found[part_name] = heads.in_halves(part_name, part) if has_pairs else part
    return found


def _without_leading_ones(name: str, tensor: Tensor) -> Tensor:
    """Return a matrix or a bias without leading axes of length one, which ggml does not count either. Matrices of
    experts keep theirs."""
    shape, fewest = tensor.shape, 1 if name.endswith(".bias") else 2
    while len(shape) > fewest and shape[0] == 1 and "_exps." not in name:
        shape = shape[1:]
    return tensor if shape == tensor.shape else replace(tensor, shape=shape)


def _usual_norm(name: str, names: tuple[str, str], tensors: Mapping[str, Tensor]) -> str:
    usual = name if names[1] in name else name.replace(*names)
    return name if usual in tensors else usual


class _Heads:
    """The sizes that a checkpoint states of its attention and feed-forward layers, in rows."""

    def __init__(self, parameters: Parameters, own: Declaration) -> None:
        self._where, layers = parameters.where, parameters.num_layers()
        self.num_heads = parameters.same_in_layers("attention.head_count", layers)
        self.num_kv_heads = parameters.same_in_layers("attention.head_count_kv", layers, self.num_heads, may_lack=True)
        hidden = parameters.integer("embedding_length", minimum=1)
        self.size = parameters.integer("attention.key_length", hidden // self.num_heads, minimum=1)
        self.rotated = parameters.integer("rope.dimension_count", self.size)
        self.feed_forward = parameters.in_layers("feed_forward_length", layers, 4 * hidden, may_lack=True)[0]
        self.has_joined_gate = own.has_joined_gates

    def in_halves(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor with the first dimensions of all pairs before the second ones: its rows, or the weights of a
        norm. One without pairs, and one of other heads, stays as it is. Raises CheckpointError for a norm that is as
        large as no model's."""
        part = split_name(name)[1]
        if part not in HEAD_NORMS:
            order = self._halves(part, tensor.shape[0])
            return tensor if order is None else tensor.selected(order)
        numbers = few_floats(tensor, self._where).reshape(-1)
        order = self._halves(part.removesuffix("_norm"), len(numbers))
        return tensor if order is None else replace(vector(name, numbers[order]), shape=tensor.shape)

    def _halves(self, part: str, count: int) -> NDArray[np.int64] | None:
        """Return the order of so many numbers: those of all heads, or one of which all heads have the same."""
        heads = {"attn_q": self.num_heads, "attn_k": self.num_kv_heads}.get(part)
        if heads is not None and count == self.size:
            heads = 1
        if heads is None or count != heads * self.size or self.rotated % 2 or self.rotated > self.size:
            return None
        pairs = np.arange(self.rotated).reshape(self.rotated // 2, 2).swapaxes(0, 1).reshape(-1)
        of_head = np.concatenate([pairs, np.arange(self.rotated, self.size)])
        order: NDArray[np.int64] = (np.arange(heads)[:, None] * self.size + of_head).reshape(-1)
        return order

    def parts(self, name: str) -> dict[str, int]:
        """Return the layers that a tensor contains one after the other, and their rows; {} where it is one."""
        keys = self.num_kv_heads * self.size
        match split_name(name)[1]:
            case "attn_qkv":
                return {"attn_q": self.num_heads * self.size, "attn_k": keys, "attn_v": keys}
            case "ffn_up" if self.has_joined_gate:
                return {"ffn_gate": self.feed_forward, "ffn_up": self.feed_forward}
        return {}


def _parts(name: str, tensor: Tensor, heads: _Heads) -> Iterator[tuple[str, Tensor]]:
    sizes = heads.parts(name)
    if not sizes or tensor.shape[0] != sum(sizes.values()):
        yield name, tensor
        return
    block, _, kind = split_name(name)
    begin = 0
    for part, size in sizes.items():
        yield f"{block}.{part}.{kind}", tensor.selected(np.arange(begin, begin + size))
        begin += size
