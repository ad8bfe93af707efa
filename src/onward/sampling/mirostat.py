"""Mirostat 1 and 2, as llama.cpp has them (Basu et al.: "Mirostat: a neural text decoding algorithm", 2020).

A choice's state `mu` is the largest surprise, in bits, of tokens that are kept. After each token it moves by how far
that token's surprise was from the target `tau`. Version 2 keeps the tokens whose surprise is at most mu; version 1
infers from the slope of the most likely ones, as if they followed Zipf's law, how many have that surprise on average.
`reference_mirostat` is the same with float64 and full sorts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from onward.sampling.choice import ChoiceSampler
from onward.sampling.params import Mirostat
from onward.sampling.rng import uniform
from onward.sampling.shaping import Ranking, token_at
from onward.sampling.sorting import SortBuffers, sort_descending

SLOPE_TOKENS = 100
"""Version 1 reads the slope from this many of the most likely tokens, as llama.cpp does."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-30, 1e30


def draw_mirostat(row: NDArray[np.float32], choice: ChoiceSampler, mirostat: Mirostat, buffers: SortBuffers) -> int:
    """Return a token sampled from an edited row (float32 [vocab_size]), which has a finite maximum, and write the
    choice's `next_mu`. Both are functions of the arguments alone. Overwrites `buffers`."""
    params, mu = choice.params, choice.mu
    assert mu is not None
    if params.is_greedy:
        return int(row.argmax())
    scale = 1 / min(max(params.temperature, MIN_TEMPERATURE), MAX_TEMPERATURE)
    ranking = Ranking(sort_descending(row, -math.inf, row.size, buffers), scale=scale)
    kept = ranking.first(_num_kept(ranking, mirostat, mu, row.size))
    index = kept.pick(uniform(params.seed, choice.choice, choice.position, 0))
    choice.next_mu = next_mu(mu, float(kept.distances[index]) + math.log(kept.mass), mirostat)
    return token_at(row, kept, index, buffers)


def next_mu(mu: float, surprise: float, mirostat: Mirostat) -> float:
    """Return the state after a token with this surprise, in nats, among those that were kept."""
    return mu - mirostat.eta * (surprise / math.log(2) - mirostat.tau)


def _num_kept(ranking: Ranking, mirostat: Mirostat, mu: float, vocab_size: int) -> int:
    if mirostat.version == 2:
        return ranking.heavier(ranking.mass * 2.0 ** min(-mu, 1000.0))
    distances = ranking.distances[:SLOPE_TOKENS].astype(np.float64)
    return num_by_slope(np.diff(distances), mu, vocab_size)


def num_by_slope(falls: NDArray[np.float64], mu: float, vocab_size: int) -> int:
    """Return how many tokens version 1 keeps, from how far the log-probability of each of the most likely ones is above
    the next one's: float64 [n], n ≥ 0."""
    steps = np.log1p(1 / np.arange(1, falls.size + 1))
    slope = float((steps * falls).sum() / (steps**2).sum()) if falls.size else 0.0
    excess = slope - 1
    if slope <= 0 or not math.isfinite(slope):
        return vocab_size if slope <= 0 else 1  # flat, or all but the first impossible
    # log of (excess · 2^mu / (1 - vocab_size^-excess)) / slope; excess → 0 has the limit 2^mu / log(vocab_size)
    share = excess / -math.expm1(-excess * math.log(vocab_size)) if abs(excess) > 1e-9 else 1 / math.log(vocab_size)
    exponent = (math.log(share) + mu * math.log(2)) / slope
    return max(1, int(math.exp(exponent))) if exponent < math.log(vocab_size) else vocab_size
