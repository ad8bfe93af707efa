"""safetensors files (huggingface/safetensors, README.md): a length, a JSON object of types, shapes and offsets, bytes.

Nothing in a file is trusted, as in GGUF files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from onward.checkpoints.mapped import mapped
from onward.checkpoints.tensor import Tensor
from onward.checkpoints.types import BFLOAT16, FLOAT8, FLOAT16, FLOAT32, OCTETS, TensorType
from onward.errors import CheckpointError

MAX_HEADER_BYTES = 16_000_000
"""A hundred times the largest one of the models that can be computed. The format's own library takes 100 MB."""
MAX_ENTRIES = 262_144
"""Tensors of a file."""
MAX_DIMENSIONS = 8
_LENGTH_BYTES = 8
_TYPES = {kind.name: kind for kind in (FLOAT32, FLOAT16, BFLOAT16)}
_PACKED = re.compile(r".+_(blocks|scales)")
"""Names of tensors that are parts of others: the codes and exponents of MXFP4, which are bytes."""
_CODES = re.compile(r".+\.weight(_packed)?")
"""Names of the codes of NVFP4, which are bytes, too."""


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_safetensors(path: Path, skipped: tuple[str, ...] = (), *, has_float8: bool = False) -> dict[str, Tensor]:
    """Read the tensors of a file, as views of the mapped file, except those whose names end like one of `skipped` and
    those without elements. `has_float8`: there may be codes of FP8, or of NVFP4, whose scales are other tensors.

    Raises CheckpointError for a file that is missing or broken, or has weights of another type.
    """
    file = mapped(path)
    if len(file) < _LENGTH_BYTES:
        raise CheckpointError(f"{path} is cut off after {len(file)} bytes: download it again.")
    length = int.from_bytes(file.read_at(0, _LENGTH_BYTES), "little")
    if length > min(MAX_HEADER_BYTES, len(file) - _LENGTH_BYTES):
        raise _broken(path, f"a header of {length} bytes")
    begin = _LENGTH_BYTES + length
    content = np.frombuffer(file, np.uint8)[begin:]
    types = {**_TYPES, FLOAT8.name: FLOAT8} if has_float8 else _TYPES
    entries = _entries(path, file.read_at(_LENGTH_BYTES, length))
    found = {
        name: _tensor(path, name, entry, content, types)
        for name, entry in entries.items()
        if not name.endswith(skipped) and 0 not in entry.shape
    }
    if any(after[0] < before[1] for before, after in pairwise(sorted(entries[name].data_offsets for name in found))):
        raise _broken(path, "tensors that overlap")
    return found


def _entries(path: Path, header: bytes) -> dict[str, _Entry]:
    """Return what a header states of each tensor. Nothing but the entries is built: a header may nest anything."""
    try:
        stated = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        stated.pop("__metadata__", None)
        if len(stated) > MAX_ENTRIES:
            raise _broken(path, f"{len(stated)} tensors")
        return {name: msgspec.json.decode(entry, type=_Entry) for name, entry in stated.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _broken(path, "a header that states no tensors") from None


def _tensor(
    path: Path,
    name: str,
    entry: _Entry,
    content: np.ndarray[Any, np.dtype[np.uint8]],
    types: Mapping[str, TensorType],
) -> Tensor:
    has_octets = _PACKED.fullmatch(name) or (FLOAT8.name in types and _CODES.fullmatch(name))
    kind = OCTETS if entry.dtype == OCTETS.name and has_octets else types.get(entry.dtype)
    if len(entry.shape) > MAX_DIMENSIONS or min(entry.shape, default=1) < 0:
        raise _broken(path, f"a tensor {name[:80]!r} of an impossible shape")
    if kind is None:
        raise CheckpointError(
            f"{path}: the tensor {name[:80]!r} has the type {entry.dtype[:20]!r}, which Onward does not read: it reads "
            f"{', '.join(types)}. Use the model in one of these, or as a GGUF file."
        )
    begin, end = entry.data_offsets
    size = kind.block_bytes
    for length in entry.shape:
        size *= length
    if not 0 <= begin <= end <= len(content):
        raise _broken(path, f"a tensor {name[:80]!r} that is not within the file")
    if end - begin != size:
        raise _broken(path, f"a tensor {name[:80]!r} of {end - begin} bytes instead of {size}")
    return Tensor(name, tuple(entry.shape) or (1,), kind, content[begin:end])


def _broken(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is broken (it has {what}): download it again.")
