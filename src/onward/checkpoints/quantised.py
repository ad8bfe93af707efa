"""Quantised weights of folders: what config.json, or ModelOpt's hf_quant_config.json, states of them, and matrices in FP8
with their scales.

    weight = code * scale

A scale is that of a block (DeepSeek's layout, which Qwen's folders have too), of a row, or of a whole matrix (Mistral's
folders, and those of compressed-tensors and ModelOpt). The product is rounded once, to float32. Sources: transformers
(integrations/finegrained_fp8.py), compressed-tensors (quantization/quant_args.py), vLLM (quantization/fp8.py). Scales
of activations, and of keys and values, are left out: neither is rounded to FP8 here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onward.checkpoints.blocks import FLOAT8_GROUP
from onward.checkpoints.mixtures import MAX_EXPERTS, require_few_matrices
from onward.checkpoints.parameters import MAX_NUMBER, MAX_SCALE
from onward.checkpoints.tensor import Scales, Tensor
from onward.checkpoints.types import BFLOAT16, FLOAT8, FLOAT16, FLOAT32
from onward.errors import CheckpointError

_SCALE = re.compile(r"(?P<weight>.+\.weight)_scale(?:_inv)?|(?P<experts>.+\.experts\.\w+_proj)_scale_inv")
"""Names of scales. Both words mean the number that a code is multiplied with."""
_UNUSED = re.compile(r".+(?:\.(?:input|output|activation|[qkv]|kv)_scale|_activation_scale)")
_BLOCK_WORDS = re.compile(r"(\d{1,9})x(\d{1,9})")
"""A block as older versions of compressed-tensors write it."""
_E4M3 = ("e4m3", "float8_e4m3fn")
"""What the only format that is read is called."""
_SCALE_TYPES = (FLOAT32, FLOAT16, BFLOAT16)
_COMPRESSED = ("float-quantized", "naive-quantized")
"""Formats of compressed-tensors in which weights in FP8 are stored."""


@dataclass(frozen=True, slots=True)
class Float8:
    """What config.json states of weights in FP8. `block`: how many rows and inputs have a scale together, None if a row
    has one, or the whole matrix."""

    block: tuple[int, int] | None


def float8_of(config: Mapping[str, Any], where: str) -> Float8 | None:
    """Return what config.json states, None if weights are not in FP8. Raises CheckpointError for weights that are
    quantised in a way that is not read."""
    stated = config.get("quantization_config")
    if not stated:
        return None
    method = stated.get("quant_method", "unknown") if isinstance(stated, dict) else "unknown"
    if (config.get("model_type"), method) == ("gpt_oss", "mxfp4"):
        return None
    read = _METHODS.get(method) if isinstance(method, str) else None
    if read is None:
        raise _unread(where, str(method))
    return read(stated, where)


def _fp8(stated: Mapping[str, Any], where: str) -> Float8:
    for kind in (stated.get("fmt"), stated.get("moe_quant_algo")):
        if kind not in (None, *_E4M3):
            raise _unread(where, "fp8", str(kind))
    block = stated.get("weight_block_size")
    return Float8(None if block is None else _block(block, where))


def _modelopt(stated: Mapping[str, Any], where: str) -> Float8:
    """Without an algorithm, only keys and values were to be rounded (`kv_cache_quant_algo`)."""
    if (kind := stated.get("quant_algo")) not in (None, "FP8"):
        raise _unread(where, "modelopt", str(kind))
    return Float8(None)


def _compressed_tensors(stated: Mapping[str, Any], where: str) -> Float8:
    groups, method = stated.get("config_groups"), "compressed-tensors"
    if not isinstance(groups, dict):
        raise _unread(where, method, str(stated.get("format")))
    blocks = set()
    for each in groups.values():
        group = each if isinstance(each, dict) else {"weights": each}
        weights, kind = group.get("weights"), str(group.get("format") or stated.get("format"))
        if weights is None:  # the group's activations alone are rounded
            continue
        if not isinstance(weights, dict) or kind not in _COMPRESSED or not _is_float8(weights):
            raise _unread(where, method, kind)
        if (block := _compressed_block(weights, where)) is not None:
            blocks.add(block)
    for part, name, usual in (("sparsity_config", "format", "dense"), ("transform_config", "config_groups", {})):
        own = stated.get(part) or {}
        if not isinstance(own, dict) or own.get(name, usual) != usual:
            raise _unread(where, method, part)
    if len(blocks) > 1:
        raise CheckpointError(f"{where} states blocks of several sizes, which Onward does not read. {_ADVICE}")
    return Float8(blocks.pop() if blocks else None)


def _is_float8(weights: Mapping[str, Any]) -> bool:
    is_float = weights.get("type") == "float" and weights.get("num_bits") == 8
    return is_float and weights.get("symmetric", True) is True and not weights.get("dynamic")


def _compressed_block(weights: Mapping[str, Any], where: str) -> tuple[int, int] | None:
    match weights.get("strategy"):
        case None | "tensor" | "channel":
            return None
        case "block":
            return _block(weights.get("block_structure"), where)
        case "group":
            return _block([1, weights.get("group_size")], where)
        case other:
            raise _unread(where, "compressed-tensors", str(other))


def _block(stated: object, where: str) -> tuple[int, int]:
    if isinstance(stated, str) and (words := _BLOCK_WORDS.fullmatch(stated)):
        stated = [int(words[1]), int(words[2])]
    match stated:
        case [int(rows), int(inputs)] if 0 < rows <= MAX_NUMBER and 0 < inputs <= MAX_NUMBER:
            if inputs % FLOAT8_GROUP == 0:
                return rows, inputs
    raise CheckpointError(
        f"{where} states {str(stated)[:40]!r} as the block of weights that has a scale, which Onward does not read: "
        f"it reads rows and inputs, of which the inputs are a multiple of {FLOAT8_GROUP}. {_ADVICE}"
    )


_METHODS: dict[str, Callable[[Mapping[str, Any], str], Float8]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
}
_ADVICE = "Use the model as a GGUF file, or in float16, bfloat16 or FP8 (E4M3)."


def _unread(where: str, method: str, kind: str = "") -> CheckpointError:
    own = f" ({kind[:40]})" if kind else ""
    return CheckpointError(
        f"{where}: the weights are quantised by {method[:40]!r}{own}, which Onward does not read. {_ADVICE}"
    )


def with_scales(tensors: Mapping[str, Tensor], stated: Float8 | None, where: str) -> dict[str, Tensor]:
    """Return tensors with the matrices in FP8 together with their scales; others stay what they are. No weights are
    read. `where` names the folder.

    Raises CheckpointError for a matrix without scales, scales without a matrix in FP8, and those of another shape or
    type.
    """
    if stated is None:
        for name, tensor in tensors.items():
            if tensor.type == FLOAT8:
                raise CheckpointError(
                    f"{where} has {name[:80]!r} in FP8, but its config.json does not state how weights are quantised "
                    "('quantization_config'): copy or download it again."
                )
        return dict(tensors)
    scales: dict[str, Tensor] = {}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if matched := _SCALE.fullmatch(name):
            of = matched["weight"] or matched["experts"]
            if of in scales:
                raise CheckpointError(f"{where} has the scales of {of[:80]!r} twice, under different names.")
            scales[of] = tensor
        elif not _UNUSED.fullmatch(name):
            found[name] = tensor
    require_few_matrices(
        (each for each in found.values() if each.type == FLOAT8 and each.shape[0] <= MAX_EXPERTS), where
    )
    for name, tensor in found.items():
        scale = scales.pop(name, None)
        if scale is not None or tensor.type == FLOAT8:
            found[name] = _scaled(name, tensor, scale, stated, where)
    for scale in scales.values():
        raise CheckpointError(
            f"{where} has the scales {scale.name[:80]!r}, but not what they belong to: it is not a complete model."
        )
    return found


def _scaled(name: str, tensor: Tensor, scale: Tensor | None, stated: Float8, where: str) -> Tensor:
    """Return a matrix, or those of experts, with scales."""
    if tensor.type != FLOAT8 or scale is None:
        has = "has scales, but is not in FP8" if scale is not None else "is in FP8, but has no scales ('…_scale_inv')"
        raise CheckpointError(f"{where}: {name[:80]!r} {has}: it is not a complete model.")
    are_experts = len(tensor.shape) == 3 and f"{name}_scale_inv" == scale.name and tensor.shape[0] <= MAX_EXPERTS
    if are_experts and len(scale.shape) == 3 and scale.shape[0] == tensor.shape[0]:
        parts = [
            _matrix(name, tensor.part(expert), scale.part(expert), stated, where) for expert in range(tensor.shape[0])
        ]
        return replace(tensor, data=np.empty(0, np.uint8), parts=tuple(parts))
    if len(tensor.shape) != 2:
        raise only_matrices(name, tensor, where)
    return _matrix(name, tensor, scale, stated, where)


def only_matrices(name: str, tensor: Tensor, where: str) -> CheckpointError:
    """Return the error for a tensor in FP8 that is neither a matrix nor experts'."""
    return CheckpointError(
        f"{where}: {name[:80]!r} is in FP8 and has the shape {list(tensor.shape)}, but only matrices are read, and "
        f"those of experts together with as many of scales. {_ADVICE}"
    )


def _matrix(name: str, tensor: Tensor, scale: Tensor, stated: Float8, where: str) -> Tensor:
    rows, inputs = tensor.shape
    blocks = [block for block in (stated.block, (1, inputs), (rows, inputs)) if block is not None]
    for block in blocks if scale.type in _SCALE_TYPES else ():
        counts = -(-rows // block[0]), -(-inputs // block[1])
        if scale.shape in (counts, *([counts[:1]] if counts[1] == 1 else [])):
            scales = Scales(replace(scale, shape=counts), *block)
            return replace(tensor, data=tensor.data.reshape(rows, inputs), scales=scales)
    words = ", ".join(f"{each[0]} x {each[1]}" for each in blocks)
    raise CheckpointError(
        f"{where}: {scale.name[:80]!r} is {scale.type.name} {list(scale.shape)}, which are not the scales of "
        f"{name[:80]!r} {[rows, inputs]} for blocks of {words} weights: copy or download it again."
    )


def require_usable_scales(tensors: Iterable[Tensor], where: str) -> None:
    """Raise CheckpointError for scales that are no numbers, or larger than a product in float32 may be. Reads all
    scales, and no weights."""
    for tensor in tensors:
        for part in tensor.parts or (tensor,):
            if part.scales is not None and not (np.abs(part.scales.stored.floats()) <= MAX_SCALE).all():
                raise CheckpointError(
                    f"{where}: the scales of {tensor.name[:80]!r} are not all numbers, or larger than any model's: "
                    "copy or download it again."
                )
