"""Float weights by their transformers names: from safetensors, or dequantised from an int8 OpenVINO IR."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = Iterator[tuple[str, NDArray[np.float32]]]
DTYPES = {"F32": np.float32, "F16": np.float16}
NORM = re.compile(r"__module\.(model\.(?:layers\.\d+\.\w+_layernorm|norm))/aten::mul/Multiply_1")
"""The exported name of the product of a norm with its weight."""


def read(folder: Path) -> Weights:
    """Yield (name, float32 array) for each weight of a model folder of either kind. Raises ValueError for other
    dtypes."""
    float_file = folder / "model.safetensors"
    return read_safetensors(float_file) if float_file.is_file() else read_ir(folder / "openvino_model.xml")


def read_safetensors(path: Path) -> Weights:
    """Yield every tensor, one at a time. The format: 8 bytes of header length, a JSON header, raw values.

    Raises ValueError for dtypes other than float32 and float16.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(size))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] not in DTYPES:
                raise ValueError(f"{path}: {name} is {entry['dtype']}; only float32 and float16 are supported")
            begin, end = entry["data_offsets"]
            file.seek(8 + size + begin)
            values = np.frombuffer(file.read(end - begin), DTYPES[entry["dtype"]])
            yield name, values.reshape(entry["shape"]).astype(np.float32)


def read_ir(path: Path) -> Weights:
    """Yield matrices as (values - zero point) × scale; norms, whose constants have no names, by the names of their
    products."""
    import openvino

    model = openvino.Core().read_model(path)
    constants = {node.get_friendly_name(): node for node in model.get_ops() if node.get_type_name() == "Constant"}
    for name, node in constants.items():
        if name.endswith(("_proj.weight", "embed_tokens.weight")):
            zero, scale = constants.get(f"{name}/zero_point"), constants[f"{name}/scale"]
            values = node.data.astype(np.float32) - (0 if zero is None else zero.data.astype(np.float32))
            yield name.removeprefix("self."), values * scale.data.astype(np.float32)
    for node in model.get_ops():
        found = NORM.fullmatch(node.get_friendly_name())
        for source in (value.get_node() for value in node.input_values()) if found else ():
            if found and source.get_type_name() == "Constant":
                yield f"{found[1]}.weight", source.data.astype(np.float32).ravel()
