"""Folders whose weights are in NVFP4, in each layout that is published: made of folders in float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.safetensors import read_safetensors
from tests.checkpoints.float8 import VALUES as OCTETS
from tests.checkpoints.float8 import Floats, Stored, codes_of, file_bytes, is_converted, state

GROUP = 16
_POSITIVE = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
VALUES = np.concatenate((_POSITIVE, -_POSITIVE))
"""float64, by code: OCP's E2M1 (OCP Microscaling Formats 1.0, table 5)."""


@dataclass(frozen=True)
class Layout:
    """How a folder states NVFP4, and how the parts of a matrix are called."""

    config: Mapping[str, Any]
    codes: str
    """The end of the name of the codes."""
    factor: str
    """The same of the scale of the matrix."""
    activation: str
    is_divisor: bool = False
    shape: tuple[int, ...] = ()
    """Of the scale of the matrix."""
    has_own_file: bool = False


_GROUP: dict[str, Any] = {
    "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": GROUP, "symmetric": True,
    "dynamic": False,
}  # fmt: skip
_COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors", "quantization_status": "compressed", "ignore": ["lm_head"],
    "kv_cache_scheme": None, "sparsity_config": {}, "transform_config": {},
}  # fmt: skip
_MODELOPT = "weight", "weight_scale_2", "input_scale"
LAYOUTS = {
    "ModelOpt": Layout({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, *_MODELOPT),
    "ModelOpt, older": Layout(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
         "exclude_modules": ["lm_head"]},
        *_MODELOPT, has_own_file=True,
    ),
    "ModelOpt, mixed": Layout(
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
            "model.layers.0.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
            "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        }},
        *_MODELOPT,
    ),
    "compressed": Layout(
        {**_COMPRESSED, "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": _GROUP, "input_activations": _GROUP | {"dynamic": "local"},
        }}},
        "weight_packed", "weight_global_scale", "input_global_scale", is_divisor=True, shape=(1,),
    ),
    "compressed, mixed": Layout(
        {**_COMPRESSED, "format": "mixed-precision", "config_groups": {
            "group_0": {"format": "nvfp4-pack-quantized", "weights": _GROUP},
            "group_1": {"format": "float-quantized", "weights": _GROUP | {
                "num_bits": 8, "strategy": "channel", "group_size": None,
            }},
        }},
        "weight_packed", "weight_global_scale", "input_global_scale", is_divisor=True, shape=(1,),
    ),
}  # fmt: skip


def convert(folder: Path, layout: Layout, *, seed: int = 0) -> dict[str, Floats]:
    """Convert the matrices of a folder in float32 that have a multiple of 64 inputs, and return all of its weights as
    float32: code times both scales. With a layout that mixes types, those of attention are in FP8, with a scale per
    row."""
    state(folder, layout.config, has_own_file=layout.has_own_file)
    random, found = np.random.default_rng(seed), dict[str, Floats]()
    is_mixed = "mixed" in str(layout.config) or "MIXED" in str(layout.config)
    for path in sorted(folder.glob("*.safetensors")):
        stored: dict[str, Stored] = {}
        count = 0
        for name, tensor in read_safetensors(path).items():
            array = tensor.floats().reshape(tensor.shape)
            if not is_converted(name, array) or array.ndim != 2 or array.shape[1] % 64:
                found[name], stored[name] = array, ("F32", array.shape, array.tobytes())
                continue
            count += 1
            prefix = name.removesuffix("weight")
            if is_mixed and ".self_attn." in name:
                scales = (np.abs(array).max(axis=1, keepdims=True) / 448).astype("<f4")
                codes = codes_of(array / scales.astype(np.float64))
                stored[name] = "F8_E4M3", codes.shape, codes.tobytes()
                stored[f"{name}_scale"] = "F32", scales.shape, scales.tobytes()
                found[name] = (OCTETS[codes] * scales.astype(np.float64)).astype(np.float32)
                continue
            packed, octets, factor, found[name] = converted(array, random)
            stored[f"{prefix}{layout.codes}"] = "U8", packed.shape, packed.tobytes()
            stored[f"{prefix}weight_scale"] = "F8_E4M3", octets.shape, octets.tobytes()
            number = 1 / factor if layout.is_divisor else factor
            stored[f"{prefix}{layout.factor}"] = "F32", layout.shape, np.array(number, "<f4").tobytes()
            stored[f"{prefix}{layout.activation}"] = "F32", layout.shape, np.ones(1, "<f4").tobytes()
        assert count > 2
        path.write_bytes(file_bytes(stored))
    return found


def converted(array: Floats, random: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any], float, Floats]:
    """Packed codes, scales of 16 weights, the scale of the matrix, a power of two, and weights. Some scales of 16
    weights are negative."""
    groups = array.reshape(len(array), -1, GROUP).astype(np.float64)
    factor = 2.0 ** np.floor(np.log2(np.abs(array).max() / 6 / 300))
    octets = codes_of(np.abs(groups).max(axis=2) / 6 / factor)
    octets |= np.where(random.random(octets.shape) < 0.1, 0x80, 0).astype(np.uint8)
    scales = OCTETS[octets][..., None] * factor
    quotients = np.divide(groups, scales, out=np.zeros_like(groups), where=scales != 0)
    codes = np.abs(quotients[..., None] - VALUES).argmin(axis=-1).astype(np.uint8)
    weights = (VALUES[codes] * scales).reshape(array.shape).astype(np.float32)
    return pack(codes.reshape(array.shape)), octets, float(factor), weights


def pack(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two successive weights in a byte, the first one in its lower half."""
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
