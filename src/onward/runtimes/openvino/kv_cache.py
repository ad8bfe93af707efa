"""The KV cache: how many blocks fit, and the tensors that hold them.

Memory is untouched until a block is first written, so the process grows with the blocks written so far: on Linux by
huge pages (2 MiB per tensor), elsewhere by pages. Writing a block for the first time costs a page fault or two in each
of the dozens of tensors; a huge page has room for hundreds of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from onward.errors import ModelFolderError
from onward.kernels.memory import untouched
from onward.runtimes.kv_plan import KVPlan, plan_kv_cache
from onward.runtimes.openvino.library import ov
from onward.runtimes.openvino.window import BLOCK_TOKENS

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


def plan(
    layers: list[Layer], context_length: int, available_bytes: int, wanted_bytes: int | None, max_sequences: int
) -> KVPlan:
    """Plan caches for these layers, with the scratch blocks; see plan_kv_cache."""
    return plan_kv_cache(
        sum(layer.block_bytes for layer in layers), BLOCK_TOKENS, context_length, available_bytes, wanted_bytes,
        scratch_blocks=SCRATCH_BLOCKS, max_sequences=max_sequences,
    )  # fmt: skip


class KVTensors:
    """Memory for `blocks` usable blocks and the scratch blocks after them; `tensors`, by input name, share it."""

    def __init__(self, layers: list[Layer], blocks: int) -> None:
        self.blocks = blocks
        self.scratch = blocks
        self.tensors: list[tuple[str, ov.Tensor]] = []
        self._blocks: list[NDArray[np.uint8]] = []
        for layer in layers:
            count = blocks + SCRATCH_BLOCKS
            memory = untouched(count * layer.block_bytes)[: count * layer.block_bytes]
            self._blocks.append(memory.reshape(count, layer.block_bytes))
            self.tensors.append((layer.name, ov.Tensor(memory, ov.Shape([count, *layer.block]), layer.dtype)))

    def bind(self, request: ov.InferRequest) -> None:
        """Set the tensors as inputs of `request`; several requests may share a cache."""
        for name, tensor in self.tensors:
            request.set_tensor(name, tensor)

    def block_memory(self, block: int) -> list[NDArray[np.uint8]]:
        """Return the keys and values of one block, in every layer: views."""
        return [layer[block] for layer in self._blocks]
