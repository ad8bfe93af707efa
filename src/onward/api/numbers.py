"""Log probabilities as JSON has them, in every API."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from onward.text.assembler import TokenRecord

MINUS_INFINITY = -9999.0
"""Represents minus infinity, which JSON lacks."""

Likely = tuple[int, bytes, float]
"""A token that was likely: its id, bytes and log probability."""


@lru_cache(maxsize=1 << 14)
def wire_number(value: float) -> float:
    """Return a float32 as the float with the shortest decimal representation; minus infinity as MINUS_INFINITY.

    Cached: requests that score many continuations of one context repeat the context's values.
    """
    if value == -math.inf:
        return MINUS_INFINITY
    return float(str(np.float32(value)))


def most_likely(record: TokenRecord, num_top: int) -> list[Likely]:
    """Return at most `num_top` of the most likely tokens and the sampled one, best first; of equally likely ones, the
    sampled one comes first."""
    if not num_top:
        return []
    found = {record.token: (record.token, record.token_bytes, wire_number(record.logprob))}
    for token, token_bytes, logprob, _ in record.alternatives:
        found.setdefault(token, (token, token_bytes, wire_number(logprob)))
    return sorted(found.values(), key=lambda likely: -likely[2])[:num_top]
