"""Qwen 3.5 (modeling_qwen3_5.py, with experts modeling_qwen3_5_moe.py) and Qwen 3 Next (modeling_qwen3_next.py).

Three layers of four have a gated delta rule after a short convolution instead of attention; the others have attention
with a gate. Queries and gates are one matrix in files, head by head; here they are two. Qwen 3 Next has what a delta
rule reads in one matrix or in two, and what says how fast its states decay in one: by heads that share keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.architecture import Architecture, DeltaNet
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType, Predicting
from onward.checkpoints.families.common import DELTA, EXPERT_SIZE, EXPERTS, RMS, SHARED_SIZE, common
from onward.checkpoints.mixtures import mixture_of
from onward.checkpoints.parameters import MAX_CONVOLUTION, Parameters, is_layer_count
from onward.checkpoints.state_spaces import powers
from onward.checkpoints.tensor import Tensor, few_floats, split_name, vector
from onward.checkpoints.types import FLOAT32
from onward.errors import CheckpointError

_DENSE, _MIXED, _NEXT = "qwen35", "qwen35moe", "qwen3next"
_LANES = 16
"""Of which sizes of heads are multiples."""
_SECTIONS = "rope.dimension_sections"
_RECURRENT = "attention.recurrent_layers"
_ATTENTION, _LINEAR = "full_attention", "linear_attention"
_SIZES = {
    "ssm.conv_kernel": "linear_conv_kernel_dim", "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads", "ssm.time_step_rank": "linear_num_value_heads",
}  # fmt: skip
_OWN_NAMES = {"attn_qkv": "ssm_qkv", "attn_gate": "ssm_gate"}
"""Of matrices of a delta rule, whose GGUF names are those of attention's."""
_CONTENTS = {
    "attn_q": {"attn_q": 1, "attn_q_gate": 1}, "ssm_in": {"ssm_qkv": 3, "ssm_gate": 1},
    "ssm_ba": {"ssm_beta": 1, "ssm_alpha": 1},
}  # fmt: skip
"""Of tensors that are several in one: those, and how many parts of each group of rows each of them has."""
_COMMON_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 16, "head_dim": 256, "max_position_embeddings": 32_768, "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "full_attention_interval": 4,
}  # fmt: skip
_MIXED_DEFAULTS: dict[str, Any] = {
    **_COMMON_DEFAULTS, "hidden_size": 2048, "num_key_value_heads": 2, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "norm_topk_prob": True,
}  # fmt: skip


def _statements(stated: Mapping[str, Any], _: Mapping[str, MetadataValue], where: str) -> dict[str, Any]:
    """Return what a configuration states of layers, by GGUF's names. Raises CheckpointError."""
    count, interval = stated["num_hidden_layers"], stated["full_attention_interval"]
    if not is_layer_count(count) or type(interval) is not int or interval < 1:
        return {}  # as whoever reads the numbers says
    if stated.get("attn_output_gate") is False:
        raise CheckpointError(
            f"{where} has attention without a gate ('attn_output_gate'), which Onward does not compute."
        )
    if (activation := stated["hidden_act"]) not in ("silu", "swish"):
        raise CheckpointError(
            f"{where} has delta rules with the activation {str(activation)[:40]!r} ('hidden_act'), which Onward does "
            "not compute."
        )
    usual = [_LINEAR if (layer + 1) % interval else _ATTENTION for layer in range(count)]
    kinds = stated.get("layer_types", usual)
    if not isinstance(kinds, list) or len(kinds) != count:
        raise CheckpointError(f"{where} states {str(kinds)[:40]!r} as 'layer_types', but has {count} layers.")
    for kind in kinds:
        if kind not in (_LINEAR, _ATTENTION):
            raise CheckpointError(f"{where} has layers of the kind {str(kind)[:40]!r}, which Onward does not compute.")
    heads, size = stated["linear_num_value_heads"], stated["linear_value_head_dim"]
    if type(heads) is not int or type(size) is not int:
        raise CheckpointError(f"{where} states {str((heads, size))[:40]} as heads of values and their size.")
    is_mixed = stated["model_type"] == "qwen3_5_moe_text"  # whose experts are no choice of its configuration
    of_experts = {"expert.layers": [True] * count, "expert_weights_norm": True} if is_mixed else {}
    return {
        **{name: stated[key] for name, key in _SIZES.items()},
        "ssm.inner_size": heads * size,
        "ssm.is_grouped": True,
        _RECURRENT: [kind == _LINEAR for kind in kinds],
        **of_experts,
    }


def _qwen35(checkpoint: Checkpoint) -> Architecture:
    """Return the architecture, with the experts that those of two names have. Raises CheckpointError."""
    parameters, found = checkpoint.parameters, common(checkpoint)
    stated, count = parameters.num_layers(), parameters.num_own_layers()
    recurrent = parameters.switches(_RECURRENT, stated)
    if recurrent is None:
        interval = parameters.integer("full_attention_interval", 4, minimum=1)
        recurrent = [bool((layer + 1) % interval) for layer in range(count)]
    heads, keys = parameters.integer("ssm.time_step_rank", minimum=1), parameters.integer("ssm.group_count", minimum=1)
    size, inner = parameters.integer("ssm.state_size", minimum=1), parameters.integer("ssm.inner_size", minimum=1)
    length = parameters.integer("ssm.conv_kernel", minimum=2)
    if heads % keys or inner % heads or size % _LANES or inner // heads % _LANES or length > MAX_CONVOLUTION:
        raise CheckpointError(
            f"{parameters.where} states sizes of states that Onward does not compute: {heads} heads "
            f"('ssm.time_step_rank') of {inner} numbers together ('ssm.inner_size'), {keys} of keys "
            f"('ssm.group_count') of {size} numbers ('ssm.state_size'), convolutions over {length} positions "
            f"('ssm.conv_kernel'). Sizes of heads have to be multiples of {_LANES}."
        )
    layers = frozenset(layer for layer in range(count) if recurrent[layer])
    is_grouped = parameters.architecture == _NEXT or parameters.switch("ssm.is_grouped", False)
    delta = DeltaNet(layers, keys, heads, size, inner // heads, length, is_tiled=not is_grouped)
    found = replace(found, num_layers=count, delta=delta if layers else None, has_gated_attention=True)
    if parameters.architecture == _DENSE:
        return found
    mixture = mixture_of(parameters, feed_forward=0, is_normalised=True)
    shared = mixture.shared_feed_forward or found.feed_forward
    mixture = replace(mixture, layers=mixture.layers & frozenset(range(count)), shared_feed_forward=shared)
    return replace(found, mixture=mixture)


def _apart(parameters: Parameters, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with those apart that are several in one, and matrices of delta rules by names of their own.
    One whose size contradicts the parameters stays as it is, and so does one that contains what another tensor is."""
    groups = _groups(parameters)
    named = {_with_own_name(name): tensor for name, tensor in tensors.items()}
    found: dict[str, Tensor] = {}
    for name, tensor in named.items():
        block, part, kind = split_name(name)
        heads, widths = groups.get(part, (0, ()))
        targets = {f"{block}.{target}.{kind}": num for target, num in _CONTENTS.get(part, {}).items()}
        is_joined = heads > 0 and tensor.shape[:1] == (heads * sum(widths),)
        if not is_joined or any(target in named for target in targets if target != name):
            found[name] = replace(tensor, name=name)
            continue
        rows = np.arange(tensor.shape[0]).reshape(heads, -1)
        columns = [each.reshape(-1) for each in np.split(rows, np.cumsum(widths)[:-1], axis=1)]
        for target, num in targets.items():
            order = np.concatenate([columns.pop(0) for _ in range(num)])
            found[target] = replace(tensor.selected(order), name=target)
    return found


def _groups(parameters: Parameters) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return of each tensor that is several in one how many groups of rows it has, and the rows of each of their
    parts, in the order of `_CONTENTS`."""
    heads = parameters.same_in_layers("attention.head_count", parameters.num_layers())
    usual = parameters.integer("embedding_length", minimum=1) // heads
    size = parameters.integer("attention.key_length", usual, minimum=1)
    found: dict[str, tuple[int, tuple[int, ...]]] = {"attn_q": (heads, (size, size))}
    if parameters.architecture != _NEXT:
        return found
    keys, of_key = parameters.integer("ssm.group_count", minimum=1), parameters.integer("ssm.state_size", minimum=1)
    values = parameters.integer("ssm.inner_size", minimum=1) // keys
    share = parameters.integer("ssm.time_step_rank", minimum=1) // keys
    return {**found, "ssm_in": (keys, (of_key, of_key, values, values)), "ssm_ba": (keys, (share, share))}


def _as_in_gguf(parameters: Parameters, tensor: Tensor) -> Tensor:
    """Return a tensor of a folder, by GGUF's name, as GGUF files have it: norms as they are multiplied, what decays as
    the negative number of e**decay."""
    if tensor.name.endswith("norm.weight") and not tensor.name.endswith("ssm_norm.weight"):
        return vector(tensor.name, few_floats(tensor, parameters.where)[0] + np.float32(1))
    if tensor.name.endswith(".ssm_a") and len(tensor.shape) == 1:
        return vector(tensor.name, -powers(few_floats(tensor, parameters.where)[0]))
    if tensor.name.endswith(".ssm_conv1d.weight") and tensor.shape[1:-1] == (1,):
        return replace(tensor, shape=(tensor.shape[0], tensor.shape[-1]))
    return tensor


def _with_heads_in_order(parameters: Parameters, low: Tensor, high: Tensor, is_grouped: bool) -> tuple[Tensor, Tensor]:
    """Return the two matrices of an adapter's change, whose name is that of `high`, with heads in the order that the
    checkpoint has. `is_grouped`: whether those that share keys are one after the other in the adapter."""
    if parameters.architecture == _NEXT or is_grouped == parameters.switch("ssm.is_grouped", False):
        return low, high
    heads, keys = parameters.integer("ssm.time_step_rank"), parameters.integer("ssm.group_count", minimum=1)
    size = parameters.integer("ssm.inner_size") // max(1, heads)
    grid = np.arange(heads).reshape(-1, heads // keys if is_grouped else keys)
    order = grid.T.reshape(-1)
    numbers = (order[:, None] * size + np.arange(size)).reshape(-1)
    part = high.name.split(".")[2] if high.name.startswith("blk.") else ""
    if part == "ssm_out" and low.shape[-1] == len(numbers):
        return _floats(low, low.loaded().floats()[:, numbers]), high
    wanted = {"ssm_qkv": numbers, "ssm_gate": numbers, "ssm_alpha": order, "ssm_beta": order}.get(_own_name(part))
    if wanted is None or high.shape[0] < len(wanted):
        return low, high
    before = high.shape[0] - len(wanted) if _own_name(part) == "ssm_qkv" else 0
    return low, high.selected(np.concatenate((np.arange(before), before + wanted)))


def _own_name(part: str) -> str:
    return _OWN_NAMES.get(part, part)


def _with_own_name(name: str) -> str:
    block, part, kind = split_name(name)
    return f"{block}.{_OWN_NAMES[part]}.{kind}" if part in _OWN_NAMES else name


def _floats(tensor: Tensor, values: NDArray[np.float32]) -> Tensor:
    return replace(
        tensor, type=FLOAT32, data=np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8), order=None
    )


def _declared(*keys: str, has_gated_share: bool, model_types: Mapping[str, ModelType]) -> Declaration:
    return Declaration(
        decoder=_qwen35,
        keys=frozenset({RMS, *DELTA, *keys}),
        head_norms="always",
        has_gated_share=has_gated_share,
        norm_name=(".post_attention_norm.", ".ffn_norm."),
        names={
            "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias",
            "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight", "mlp.experts.down_proj": "ffn_down_exps.weight",
        },
        apart=_apart,
        as_in_gguf=_as_in_gguf,
        adapter_order=_with_heads_in_order,
        predicting=Predicting(names=re.compile(r"(?:model\.)?mtp\.(?:layers\.(?P<layer>\d{1,3})\.)?(?P<rest>[\w.]+)")),
        model_types=model_types,
    )  # fmt: skip


def _model_type(defaults: Mapping[str, Any], **others: Any) -> ModelType:
    return ModelType(defaults=defaults, attention_bias="attention_bias", statements=_statements, **others)


ARCHITECTURES: dict[str, Declaration] = {
    _DENSE: _declared(
        _SECTIONS,
        has_gated_share=False,
        model_types={
            "qwen3_5_text": _model_type(
                {
                    **_COMMON_DEFAULTS, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 32,
                    "num_key_value_heads": 4,
                },
                with_images="qwen3_5",
            ),
        },
    ),
    _MIXED: _declared(
        *EXPERTS, EXPERT_SIZE, SHARED_SIZE, _SECTIONS,
        has_gated_share=True,
        model_types={
            "qwen3_5_moe_text": _model_type(
                {**_MIXED_DEFAULTS, "num_hidden_layers": 40, "num_experts": 256, "num_experts_per_tok": 8},
                experts="usual",
                with_images="qwen3_5_moe",
            ),
        },
    ),
    _NEXT: _declared(
        *EXPERTS, EXPERT_SIZE, SHARED_SIZE,
        has_gated_share=True,
        model_types={
            "qwen3_next": _model_type(
                {
                    **_MIXED_DEFAULTS, "intermediate_size": 5632, "num_hidden_layers": 48, "num_experts": 512,
                    "num_experts_per_tok": 10,
                },
                experts="usual",
            ),
        },
    ),
}  # fmt: skip
