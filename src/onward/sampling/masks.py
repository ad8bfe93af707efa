"""Masks of the tokens that may be sampled: one bit per token of the vocabulary, applied to a copy of a row of logits.

A mask is uint32 [ceil(vocab_size / 32)]; bit i % 32 of word i // 32 is 1 where token i may be sampled. That is the
layout of constrained-output libraries, which fill such words directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.uint32]

_ONE = np.uint32(1)


def num_words(vocab_size: int) -> int:
    """Return the length of a mask."""
    return -(-vocab_size // 32)


def pack_mask(tokens: Iterable[int], vocab_size: int) -> Mask:
    """Return the mask that allows `tokens` only: a new array. Raises ValueError for one outside of the vocabulary."""
    ids = np.fromiter(tokens, np.int64)
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise ValueError("a token to allow is outside of the vocabulary")
    mask = np.zeros(num_words(vocab_size), np.uint32)
    np.bitwise_or.at(mask, ids // 32, np.left_shift(_ONE, (ids % 32).astype(np.uint32)))
    return mask


def unpack_mask(mask: Mask, vocab_size: int) -> NDArray[np.bool_]:
    """Return whether each token may be sampled: bool [vocab_size]."""
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")
    return bits[:vocab_size].astype(bool)


def stack_masks(masks: Sequence[Mask | None], vocab_size: int) -> tuple[NDArray[np.uint32], list[int]]:
    """Return the masks of a step as the kernels read them: uint32 [M + 1, words], whose row 0 stands for "no mask", and
    the row of each entry. A mask that several entries share is stored once. Raises ValueError for another length."""
    rows: dict[int, int] = {}
    kept: list[Mask] = [np.empty(num_words(vocab_size), np.uint32)]
    indices: list[int] = []
    for mask in masks:
        if mask is None:
            indices.append(0)
            continue
        if mask.shape != kept[0].shape:
            raise ValueError(f"a mask does not have {kept[0].size} words")
        if id(mask) not in rows:
            rows[id(mask)] = len(kept)
            kept.append(mask)
        indices.append(rows[id(mask)])
    return np.stack(kept), indices
