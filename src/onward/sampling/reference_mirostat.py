"""Mirostat in plain numpy: float64 and full sorts, as llama.cpp writes it down. The faster one is tested against it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onward.sampling.choice import ChoiceSampler
from onward.sampling.params import Mirostat
from onward.sampling.rng import uniform

SLOPE_TOKENS = 100


def draw_mirostat(row: NDArray[np.float32], choice: ChoiceSampler, mirostat: Mirostat) -> int:
    """Return a token sampled from an edited row (float32 [vocab_size]), and write the choice's `next_mu`."""
    params, mu = choice.params, choice.mu
    assert mu is not None
    if params.is_greedy:
        return int(row.argmax())
    ids = np.flatnonzero(row > -np.inf)
    ids = ids[np.argsort(-row[ids], kind="stable")]
    logits = row[ids].astype(np.float64) / max(params.temperature, 1e-30)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    count = np.count_nonzero(-np.log2(p) <= mu) if mirostat.version == 2 else _zipf_count(p, mu, row.size)
    p = p[: max(1, count)] / p[: max(1, count)].sum()
    edges = np.cumsum(p)
    goal = uniform(params.seed, choice.choice, choice.position, 0) * float(edges[-1])
    index = min(int(np.searchsorted(edges, goal, side="right")), p.size - 1)
    choice.next_mu = float(mu - mirostat.eta * (-np.log2(p[index]) - mirostat.tau))
    return int(ids[index])


def _zipf_count(p: NDArray[np.float64], mu: float, vocab_size: int) -> int:
    """Return how many tokens version 1 keeps of those with these probabilities, highest first."""
    first = p[:SLOPE_TOKENS]
    if first.size < 2:
        return 1
    t = np.log([(i + 2) / (i + 1) for i in range(first.size - 1)])
    b = np.log(first[:-1] / first[1:])
    s = float((t * b).sum() / (t * t).sum())
    epsilon = s - 1
    with np.errstate(over="ignore"):
        k = np.power((epsilon * np.power(2.0, mu)) / (1 - np.power(float(vocab_size), -epsilon)), 1 / s)
    return int(min(k, vocab_size))
