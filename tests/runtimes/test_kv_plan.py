"""How many blocks fit into the memory."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.errors import MemoryTooSmall
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.kv_plan import MAX_DEFAULT_SEQUENCES, MIN_CONTEXT_TOKENS, KVPlan, plan_kv_cache

BLOCK = 3328
"""Bytes."""
BLOCK_TOKENS, SCRATCH_BLOCKS = 32, 1
PLENTY = 1 << 40


def plan(context: int, available: int, wanted: int | None) -> KVPlan:
    return plan_kv_cache(BLOCK, BLOCK_TOKENS, context, available, wanted, scratch_blocks=SCRATCH_BLOCKS)


def test_the_default_share_is_limited_to_what_many_full_sequences_need() -> None:
    made = plan(512, PLENTY, None)
    assert (made.blocks, made.context_length, made.notes) == (MAX_DEFAULT_SEQUENCES * 16, 512, ())


def test_a_model_that_drafts_has_room_for_one_sequence() -> None:
    options = RuntimeOptions(draft_context=512)
    context = options.context_within(2048, "small")
    made = plan_kv_cache(BLOCK, BLOCK_TOKENS, context, PLENTY, None, max_sequences=options.max_sequences)
    assert (made.blocks, made.context_length) == (16, 512)
    assert options.context_within(300, "small") == 300
    assert RuntimeOptions().max_sequences == MAX_DEFAULT_SEQUENCES


def test_the_default_share_is_a_quarter_of_what_is_free() -> None:
    made = plan(512, 400 * BLOCK, None)
    assert made.blocks == 100 - SCRATCH_BLOCKS


def test_no_more_than_is_free_is_allocated_and_a_note_says_so() -> None:
    made = plan(512, 50 * BLOCK, 80 * BLOCK)
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
        made = plan(context, available, wanted)
    except MemoryTooSmall:
        assert (budget // BLOCK - SCRATCH_BLOCKS) * BLOCK_TOKENS < MIN_CONTEXT_TOKENS
        return
    assert (made.blocks + SCRATCH_BLOCKS) * BLOCK <= budget
    assert MIN_CONTEXT_TOKENS <= made.context_length <= min(context, made.blocks * BLOCK_TOKENS)
    assert bool(made.notes) == (made.context_length < context or (wanted or 0) > available)


def test_a_model_with_a_context_below_the_minimum_loads_if_it_fits() -> None:
    assert plan(64, 100 * BLOCK, 4 * BLOCK).context_length == 64


def test_states_have_up_to_half_of_the_memory() -> None:
    def of_states(wanted_blocks: int, max_rows: int = 64) -> KVPlan:
        wanted = wanted_blocks * BLOCK
        return plan_kv_cache(BLOCK, BLOCK_TOKENS, 512, PLENTY, wanted, state_bytes=10 * BLOCK, max_rows=max_rows)

    assert (of_states(200).states, of_states(200).blocks) == (10, 100)
    assert [of_states(10_000, rows).states for rows in (1, 64, 100, 1000)] == [128, 128, 200, 500]
    assert (of_states(40).states, of_states(40).blocks) == (2, 20)
    with pytest.raises(MemoryTooSmall, match="this model needs 91 KiB for 256 tokens"):
        of_states(20)
    whole = plan_kv_cache(BLOCK, BLOCK_TOKENS, 512, PLENTY, None, state_bytes=10 * BLOCK)
    assert (whole.states, whole.blocks) == (115, 1154), "half of what as many sequences and states as possible take"
    assert plan(512, PLENTY, None).states == 0


@given(context=st.integers(MIN_CONTEXT_TOKENS, 20_000), state=st.integers(1, 300 * BLOCK))
def test_the_memory_that_a_model_is_said_to_need_is_enough(context: int, state: int) -> None:
    def of_states(wanted: int) -> KVPlan:
        return plan_kv_cache(BLOCK, BLOCK_TOKENS, context, PLENTY, wanted, state_bytes=state)

    with pytest.raises(MemoryTooSmall) as refused:
        of_states(BLOCK)
    found = re.findall(r"([\d,]+) ([KM])iB for", str(refused.value))
    least, whole = (int(number.replace(",", "")) * {"K": 2**10, "M": 2**20}[unit] for number, unit in found)
    assert of_states(least).context_length >= MIN_CONTEXT_TOKENS
    assert of_states(whole).context_length == context
