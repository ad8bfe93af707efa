"""Quantised weights of folders: what config.json, or ModelOpt's hf_quant_config.json, states of them, and matrices in
FP8 and NVFP4 with their scales.

    weight = code * scale
    weight = code * scale of 16 weights * scale of the matrix        NVFP4

A scale is that of a block (DeepSeek's layout, which Qwen's folders have too), of a row, or of a whole matrix (Mistral's
folders, and those of compressed-tensors and ModelOpt). The product is rounded once, to float32. NVFP4 has two codes in
a byte, and scales of 16 weights in FP8; compressed-tensors states what weights are to be divided by instead of the
scale of the matrix: its float32 reciprocal is used. Sources: transformers (integrations/finegrained_fp8.py),
compressed-tensors (quantization/quant_args.py, compressors/nvfp4), vLLM (quantization/fp8.py, modelopt.py,
compressed_tensors_w4a4_nvfp4.py). Scales of activations, and of keys and values, are left out: neither is rounded here.
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
from onward.checkpoints.types import BFLOAT16, FLOAT8, FLOAT16, FLOAT32, NVFP4, OCTETS
from onward.errors import CheckpointError

_SCALE = re.compile(r"(?P<weight>.+\.weight)_scale(?:_inv)?|(?P<experts>.+\.experts\.\w+_proj)_scale_inv")
"""Names of scales. Both words mean the number that a code is multiplied with."""
_FACTOR = re.compile(r"(?P<weight>.+\.weight)_(?:scale_2|(?P<divisor>global_scale))")
"""Names of scales of matrices in NVFP4: ModelOpt's, and compressed-tensors' divisors."""
_PACKED = ".weight_packed"
"""Ends the names of compressed-tensors' codes of NVFP4; ModelOpt's end as those of other weights."""
_UNUSED = re.compile(r".+(?:\.(?:(?:input|output)(?:_global)?|activation|[qkv]|kv)_scale|_activation_scale)")
_BLOCK_WORDS = re.compile(r"(\d{1,9})x(\d{1,9})")
"""A block as older versions of compressed-tensors write it."""
_E4M3 = ("e4m3", "float8_e4m3fn")
"""What the only format that is read is called."""
_SCALE_TYPES = (FLOAT32, FLOAT16, BFLOAT16)
_COMPRESSED = ("float-quantized", "naive-quantized")
"""Formats of compressed-tensors in which weights in FP8 are stored."""
_COMPRESSED_NVFP4 = "nvfp4-pack-quantized"
_IN_BLOCKS, _MODELOPT_BLOCK = "FP8_PB_WO", (128, 128)
_MODELOPT = (None, "FP8", "FP8_PER_CHANNEL_PER_TOKEN", _IN_BLOCKS, "NVFP4", "W4A16_NVFP4")
"""Algorithms of ModelOpt; None: only keys and values were to be rounded (`kv_cache_quant_algo`)."""
_NVFP4_GROUP = 16
"""Weights that have a scale together."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """What config.json states of weights in FP8 or NVFP4. `block`: how many rows and inputs in FP8 have a scale
    together, None if a row has one, or the whole matrix."""

    block: tuple[int, int] | None


def quantised_of(config: Mapping[str, Any], where: str) -> Quantised | None:
    """Return what config.json states, None if weights are not quantised. Raises CheckpointError for weights that are
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


def _fp8(stated: Mapping[str, Any], where: str) -> Quantised:
    for kind in (stated.get("fmt"), stated.get("moe_quant_algo")):
        if kind not in (None, *_E4M3):
            raise _unread(where, "fp8", str(kind))
    block = stated.get("weight_block_size")
    return Quantised(None if block is None else _block(block, where))


def _modelopt(stated: Mapping[str, Any], where: str) -> Quantised:
    kinds, layers = [stated.get("quant_algo")], stated.get("quantized_layers")
    if kinds == ["MIXED_PRECISION"] and isinstance(layers, dict):
        kinds = [each.get("quant_algo") if isinstance(each, dict) else each for each in layers.values()]
    kinds = [each.upper() if isinstance(each, str) else each for each in kinds]  # ModelOpt writes "fp8_pb_wo"
    for kind in kinds:
        if kind not in _MODELOPT:
            raise _unread(where, "modelopt", str(kind))
    return Quantised(_MODELOPT_BLOCK if _IN_BLOCKS in kinds else None)


def _compressed_tensors(stated: Mapping[str, Any], where: str) -> Quantised:
    groups, method = stated.get("config_groups"), "compressed-tensors"
    if not isinstance(groups, dict):
        raise _unread(where, method, str(stated.get("format")))
    blocks = set()
    for each in groups.values():
        group = each if isinstance(each, dict) else {"weights": each}
        weights, kind = group.get("weights"), str(group.get("format") or stated.get("format"))
        if weights is None:  # the group's activations alone are rounded
            continue
        if isinstance(weights, dict) and kind == _COMPRESSED_NVFP4 and _is_nvfp4(weights):
            continue
        if not isinstance(weights, dict) or kind not in _COMPRESSED or not _is_float(weights, 8):
            raise _unread(where, method, kind)
        if (block := _compressed_block(weights, where)) is not None:
            blocks.add(block)
    for part, name, usual in (("sparsity_config", "format", "dense"), ("transform_config", "config_groups", {})):
        own = stated.get(part) or {}
        if not isinstance(own, dict) or own.get(name, usual) != usual:
            raise _unread(where, method, part)
    if len(blocks) > 1:
        raise CheckpointError(f"{where} states blocks of several sizes, which Onward does not read. {_ADVICE}")
    return Quantised(blocks.pop() if blocks else None)


def _is_nvfp4(weights: Mapping[str, Any]) -> bool:
    is_in_groups = weights.get("strategy", "tensor_group") == "tensor_group"
    return _is_float(weights, 4) and is_in_groups and weights.get("group_size") == _NVFP4_GROUP


def _is_float(weights: Mapping[str, Any], num_bits: int) -> bool:
    is_float = weights.get("type") == "float" and weights.get("num_bits") == num_bits
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


_METHODS: dict[str, Callable[[Mapping[str, Any], str], Quantised]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
}
_ADVICE = "Use the model as a GGUF file, or in float16, bfloat16, FP8 (E4M3) or NVFP4."


def _unread(where: str, method: str, kind: str = "") -> CheckpointError:
    own = f" ({kind[:40]})" if kind else ""
    return CheckpointError(
        f"{where}: the weights are quantised by {method[:40]!r}{own}, which Onward does not read. {_ADVICE}"
    )


def with_scales(tensors: Mapping[str, Tensor], stated: Quantised | None, where: str) -> dict[str, Tensor]:
    """Return tensors with the matrices in FP8 and NVFP4 together with their scales; others stay what they are. No
    weights are read. `where` names the folder.

    Raises CheckpointError for a matrix without scales, scales without a matrix that is quantised, and those of another
    shape or type.
    """
    if stated is None:
        for name, tensor in tensors.items():
            if tensor.type == FLOAT8 or _is_packed(name, tensor):
                raise CheckpointError(
                    f"{where} has {name[:80]!r} in {_kind(tensor)}, but its config.json does not state how weights are "
                    "quantised ('quantization_config'): copy or download it again."
                )
        return dict(tensors)
    scales, factors, found = _apart(tensors, where)
    require_few_matrices(
        (each for each in found.values() if each.type == FLOAT8 and each.shape[0] <= MAX_EXPERTS), where
    )
    for name, tensor in found.items():
        scale = scales.pop(name, None)
        if _is_packed(name, tensor):
            found[name] = _of_4_bits(name, tensor, scale, factors.pop(name, None), where)
        elif scale is not None or tensor.type == FLOAT8:
            found[name] = _scaled(name, tensor, scale, stated, where)
    for scale in (*scales.values(), *factors.values()):
        raise CheckpointError(
            f"{where} has the scales {scale.name[:80]!r}, but not what they belong to: it is not a complete model."
        )
    return found


def _apart(tensors: Mapping[str, Tensor], where: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return scales and scales of matrices in NVFP4, by the names of what they belong to, and all other tensors that
    are used."""
    scales: dict[str, Tensor] = {}
    factors: dict[str, Tensor] = {}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if matched := _SCALE.fullmatch(name):
            of, target = matched["weight"] or matched["experts"], scales
        elif matched := _FACTOR.fullmatch(name):
            of, target = matched["weight"], factors
        elif _UNUSED.fullmatch(name):
            continue
        else:
            of, target = name.removesuffix("_packed") if name.endswith(_PACKED) else name, found
        if of in target:
            what = f"a tensor {of[:80]!r}" if target is found else f"the scales of {of[:80]!r}"
            raise CheckpointError(f"{where} has {what} twice, under different names.")
        target[of] = tensor
    return scales, factors, found


def _is_packed(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor has the codes of a matrix in NVFP4."""
    return tensor.type == OCTETS and name.endswith((".weight", _PACKED))


def _kind(tensor: Tensor) -> str:
    return "FP8" if tensor.type == FLOAT8 else "NVFP4"


def _of_4_bits(name: str, tensor: Tensor, scale: Tensor | None, factor: Tensor | None, where: str) -> Tensor:
    """Return a matrix in NVFP4 with the scales of 16 weights, and that of the matrix, `factor`."""
    if len(tensor.shape) != 2:
        raise only_matrices(name, tensor, where)
    if scale is None or factor is None:
        raise CheckpointError(
            f"{where}: {name[:80]!r} is in NVFP4, but has no scales ('…_scale', and '…_scale_2' or '…_global_scale'): "
            "it is not a complete model."
        )
    rows, inputs = tensor.shape[0], 2 * tensor.shape[1]
    if inputs % NVFP4.block_weights:
        raise CheckpointError(
            f"{where}: {name[:80]!r} is in NVFP4 and has {inputs} inputs, but only multiples of {NVFP4.block_weights} "
            f"are read. {_ADVICE}"
        )
    for each, kind, shape in ((scale, FLOAT8, (rows, inputs // _NVFP4_GROUP)), (factor, FLOAT32, (1,))):
        if (each.type, each.shape) != (kind, shape):
            raise CheckpointError(
                f"{where}: {each.name[:80]!r} is {each.type.name} {list(each.shape)} instead of {kind.name} "
                f"{list(shape)}, which are the scales of {name[:80]!r} {[rows, inputs]}: copy or download it again."
            )
    matched, number = _FACTOR.fullmatch(factor.name), factor.loaded().floats().reshape(-1)
    with np.errstate(all="ignore"):  # what is no number is refused before weights are read
        factors = 1 / number if matched is not None and matched["divisor"] else number
    return Tensor(
        name, (rows, inputs), NVFP4, tensor.data.reshape(rows, -1),
        block_scales=scale.data.reshape(rows, -1), factors=factors.astype(np.float32),
    )  # fmt: skip


def _scaled(name: str, tensor: Tensor, scale: Tensor | None, stated: Quantised, where: str) -> Tensor:
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
    """Return the error for a tensor in FP8 that is neither a matrix nor experts', or in NVFP4 and no matrix."""
    of_experts = ", and those of experts together with as many of scales" if tensor.type == FLOAT8 else ""
    return CheckpointError(
        f"{where}: {name[:80]!r} is in {_kind(tensor)} and has the shape {list(tensor.shape)}, but only matrices are "
        f"read{of_experts}. {_ADVICE}"
    )


def _matrix(name: str, tensor: Tensor, scale: Tensor, stated: Quantised, where: str) -> Tensor:
    rows, inputs = tensor.shape
    blocks = [block for block in (stated.block, (1, inputs), (rows, inputs)) if block is not None]
    for block in blocks if scale.type in _SCALE_TYPES else ():
        counts = -(-rows // block[0]), -(-inputs // block[1])
        of_blocks = counts[0], 1, counts[1], 1  # as ModelOpt stores them
        if scale.shape in (counts, of_blocks, *([counts[:1]] if counts[1] == 1 else [])):
            scales = Scales(replace(scale, shape=counts), *block)
            return replace(tensor, data=tensor.data.reshape(rows, inputs), scales=scales)
    words = ", ".join(f"{each[0]} x {each[1]}" for each in blocks)
    raise CheckpointError(
        f"{where}: {scale.name[:80]!r} is {scale.type.name} {list(scale.shape)}, which are not the scales of "
        f"{name[:80]!r} {[rows, inputs]} for blocks of {words} weights: copy or download it again."
    )


def require_usable_scales(tensors: Iterable[Tensor], where: str) -> None:
    """Raise CheckpointError for scales that are no numbers, or larger than a product in float32 may be. Reads all
    scales but those of 16 weights, and no weights."""
    for tensor in tensors:
        for part in tensor.parts or (tensor,):
            numbers = part.factors if part.block_scales is not None else None
            if part.scales is not None:
                numbers = part.scales.stored.floats()
            if numbers is not None and not (np.abs(numbers) <= MAX_SCALE).all():
                raise CheckpointError(
                    f"{where}: the scales of {tensor.name[:80]!r} are not all numbers, or larger than any model's: "
                    "copy or download it again."
                )
