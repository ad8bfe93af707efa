"""Makes GGUF files, whole ones and broken ones."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from onward.checkpoints.types import TENSOR_TYPES
from tests.examples import examples

NUMBERS = {name: number for number, (name, *_) in TENSOR_TYPES.items()}
"""The number of each type that is read."""
STRING, ARRAY, BOOLEAN, UINT32, INT32, FLOAT32 = 8, 9, 7, 4, 5, 6
Stored = tuple[str, tuple[int, ...], bytes]
"""A tensor's type, its shape in numpy's order, and its bytes."""
Tensors = Mapping[str, Stored | NDArray[Any]]
"""Arrays are stored as float32."""


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def value(given: Any) -> bytes:
    """A metadata value with its type."""
    match given:
        case bool():
            return struct.pack("<I?", BOOLEAN, given)
        case int():
            return struct.pack("<II", UINT32, given)
        case float():
            return struct.pack("<If", FLOAT32, given)
        case str():
            return struct.pack("<I", STRING) + text(given)
        case [str(), *_]:
            return struct.pack("<IIQ", ARRAY, STRING, len(given)) + b"".join(map(text, given))
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(given)}f", ARRAY, FLOAT32, len(given), *given)
        case list():
            return struct.pack(f"<IIQ{len(given)}i", ARRAY, INT32, len(given), *given)
    raise TypeError(given)


def floats(array: NDArray[Any]) -> Stored:
    return "F32", array.shape, np.ascontiguousarray(array, "<f4").tobytes()


def random_blocks(name: str, rows: int, inputs: int, seed: int = 0) -> Stored:
    """A quantised tensor of random bytes, whose scales are small numbers."""
    kind = TENSOR_TYPES[NUMBERS[name]]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows * inputs // kind.block_weights, kind.block_bytes), np.uint8)
    for offset in (SCALES | CODEBOOK_SCALES)[name]:
        scales = random.uniform(0.001, 0.02, len(blocks)).astype("<f4" if name == "Q8_K" else "<f2")
        size = scales.itemsize
        blocks[:, offset : offset + size] = scales.view(np.uint8).reshape(-1, size)
    if name == "MXFP4":
        blocks[:, 0] = random.integers(115, 130, len(blocks))  # an exponent
    if name == "NVFP4":
        blocks[:, :4] &= 31  # of seven bits of a scale: up to 15/16, and those without an exponent
    return name, (rows, inputs), blocks.tobytes()


SCALES = {
    "Q1_0": (0,), "Q2_0": (0,),
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q8_K": (0,), "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (),
    "NVFP4": (),
}  # fmt: skip
"""Where the scales of a block begin, in bytes."""


CODEBOOK_SCALES: dict[str, tuple[int, ...]] = {
    "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,), "IQ1_S": (0,), "IQ1_M": (),
    "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip
"""The same for types that are read by llama.cpp's package."""


def gguf_bytes(metadata: Mapping[str, Any], tensors: Tensors, *, version: int = 3, alignment: int = 32) -> bytes:
    """The bytes of a file."""
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))
    head += b"".join(text(name) + value(given) for name, given in metadata.items())
    content, start = [], 0
    for name, stored in tensors.items():
        kind, shape, data = stored if isinstance(stored, tuple) else floats(stored)
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", NUMBERS[kind], start)
        content += [data, bytes(-len(data) % alignment)]
        start += len(data) + len(content[-1])
    return b"".join([head, bytes(-len(head) % alignment), *content])


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Tensors, **more: int) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors, **more))
    return path


LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


def letters_tokenizer(merges: Sequence[str] = ("a b", "ab c")) -> dict[str, Any]:
    """Metadata of a byte-level tokenizer of the letters, a few merges and an end token."""
    tokens = [*LETTERS, "Ġ", *(merge.replace(" ", "") for merge in merges), "<|end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3],
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }


FUZZ = settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
"""Of property tests of readers."""


def with_bytes(content: bytes, changes: Mapping[int, int]) -> bytes:
    """The bytes, with others at some positions."""
    changed = bytearray(content)
    for position, byte in changes.items():
        changed[position] = byte
    return bytes(changed)
