"""Compares two models on the same texts: the difference in bits per byte, how certain it is, and where they differ
most."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 10_000
SEED = 1
CONFIDENCE = 0.95
MIN_TEXTS = 5
"""With fewer texts, resampling says nothing about how certain a difference is."""
NUM_TOKENS = 10
EXCERPT_TOKENS = 8
"""How many tokens before one that differs are shown."""


Records = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Pair:
    """The records of one text by both models."""

    first: dict[str, Any]
    second: dict[str, Any]


def comparison(names: tuple[str, str], first: Records, second: Records) -> dict[str, Any]:
    """Return the result document of two lists of records of the same texts, in the same order."""
    pairs = [Pair(*both) for both in zip(first, second, strict=True)]
    num_bytes = sum(pair.first["num_bytes"] for pair in pairs)
    bits = [_bits(first) / num_bytes, _bits(second) / num_bytes]
    return {
        "models": [
            {
                "name": name,
                "model": records[0]["model"],
                "system_fingerprint": records[0]["system_fingerprint"],
                "bits_per_byte": each,
                "num_tokens": sum(record["num_tokens"] for record in records),
            }
            for name, records, each in zip(names, (first, second), bits, strict=True)
        ],
        "num_texts": len(pairs),
        "num_bytes": num_bytes,
        "difference": bits[1] - bits[0],
        "confidence": CONFIDENCE,
        "interval": interval(pairs),
        "tokens": tokens_that_differ(pairs),
    }


def _bits(records: Records) -> float:
    return -math.fsum(record["logprob"] for record in records) / math.log(2)


def interval(pairs: Sequence[Pair]) -> list[float] | None:
    """Return the confidence interval of the difference (second minus first) in bits per byte, by resampling texts.

    The bootstrap's percentiles over 10,000 resamples with a fixed seed, so that the same scores have the same interval.
    None for fewer than five texts.
    """
    if len(pairs) < MIN_TEXTS:
        return None
    sizes = np.array([pair.first["num_bytes"] for pair in pairs], np.float64)
    bits = np.array([pair.first["logprob"] - pair.second["logprob"] for pair in pairs]) / math.log(2)
    random = np.random.Generator(np.random.PCG64(SEED))
    differences = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        drawn = random.integers(0, len(pairs), len(pairs))
        differences[index] = bits[drawn].sum() / sizes[drawn].sum()
    tail = (1 - CONFIDENCE) / 2
    return [float(each) for each in np.quantile(differences, (tail, 1 - tail))]


def tokens_that_differ(pairs: Sequence[Pair]) -> list[dict[str, Any]] | None:
    """Return the tokens whose log-probabilities differ most, greatest difference first; of a tie the earlier one.

    None where the models have other tokens for a text: their log-probabilities cannot be compared one by one.
    """
    if any(pair.first["token_bytes"] != pair.second["token_bytes"] for pair in pairs):
        return None
    found = heapq.nsmallest(NUM_TOKENS, _differences(pairs))
    return [_difference(pairs[place], index) for _, place, index in found]


def _differences(pairs: Sequence[Pair]) -> Iterator[tuple[float, int, int]]:
    """Yield minus the absolute difference, the place of the pair and the index of every token."""
    for place, pair in enumerate(pairs):
        both = zip(pair.first["token_logprobs"], pair.second["token_logprobs"], strict=True)
        yield from ((-abs(second - first), place, index) for index, (first, second) in enumerate(both))


def _difference(pair: Pair, index: int) -> dict[str, Any]:
    before = [bytes.fromhex(each or "") for each in pair.first["token_bytes"][max(0, index - EXCERPT_TOKENS) : index]]
    return {
        "id": pair.first["id"],
        "index": index,
        "before": b"".join(before).decode("utf-8", "replace"),
        "token": pair.first["tokens"][index],
        "logprobs": [pair.first["token_logprobs"][index], pair.second["token_logprobs"][index]],
        "ranks": [pair.first["ranks"][index], pair.second["ranks"][index]],
    }
