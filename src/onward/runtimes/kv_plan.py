"""How many KV blocks fit into the memory, and the context that they allow."""

from __future__ import annotations

from dataclasses import dataclass

from onward.errors import MemoryTooSmall

MAX_DEFAULT_SEQUENCES = 64
"""Sequences of full length beyond which the default share of memory does not grow."""
MIN_STATES = 2
STATES_PER_SEQUENCE = 2
"""Of those that are computed together: one that it computes with, and one that it leaves for prompts that begin
alike."""
MIN_CONTEXT_TOKENS = 256
"""A context is not lowered below this to fit; loading fails instead."""


@dataclass(frozen=True, slots=True)
class KVPlan:
    """What fits: usable blocks, the context length they allow, and notes about what was lowered. `states`: how many
    sequences' states fit, of a model whose sequences have some."""

    blocks: int
    context_length: int
    notes: tuple[str, ...]
    states: int = 0


def plan_kv_cache(
    block_bytes: int,
    block_tokens: int,
    context_length: int,
    available_bytes: int,
    wanted_bytes: int | None,
    *,
    scratch_blocks: int = 0,
    max_sequences: int = MAX_DEFAULT_SEQUENCES,
    state_bytes: int = 0,
    max_rows: int = MAX_DEFAULT_SEQUENCES,
) -> KVPlan:
    """Plan the KV cache in `available_bytes` of memory; `wanted_bytes` None: the default share of it.

    `block_bytes`: of a block of all layers; `scratch_blocks`: blocks that the runtime needs for itself;
    `max_sequences`: see MAX_DEFAULT_SEQUENCES; `state_bytes`: of a sequence's state, for which up to half of the memory
    is kept, but room for MIN_STATES in any case: at most STATES_PER_SEQUENCE for each of `max_rows` sequences, or of
    `max_sequences` if those are more. Lowers the context length, down to MIN_CONTEXT_TOKENS, until one sequence
    fits; raises MemoryTooSmall if none does.
    """
    notes = []
    full = -(-context_length // block_tokens)
    most_states = STATES_PER_SEQUENCE * max(max_rows, max_sequences) if state_bytes else 0
    if wanted_bytes is None:
        whole = (max_sequences * full + scratch_blocks) * block_bytes + most_states * state_bytes
        budget = min(available_bytes // 4, whole)
    else:
        budget = min(wanted_bytes, available_bytes)
        if budget < wanted_bytes:
            notes.append(f"KV memory lowered from {mib(wanted_bytes)} to {mib(budget)}: no more is free.")
    states = min(most_states, max(MIN_STATES, budget // 2 // state_bytes)) if state_bytes else 0
    blocks = max(0, budget - states * state_bytes) // block_bytes - scratch_blocks
    fits = blocks * block_tokens
    if fits < context_length:
        if fits < MIN_CONTEXT_TOKENS:
            whole = _with_states((full + scratch_blocks) * block_bytes, state_bytes, most_states)
            least = (-(-MIN_CONTEXT_TOKENS // block_tokens) + scratch_blocks) * block_bytes
            least = _with_states(least, state_bytes, most_states)
            raise MemoryTooSmall(
                f"The KV cache has {mib(budget)} of memory ({mib(available_bytes)} are free), but this model needs "
                f"{mib(least)} for {MIN_CONTEXT_TOKENS} tokens and {mib(whole)} for "
                f"its whole context of {context_length} tokens: free some memory, raise --kv-memory, or use a smaller "
                "model."
            )
        notes.append(f"Context lowered from {context_length} to {fits} tokens to fit {mib(budget)} of KV memory.")
        context_length = fits
    return KVPlan(blocks, context_length, tuple(notes), states)


def _with_states(size: int, state_bytes: int, most_states: int) -> int:
    """Return the memory of which blocks get `size` bytes, and states the rest."""
    return size + (min(most_states, max(MIN_STATES, size // state_bytes)) * state_bytes if state_bytes else 0)


def mib(size: int) -> str:
    """Return `size` bytes in MiB or KiB, rounded up, for messages."""
    return f"{-(-size // 2**20):,} MiB" if size >= 2**24 else f"{-(-size // 2**10):,} KiB"
