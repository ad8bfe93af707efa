"""The KV cache: how many blocks fit, the tensors that hold them, and copying one.

Memory is anonymous and untouched until a block is first written, so the process grows with the blocks written so far:
on Linux by huge pages (2 MiB per tensor), elsewhere by pages.
"""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from onward.errors import MemoryTooSmall, ModelFolderError
from onward.runtimes.openvino.library import ov
from onward.runtimes.openvino.step_shape import BLOCK_TOKENS, STEP_SHAPE

MAX_DEFAULT_SEQUENCES = 64
"""Sequences of full length beyond which the default share of memory does not grow."""
MIN_CONTEXT_TOKENS = 256
"""A context is not lowered below this to fit; loading fails instead."""
SCRATCH_BLOCKS = 1
"""Blocks beyond the engine's, for padding rows."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One key or value cache as the compiled graph requires it; `block` is the shape of one block."""

    name: str
    dtype: ov.Type
    block: tuple[int, ...]

    @property
    def block_bytes(self) -> int:
        return prod(self.block) * int(self.dtype.bitwidth) // 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What fits: usable blocks, the context length they allow, and notes about what was lowered."""

    blocks: int
    context_length: int
    notes: tuple[str, ...]


def cache_layers(compiled: ov.CompiledModel) -> list[Layer]:
    """Return the compiled graph's caches. Raises ModelFolderError unless their blocks have BLOCK_TOKENS tokens."""
    layers = []
    for port in compiled.inputs:
        name = port.get_any_name()
        if name.startswith(("key_cache.", "value_cache.")):
            block = tuple(length.get_length() for length in list(port.get_partial_shape())[1:])
            if name.startswith("value_cache.") and block[1] != BLOCK_TOKENS:
                raise ModelFolderError(
                    f"This version of OpenVINO has KV blocks of {block[1]} tokens, but Onward requires {BLOCK_TOKENS}: "
                    "install the version of OpenVINO that Onward asks for."
                )
            layers.append(Layer(name, port.get_element_type(), block))
    return layers


def plan(layers: list[Layer], context_length: int, available_bytes: int, wanted_bytes: int | None) -> Plan:
    """Plan the KV cache in `available_bytes` of memory; `wanted_bytes` None: the default share of it.

    Lowers the context length, down to MIN_CONTEXT_TOKENS, until one sequence fits; raises MemoryTooSmall if none does.
    """
    block_bytes = sum(layer.block_bytes for layer in layers)
    notes = []
    full = STEP_SHAPE.blocks_for(context_length)
    if wanted_bytes is None:
        budget = min(available_bytes // 4, (MAX_DEFAULT_SEQUENCES * full + SCRATCH_BLOCKS) * block_bytes)
    else:
        budget = min(wanted_bytes, available_bytes)
        if budget < wanted_bytes:
            notes.append(f"KV memory lowered from {mib(wanted_bytes)} to {mib(budget)}: no more is free.")
    blocks = budget // block_bytes - SCRATCH_BLOCKS
    fits = blocks * BLOCK_TOKENS
    if fits < context_length:
        if fits < MIN_CONTEXT_TOKENS:
            least = (STEP_SHAPE.blocks_for(MIN_CONTEXT_TOKENS) + SCRATCH_BLOCKS) * block_bytes
            raise MemoryTooSmall(
                f"The KV cache has {mib(budget)} of memory ({mib(available_bytes)} are free), but this model needs "
                f"{mib(least)} for {MIN_CONTEXT_TOKENS} tokens and {mib((full + SCRATCH_BLOCKS) * block_bytes)} for "
                f"its whole context of {context_length} tokens: free some memory, raise --kv-memory, or use a smaller "
                "model."
            )
        notes.append(f"Context lowered from {context_length} to {fits} tokens to fit {mib(budget)} of KV memory.")
        context_length = fits
    return Plan(blocks, context_length, tuple(notes))


def mib(size: int) -> str:
    """Return `size` bytes in MiB or KiB, rounded up, for messages."""
    return f"{-(-size // 2**20):,} MiB" if size >= 2**24 else f"{-(-size // 2**10):,} KiB"


class KVCache:
    """Memory for `blocks` usable blocks and the scratch blocks after them; `tensors`, by input name, share it."""

    def __init__(self, layers: list[Layer], blocks: int) -> None:
        self.blocks = blocks
        self.scratch = blocks
        self.tensors: list[tuple[str, ov.Tensor]] = []
        self._blocks: list[NDArray[np.uint8]] = []
        for layer in layers:
            count = blocks + SCRATCH_BLOCKS
            memory = np.frombuffer(_untouched(count * layer.block_bytes), np.uint8)
            self._blocks.append(memory.reshape(count, layer.block_bytes))
            self.tensors.append((layer.name, ov.Tensor(memory, ov.Shape([count, *layer.block]), layer.dtype)))

    def bind(self, request: ov.InferRequest) -> None:
        """Set the tensors as inputs of `request`; several requests may share a cache."""
        for name, tensor in self.tensors:
            request.set_tensor(name, tensor)

    def copy_block(self, source: int, target: int) -> None:
        """Copy the keys and values of one block, in every layer."""
        for layer in self._blocks:
            layer[target] = layer[source]


def _untouched(size: int) -> mmap.mmap:
    """Return zeroed memory of `size` bytes, none of it resident yet.

    Writing a block for the first time costs a page fault or two in each of the dozens of tensors; a huge page has room
    for hundreds of blocks. Shared memory, Python's default, rarely has huge pages.
    """
    if sys.platform != "linux":
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # the kernel has no huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
