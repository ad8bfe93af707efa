"""How many KV blocks fit into the memory, and the context that they allow."""

from __future__ import annotations

from dataclasses import dataclass

from onward.errors import MemoryTooSmall

MAX_DEFAULT_SEQUENCES = 64
"""Sequences of full length beyond which the default share of memory does not grow."""
MIN_CONTEXT_TOKENS = 256
"""A context is not lowered below this to fit; loading fails instead."""


@dataclass(frozen=True, slots=True)
class KVPlan:
    """What fits: usable blocks, the context length they allow, and notes about what was lowered."""

    blocks: int
    context_length: int
    notes: tuple[str, ...]


def plan_kv_cache(
    block_bytes: int,
    block_tokens: int,
    context_length: int,
    available_bytes: int,
    wanted_bytes: int | None,
    *,
    scratch_blocks: int = 0,
    max_sequences: int = MAX_DEFAULT_SEQUENCES,
) -> KVPlan:
    """Plan the KV cache in `available_bytes` of memory; `wanted_bytes` None: the default share of it.

    `block_bytes`: of a block of all layers; `scratch_blocks`: blocks that the runtime needs for itself;
    `max_sequences`: see MAX_DEFAULT_SEQUENCES. Lowers the context length, down to MIN_CONTEXT_TOKENS, until one
    sequence fits; raises MemoryTooSmall if none does.
    """
    notes = []
    full = -(-context_length // block_tokens)
    if wanted_bytes is None:
        budget = min(available_bytes // 4, (max_sequences * full + scratch_blocks) * block_bytes)
    else:
        budget = min(wanted_bytes, available_bytes)
        if budget < wanted_bytes:
            notes.append(f"KV memory lowered from {mib(wanted_bytes)} to {mib(budget)}: no more is free.")
    blocks = budget // block_bytes - scratch_blocks
    fits = blocks * block_tokens
    if fits < context_length:
        if fits < MIN_CONTEXT_TOKENS:
            least = (-(-MIN_CONTEXT_TOKENS // block_tokens) + scratch_blocks) * block_bytes
            raise MemoryTooSmall(
                f"The KV cache has {mib(budget)} of memory ({mib(available_bytes)} are free), but this model needs "
                f"{mib(least)} for {MIN_CONTEXT_TOKENS} tokens and {mib((full + scratch_blocks) * block_bytes)} for "
                f"its whole context of {context_length} tokens: free some memory, raise --kv-memory, or use a smaller "
                "model."
            )
        notes.append(f"Context lowered from {context_length} to {fits} tokens to fit {mib(budget)} of KV memory.")
        context_length = fits
    return KVPlan(blocks, context_length, tuple(notes))


def mib(size: int) -> str:
    """Return `size` bytes in MiB or KiB, rounded up, for messages."""
    return f"{-(-size // 2**20):,} MiB" if size >= 2**24 else f"{-(-size // 2**10):,} KiB"
