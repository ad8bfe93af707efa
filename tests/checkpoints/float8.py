"""Folders whose weights are in FP8, in each layout that is published: made of folders in float32."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.safetensors import read_safetensors

Floats = NDArray[np.float32]
Stored = tuple[str, tuple[int, ...], bytes]
"""A tensor's type, shape and bytes."""


def _number(code: int) -> float:
    """OCP's E4M3 (OFP8 1.0, table 1): sign, exponent with a bias of 7, mantissa; all ones is NaN, and there is no
    infinity."""
    sign, exponent, mantissa = -1.0 if code & 0x80 else 1.0, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


VALUES = np.array([_number(code) for code in range(256)])
"""float64, by code."""
_POSITIVE = VALUES[:127]
_BORDERS = (_POSITIVE[1:] + _POSITIVE[:-1]) / 2


def codes_of(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """The nearest codes."""
    found: NDArray[np.int64] = np.searchsorted(_BORDERS, np.abs(numbers)) | np.where(np.signbit(numbers), 0x80, 0)
    return found.astype(np.uint8)


@dataclass(frozen=True)
class Layout:
    """How scales are stored. `block`: rows and inputs that have one together; 0: all of them."""

    config: Mapping[str, Any]
    block: tuple[int, int]
    scale: str = "_scale_inv"
    dtype: str = "F32"
    shape: tuple[int, ...] | None = None
    """Of scales, where it is not that of the blocks."""
    activation: str = ""
    """The end of the name of a scale of activations."""
    has_own_file: bool = False
    """Whether hf_quant_config.json states it, instead of config.json."""


def _groups(**weights: Any) -> dict[str, Any]:
    usual = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "group_size": None, "actorder": None}
    group = {"targets": ["Linear"], "weights": usual | weights, "input_activations": {"num_bits": 8, "dynamic": True}}
    return {
        "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None, "sparsity_config": {},
        "transform_config": {},
    }  # fmt: skip


_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 32]}
LAYOUTS = {
    "DeepSeek": Layout({**_FP8, "scale_fmt": "ue8m0"}, (16, 32)),
    "Qwen": Layout({**_FP8, "modules_to_not_convert": ["lm_head"]}, (16, 32), dtype="BF16"),
    "Qwen, 2507": Layout(_FP8 | {"weight_block_size": [32, 64]}, (32, 64), dtype="F16"),
    "MiniMax": Layout(
        _FP8 | {"fmt": "float8_e4m3fn", "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
        (16, 32),
    ),
    "Mistral": Layout(
        {"quant_method": "fp8", "activation_scheme": "static", "dequantize": False, "weight_block_size": None,
         "modules_to_not_convert": ["model.vision_tower", "lm_head"]},
        (0, 0), dtype="BF16", shape=(), activation="activation_scale",
    ),
    "AutoFP8": Layout(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        (0, 0), "_scale", shape=(1,), activation="input_scale",
    ),
    "compressed, rows": Layout(_groups(strategy="channel"), (1, 0), "_scale", dtype="BF16"),
    "compressed, one": Layout(_groups(strategy="tensor"), (0, 0), "_scale", shape=(1,), activation="input_scale"),
    "compressed, blocks": Layout(_groups(strategy="block", block_structure=[16, 32]), (16, 32), "_scale"),
    "compressed, groups": Layout(_groups(strategy="group", group_size=32), (1, 32), "_scale"),
    "compressed, older": Layout(_groups(strategy="block", block_structure="16x32"), (16, 32), "_scale"),
    "ModelOpt": Layout(
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
        (0, 0), "_scale", shape=(), activation="input_scale",
    ),
    "ModelOpt, rows": Layout({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, (1, 0), "_scale"),
    "ModelOpt, blocks": Layout(
        {"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}, (128, 128), "_scale", shape=(1, 1, 1, 1)
    ),
    "ModelOpt, older": Layout(
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
        (0, 0), "_scale", shape=(), activation="input_scale", has_own_file=True,
    ),
}  # fmt: skip
_KEPT = (
    "norm", ".gate.", "router", "conv", "shared_expert_gate", "in_proj_a.", "in_proj_b.", "in_proj_ba.", "embed",
    "lm_head",
)  # fmt: skip
"""Parts of the names of what publishers do not convert."""


def is_converted(name: str, array: NDArray[Any]) -> bool:
    is_matrix = (name.endswith(".weight") and array.ndim == 2) or (".experts." in name and array.ndim == 3)
    return is_matrix and ("layers." in name or ".h." in name) and not any(part in name for part in _KEPT)


def convert(folder: Path, layout: Layout, *, seed: int = 0, is_lossless: bool = False) -> dict[str, Floats]:
    """Convert a folder in float32, and return all of its weights as float32: fp8 times scale. `is_lossless`: they are
    what they were before, which have to be as `rounded` returns them."""
    state(folder, layout.config, has_own_file=layout.has_own_file)
    random, found = np.random.default_rng(seed), dict[str, Floats]()
    for path in sorted(folder.glob("*.safetensors")):
        stored: dict[str, Stored] = {}
        for name, tensor in read_safetensors(path).items():
            array = tensor.floats().reshape(tensor.shape)
            if not is_converted(name, array):
                found[name], stored[name] = array, ("F32", array.shape, array.tobytes())
                continue
            matrices = array.reshape(-1, *array.shape[-2:])
            parts = [_converted(each, layout, random, is_lossless=is_lossless) for each in matrices]
            codes, scales, weights = (
                np.stack(each).reshape(*array.shape[:-2], *each[0].shape) for each in zip(*parts, strict=True)
            )
            found[name] = weights
            stored[name] = "F8_E4M3", codes.shape, codes.tobytes()
            shape = layout.shape if layout.shape is not None and array.ndim == 2 else scales.shape
            stored[f"{name}{layout.scale}"] = layout.dtype, shape, scales_bytes(scales, layout.dtype)
            if layout.activation:
                own = f"{name.removesuffix('weight') if array.ndim == 2 else name + '_'}{layout.activation}"
                stored[own] = layout.dtype, layout.shape or (), scales_bytes(np.ones(1, np.float32), layout.dtype)
        path.write_bytes(file_bytes(stored))
    return found


def state(folder: Path, quantised: Mapping[str, Any] | None, *, has_own_file: bool = False) -> None:
    """State how the weights of a folder are quantised."""
    if has_own_file:
        own = {key: value for key, value in (quantised or {}).items() if key != "quant_method"}
        whole = {"producer": {"name": "modelopt", "version": "0.23.0"}, "quantization": own}
        (folder / "hf_quant_config.json").write_text(json.dumps(whole), encoding="utf-8")
        return
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantised}), encoding="utf-8")


def _converted(
    array: Floats, layout: Layout, random: np.random.Generator, *, is_lossless: bool
) -> tuple[NDArray[np.uint8], Floats, Floats]:
    """Codes, scales by block, and weights, of a matrix."""
    rows, inputs = (each or size for each, size in zip(layout.block, array.shape, strict=True))
    counts = -(-array.shape[0] // rows), -(-array.shape[1] // inputs)
    scales = np.exp2(random.integers(-8, -5, counts)).astype(np.float32)
    if not is_lossless:
        largest = np.full(counts, 1e-3, np.float32)
        np.maximum.at(
            largest, (np.arange(len(array))[:, None] // rows, np.arange(array.shape[1]) // inputs), abs(array)
        )
        scales = rounded_scales((largest / 448 * random.uniform(0.9, 1.3, counts)).astype(np.float32), layout.dtype)
    spread = scales.repeat(rows, 0)[: len(array)].repeat(inputs, 1)[:, : array.shape[1]].astype(np.float64)
    codes = codes_of(array / spread)
    weights = (VALUES[codes] * spread).astype(np.float32)  # the product is exact in float64
    assert not is_lossless or np.array_equal(weights, array)
    return codes, scales, weights


def rounded(array: Floats) -> Floats:
    """Numbers that have codes for each of the scales 2**-8, 2**-7 and 2**-6."""
    return (VALUES[codes_of(np.clip(array, -1.75, 1.75) * 64)] / 64).astype(np.float32)


def rounded_scales(scales: Floats, dtype: str) -> Floats:
    """What a type can hold, towards zero for bfloat16."""
    if dtype == "BF16":
        return (scales.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return scales.astype({"F16": np.float16, "F32": np.float32}[dtype]).astype(np.float32)


def scales_bytes(scales: Floats, dtype: str) -> bytes:
    if dtype == "BF16":
        return (np.ascontiguousarray(scales).view("<u4") >> 16).astype("<u2").tobytes()
    return scales.astype({"F16": "<f2", "F32": "<f4"}[dtype]).tobytes()


def file_bytes(stored: Mapping[str, Stored]) -> bytes:
    """The bytes of a safetensors file."""
    header, content = {}, b""
    for name, (kind, shape, data) in stored.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(content), len(content) + len(data)]}
        content += data
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + content


def stored_in(path: Path) -> dict[str, Stored]:
    """The tensors of a file, as it has them."""
    whole = path.read_bytes()
    (size,) = struct.unpack_from("<Q", whole)
    entries = {name: entry for name, entry in json.loads(whole[8 : 8 + size]).items() if name != "__metadata__"}
    return {
        name: (each["dtype"], tuple(each["shape"]), whole[8 + size :][slice(*each["data_offsets"])])
        for name, each in entries.items()
    }


def write_plain(folder: Path, like: Path, weights: Mapping[str, Floats]) -> Path:
    """Write a folder with these weights in float32, and everything else like another one."""
    folder.mkdir()
    config = json.loads((like / "config.json").read_text(encoding="utf-8"))
    config.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_bytes((like / "tokenizer.json").read_bytes())
    arrays = {name: ("F32", array.shape, array.astype("<f4").tobytes()) for name, array in weights.items()}
    (folder / "model.safetensors").write_bytes(file_bytes(arrays))
    return folder
