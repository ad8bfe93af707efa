"""How many blocks fit into the memory."""

from __future__ import annotations

import openvino as ov
from hypothesis import given
from hypothesis import strategies as st

from onward.errors import MemoryTooSmall
from onward.runtimes.kv_plan import MAX_DEFAULT_SEQUENCES, MIN_CONTEXT_TOKENS
from onward.runtimes.openvino.kv_cache import (
    SCRATCH_BLOCKS,
    KVTensors,
    Layer,
    plan,
)
from onward.runtimes.openvino.step_shape import BLOCK_TOKENS

LAYERS = [
    Layer("key_cache.0", ov.Type.u8, (2, 40, 16)),
    Layer("value_cache.0", ov.Type.f16, (2, 32, 16)),
]
BLOCK = 2 * 40 * 16 + 2 * 32 * 16 * 2
PLENTY = 1 << 40


def test_the_default_share_is_limited_to_what_many_full_sequences_need() -> None:
    made = plan(LAYERS, 512, PLENTY, None)
    assert (made.blocks, made.context_length, made.notes) == (MAX_DEFAULT_SEQUENCES * 16, 512, ())


def test_the_default_share_is_a_quarter_of_what_is_free() -> None:
    made = plan(LAYERS, 512, 400 * BLOCK, None)
    assert made.blocks == 100 - SCRATCH_BLOCKS


def test_no_more_than_is_free_is_allocated_and_a_note_says_so() -> None:
    made = plan(LAYERS, 512, 50 * BLOCK, 80 * BLOCK)
    assert made.blocks == 50 - SCRATCH_BLOCKS
    assert "no more is free" in made.notes[0]


@given(
    context=st.integers(MIN_CONTEXT_TOKENS, 5000),
    available=st.integers(0, 3000 * BLOCK),
    wanted=st.none() | st.integers(0, 3000 * BLOCK),
)
def test_a_plan_fits_the_memory_and_one_sequence_fits_the_plan(
    context: int, available: int, wanted: int | None
) -> None:
    budget = available // 4 if wanted is None else min(wanted, available)
    try:
        made = plan(LAYERS, context, available, wanted)
    except MemoryTooSmall:
        assert (budget // BLOCK - SCRATCH_BLOCKS) * BLOCK_TOKENS < MIN_CONTEXT_TOKENS
        return
    assert (made.blocks + SCRATCH_BLOCKS) * BLOCK <= budget
    assert MIN_CONTEXT_TOKENS <= made.context_length <= min(context, made.blocks * BLOCK_TOKENS)
    assert bool(made.notes) == (made.context_length < context or (wanted or 0) > available)


def test_a_model_with_a_context_below_the_minimum_loads_if_it_fits() -> None:
    assert plan(LAYERS, 64, 100 * BLOCK, 4 * BLOCK).context_length == 64


def test_copying_a_block_copies_every_layer_and_nothing_else() -> None:
    cache = KVTensors(LAYERS, 4)
    for number, (_, tensor) in enumerate(cache.tensors):
        tensor.data[...] = 1
        tensor.data[2] = 7 + number
    cache.copy_block(2, 0)
    for number, (_, tensor) in enumerate(cache.tensors):
        assert [int(tensor.data[block].min()) for block in range(5)] == [7 + number, 1, 7 + number, 1, 1]
        assert [int(tensor.data[block].max()) for block in range(5)] == [7 + number, 1, 7 + number, 1, 1]
