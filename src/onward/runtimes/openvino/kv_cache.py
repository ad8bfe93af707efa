"""The KV cache: how many blocks fit, the tensors that hold them, and copying one.

Memory is anonymous and untouched until a block is first written, so the process grows with the blocks written so far:
on Linux by huge pages (2 MiB a tensor), elsewhere by pages.
"""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from onward.engine.model import BLOCK_TOKENS, blocks_for
from onward.errors import MemoryTooSmall, ModelFolderError
from onward.runtimes.openvino.library import ov

SEQUENCES_AT_ONCE = 64
"""Sequences of full length beyond which the default share of memory does not grow."""
LEAST_CONTEXT = 256
"""Tokens: a context shorter than this is refused instead of offered."""
SCRATCH_BLOCKS = 1
"""Blocks beyond the engine's, for padding rows."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One key or value cache as the compiled graph wants it; `block` is the shape of one block."""

    name: str
    kind: ov.Type
    block: tuple[int, ...]

    @property
    def block_bytes(self) -> int:
        return prod(self.block) * int(self.kind.bitwidth) // 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What fits: usable blocks, the context length they allow, and why it is less than was asked."""

    blocks: int
    context_length: int
    notes: tuple[str, ...]


def layers_of(compiled: ov.CompiledModel) -> list[Layer]:
    """The compiled graph's caches. Raises ModelFolderError unless they hold blocks of BLOCK_TOKENS tokens."""
    layers = []
    for port in compiled.inputs:
        name = port.get_any_name()
        if name.startswith(("key_cache.", "value_cache.")):
            block = tuple(length.get_length() for length in list(port.get_partial_shape())[1:])
            if name.startswith("value_cache.") and block[1] != BLOCK_TOKENS:
                raise ModelFolderError(
                    f"this OpenVINO keeps {block[1]} tokens in a KV block, Onward needs {BLOCK_TOKENS}."
                )
            layers.append(Layer(name, port.get_element_type(), block))
    return layers


def plan(layers: list[Layer], context_length: int, available: int, wanted: int | None) -> Plan:
    """Share out `available` bytes; `wanted` bytes of KV memory, None for the default share.

    Lowers the context length, down to LEAST_CONTEXT, until one sequence fits; MemoryTooSmall below that.
    """
    block_bytes = sum(layer.block_bytes for layer in layers)
    notes = []
    full = blocks_for(context_length)
    if wanted is None:
        budget = min(available // 4, (SEQUENCES_AT_ONCE * full + SCRATCH_BLOCKS) * block_bytes)
    else:
        budget = min(wanted, available)
        if budget < wanted:
            notes.append(f"KV memory lowered from {mib(wanted)} to {mib(budget)}: no more is free.")
    blocks = budget // block_bytes - SCRATCH_BLOCKS
    fits = blocks * BLOCK_TOKENS
    if fits < context_length:
        if fits < LEAST_CONTEXT:
            least = (blocks_for(LEAST_CONTEXT) + SCRATCH_BLOCKS) * block_bytes
            raise MemoryTooSmall(
                f"The KV cache got {mib(budget)} ({mib(available)} are free), but {LEAST_CONTEXT} tokens of "
                f"this model need {mib(least)} and its whole context of {context_length} tokens "
                f"{mib((full + SCRATCH_BLOCKS) * block_bytes)}: free some memory, raise the KV memory, "
                "or take a smaller model."
            )
        notes.append(f"Context lowered from {context_length} to {fits} tokens to fit {mib(budget)} of KV memory.")
        context_length = fits
    return Plan(blocks, context_length, tuple(notes))


def mib(size: int) -> str:
    """`size` bytes for a person."""
    return f"{-(-size // 2**20):,} MiB" if size >= 2**24 else f"{-(-size // 2**10):,} KiB"


class KVCache:
    """`blocks` usable blocks, then the scratch blocks. `tensors` by input name share this cache's memory."""

    def __init__(self, layers: list[Layer], blocks: int) -> None:
        self.blocks = blocks
        self.block_bytes = sum(layer.block_bytes for layer in layers)
        self.bytes = self.block_bytes * (blocks + SCRATCH_BLOCKS)
        self.scratch = blocks
        self.tensors: list[tuple[str, ov.Tensor]] = []
        self._blocks: list[NDArray[np.uint8]] = []
        for layer in layers:
            count = blocks + SCRATCH_BLOCKS
            memory = np.frombuffer(_untouched(count * layer.block_bytes), np.uint8)
            self._blocks.append(memory.reshape(count, layer.block_bytes))
            self.tensors.append((layer.name, ov.Tensor(memory, ov.Shape([count, *layer.block]), layer.kind)))

    def bind(self, request: ov.InferRequest) -> None:
        for name, tensor in self.tensors:
            request.set_tensor(name, tensor)

    def copy_block(self, source: int, target: int) -> None:
        for layer in self._blocks:
            layer[target] = layer[source]


def _untouched(size: int) -> mmap.mmap:
    """Zeroed memory of `size` bytes, none of it resident yet.

    A block that is written for the first time costs a page fault or two in each of a model's tensors, and there are
    dozens of them; a huge page has room for hundreds of blocks. Shared memory, Python's default, seldom has any.
    """
    if sys.platform != "linux":
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
