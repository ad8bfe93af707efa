"""GGUF files (ggml/docs/gguf.md), version 2 and 3, in one part or several.

Nothing in a file is trusted: every count, length, type and offset is checked against the file before it is used, and
what is wrong is a CheckpointError with a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.cursor import Cursor, MetadataValue
from onward.checkpoints.mapped import mapped
from onward.checkpoints.paths import MAGIC, part_paths
from onward.checkpoints.tensor import Tensor, few_floats
from onward.checkpoints.types import CODEBOOK_TYPES, FLOAT32, NVFP4, TENSOR_TYPES, type_name
from onward.errors import CheckpointError

VERSIONS = (2, 3)
MAX_ENTRIES = 16_384
"""Of the metadata, and of the tensors: the largest known models have two thousand."""
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
_HEAD_BYTES = 24


@dataclass(frozen=True, slots=True)
class GGUF:
    """What a file, or all parts of one, contain. The tensors' data are views of the mapped files."""

    paths: tuple[Path, ...]
    metadata: dict[str, MetadataValue]
    tensors: dict[str, Tensor]


def read_gguf(path: Path) -> GGUF:
    """Read metadata and tensors. Raises CheckpointError for files that are missing, broken, or of another version."""
    paths = part_paths(path)
    metadata, tensors = _read_part(paths[0])
    for other in paths[1:]:
        for name, tensor in _read_part(other)[1].items():
            if name in tensors:
                raise CheckpointError(f"{other} is broken (the tensor {name!r} is in another part too).")
            tensors[name] = tensor
    stated = metadata.get("split.count", 1)
    if isinstance(stated, int) and stated > 1 and stated != len(paths):
        raise CheckpointError(
            f"{path} is one of {stated} parts: keep all of them in one folder, with their original names "
            f"(…-00001-of-{stated:05}.gguf)."
        )
    return GGUF(paths, metadata, _with_factors(tensors, str(path)))


def _with_factors(tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """Return tensors, and those of NVFP4 with the factors that are tensors of their own, ".scale" (llama.cpp's
    `load_tensors`). ".input_scale" is for activations of 4 bits, which neither Onward nor llama.cpp's processors use.
    Raises CheckpointError for another number of factors."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.type != NVFP4 or not name.endswith(".weight"):
            continue
        matrix = name.removesuffix(".weight")
        found.pop(f"{matrix}.input_scale", None)
        scale = found.pop(f"{matrix}.scale", None)
        if scale is None:
            continue
        count = tensor.shape[0] if len(tensor.shape) > 2 else 1
        if scale.type != FLOAT32 or scale.num_rows * scale.shape[-1] != count:
            raise CheckpointError(
                f"{where} has a tensor '{matrix[:80]}.scale' of {scale.type.name} {list(scale.shape)}, instead of "
                f"{count} of F32, for {name[:80]!r}."
            )
        found[name] = replace(tensor, factors=few_floats(scale, where).reshape(-1))
    return found


def without_tensors(begun: bytes | bytearray, where: str) -> bytes:
    """Return a file with the metadata of one that begins with `begun`, and no tensors: that of a whole model, also for
    a part of one. Raises CheckpointError if they are not complete there. `where` names the file."""
    data = bytes(begun)
    cursor = Cursor.of_bytes(data, where)
    _, num_entries = _read_head(cursor)
    kept: list[bytes] = []
    for _ in range(num_entries):
        position = cursor.position
        key = cursor.string()
        cursor.value()
        if not key.startswith("split."):
            kept.append(data[position : cursor.position])
    version = data[len(MAGIC) : len(MAGIC) + 4]
    return b"".join((MAGIC, version, bytes(8), len(kept).to_bytes(8, "little"), *kept))


def _read_part(path: Path) -> tuple[dict[str, MetadataValue], dict[str, Tensor]]:
    file = mapped(path)
    cursor = Cursor(file.read_at, len(file), str(path))
    num_tensors, num_entries = _read_head(cursor)
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_entries):
        key = cursor.string()
        if key in metadata:
            raise cursor.broken(f"the key {key[:80]!r} twice")
        metadata[key] = cursor.value()
    return metadata, _read_tensors(cursor, np.frombuffer(file, np.uint8), num_tensors, _alignment(cursor, metadata))


def _read_head(cursor: Cursor) -> tuple[int, int]:
    """Return the numbers of tensors and of metadata entries."""
    where = cursor.where
    if cursor.size < len(MAGIC) or cursor.number("I").to_bytes(4, "little") != MAGIC:
        raise CheckpointError(f"{where} is not a GGUF file: it does not begin with {MAGIC.decode()!r}.")
    if cursor.size < _HEAD_BYTES:
        raise CheckpointError(f"{where} is cut off after {cursor.size} bytes: download it again.")
    version = cursor.number("I")
    if version not in VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            raise CheckpointError(f"{where} is for big-endian machines: download the little-endian file.")
        raise CheckpointError(f"{where} has version {version} of GGUF; versions 2 and 3 can be read.")
    num_tensors, num_entries = cursor.number("Q"), cursor.number("Q")
    if max(num_tensors, num_entries) > MAX_ENTRIES:
        raise cursor.broken(f"{num_tensors} tensors and {num_entries} metadata entries")
    return num_tensors, num_entries


def _alignment(cursor: Cursor, metadata: dict[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.broken(f"an alignment of {alignment}")
    return alignment


def _read_tensors(cursor: Cursor, content: NDArray[np.uint8], count: int, alignment: int) -> dict[str, Tensor]:
    stated = [_read_tensor(cursor) for _ in range(count)]
    begin = -(-cursor.position // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    ends: list[tuple[int, int]] = []
    for name, shape, number, offset in stated:
        if 0 in shape:  # nothing that anything could be computed from
            continue
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            raise CheckpointError(
                f"{cursor.where}: the tensor {name[:80]!r} has the type {type_name(number)}, which Onward does not "
                "read. Use a file in one of Q4_K_M, Q5_K_M, Q6_K, Q8_0, F16 or BF16."
            )
        if kind.name in CODEBOOK_TYPES and not _has_codebooks():
            raise CheckpointError(
                f"{cursor.where}: the tensor {name[:80]!r} has the type {kind.name}, whose tables are in another "
                "package: `pip install 'onward[gguf]'`, or use a file in one of Q4_K_M, Q5_K_M, Q6_K or Q8_0."
            )
        size = _num_bytes(cursor, name, shape, kind.block_weights, kind.block_bytes)
        if name in tensors or offset % alignment or begin + offset + size > len(content):
            what = f"a tensor {name[:80]!r} that is there twice, not aligned, or not within the file"
            raise _misplaced(cursor, what, [each[2] for each in stated])
        tensors[name] = Tensor(name, shape, kind, content[begin + offset : begin + offset + size])
        ends.append((offset, offset + size))
    if any(after[0] < before[1] for before, after in pairwise(sorted(ends))):
        raise _misplaced(cursor, "tensors that overlap", [each[2] for each in stated])
    return tensors


def _misplaced(cursor: Cursor, what: str, numbers: list[int]) -> CheckpointError:
    """Return the error for tensors whose places do not fit their sizes. `numbers`: of their types."""
    if all(type_name(number) != "Q2_0" for number in numbers):
        return cursor.broken(what)
    return CheckpointError(
        f"{cursor.where} has {what}: either it is broken, or its Q2_0 is that of PrismML's llama.cpp, with blocks of "
        "128 weights instead of 64, which Onward does not read. Use a file whose Q2_0 is llama.cpp's (…-Q2_0_g64.gguf)."
    )


@cache
def _has_codebooks() -> bool:
    return find_spec("gguf") is not None


def _read_tensor(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Return name, shape in numpy's order, type and offset of the next tensor."""
    name = cursor.string()
    num_dimensions = cursor.number("I")
    if num_dimensions > MAX_DIMENSIONS:
        raise cursor.broken(f"a tensor of {num_dimensions} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(num_dimensions))[::-1] or (1,)
    return name, shape, cursor.number("I"), cursor.number("Q")


def _num_bytes(cursor: Cursor, name: str, shape: tuple[int, ...], block_weights: int, block_bytes: int) -> int:
    if shape[-1] % block_weights:
        raise cursor.broken(f"a tensor {name[:80]!r} with the impossible shape {list(shape)}")
    num_weights = 1
    for length in shape:
        num_weights *= length
    return num_weights // block_weights * block_bytes
