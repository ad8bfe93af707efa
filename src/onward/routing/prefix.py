"""Names for the beginnings of prompts, the same in every process and version."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

BLOCK_TOKENS = 32
"""Tokens of a KV block: only whole blocks are shared by engines."""
MAX_KEYS = 32
"""Keys of one prompt: more would distinguish only prompts that agree in their first 1,024 tokens."""


def prefix_keys(tokens: Sequence[int]) -> tuple[int, ...]:
    """Return a key of 64 bits for each beginning of a prompt that ends with a whole block, the shortest first.

    A prompt of less than a block has one key, of all its tokens. Equal keys mean equal beginnings, for all purposes of
    routing. Takes about 1 µs per key.
    """
    digest = blake2b(digest_size=8)
    keys: list[int] = []
    for start in range(0, min(len(tokens), MAX_KEYS * BLOCK_TOKENS), BLOCK_TOKENS):
        block = tokens[start : start + BLOCK_TOKENS]
        if len(block) < BLOCK_TOKENS and keys:
            break
        digest.update(array("q", block).tobytes())
        keys.append(int.from_bytes(digest.digest(), "little"))
    return tuple(keys) or (0,)
