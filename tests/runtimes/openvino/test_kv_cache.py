"""Blocks of the KV cache are copied whole, in every layer."""

from __future__ import annotations

import openvino as ov

from onward.runtimes.openvino.kv_cache import SCRATCH_BLOCKS, KVTensors, Layer, plan

LAYERS = [
    Layer("key_cache.0", ov.Type.u8, (2, 40, 16)),
    Layer("value_cache.0", ov.Type.f16, (2, 32, 16)),
]
BLOCK = 2 * 40 * 16 + 2 * 32 * 16 * 2


def test_a_plan_leaves_room_for_the_scratch_block() -> None:
    assert plan(LAYERS, 512, 400 * BLOCK, None, 64).blocks == 100 - SCRATCH_BLOCKS


def test_the_memory_of_a_block_is_that_of_every_layer_and_nothing_else() -> None:
    cache = KVTensors(LAYERS, 4)
    for number, (_, tensor) in enumerate(cache.tensors):
        tensor.data[...] = 1
        tensor.data[2] = 7 + number
    for source, target in zip(cache.block_memory(2), cache.block_memory(0), strict=True):
        target[:] = source
    for number, (_, tensor) in enumerate(cache.tensors):
        assert [int(tensor.data[block].min()) for block in range(5)] == [7 + number, 1, 7 + number, 1, 1]
        assert [int(tensor.data[block].max()) for block in range(5)] == [7 + number, 1, 7 + number, 1, 1]
