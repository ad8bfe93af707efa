"""The chain of samplers in plain numpy: a full sort, float64, no intervals. Slow and easy to verify; the kernels are
tested against it. Ties are broken by rank: higher logit first, then lower id.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onward.sampling.params import SamplingParams, Shaping
from onward.sampling.rng import XTC_ATTEMPT, uniform

Keep = NDArray[np.bool_]
Probabilities = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that are left, by rank: `ids` int64 [n]; `logits` float64 [n], never ascending."""

    ids: NDArray[np.int64]
    logits: NDArray[np.float64]
    temperature: float = 1.0

    @property
    def probabilities(self) -> Probabilities:
        """The softmax of the logits at the temperature: float64 [n]."""
        weights = np.exp((self.logits - self.logits.max()) / max(self.temperature, 1e-30))
        normalised: Probabilities = weights / weights.sum()
        return normalised

    def kept(self, keep: Keep) -> Candidates:
        return Candidates(self.ids[keep], self.logits[keep], self.temperature)


def draw(row: NDArray[np.float32], params: SamplingParams, shaping: Shaping, choice: int, position: int) -> int:
    """Return a token sampled from an edited row (float32 [vocab_size]), which has a finite maximum; -inf marks tokens
    that must not be sampled. A function of its arguments alone."""
    if params.is_greedy:
        return int(row.argmax())
    chance = uniform(params.seed, choice, position, XTC_ATTEMPT)
    candidates = shaped(row, params, shaping, chance)
    edges = np.cumsum(candidates.probabilities)
    goal = uniform(params.seed, choice, position, 0) * float(edges[-1])
    return int(candidates.ids[min(int(np.searchsorted(edges, goal, side="right")), edges.size - 1)])


def shaped(row: NDArray[np.float32], params: SamplingParams, shaping: Shaping, chance: float) -> Candidates:
    """Return the tokens that all samplers keep. XTC acts if `chance`, a number in [0, 1), is below its probability."""
    ids = np.flatnonzero(row > -np.inf)
    order = ids[np.argsort(-row[ids], kind="stable")]
    left = Candidates(order, row[order].astype(np.float64))
    for name in shaping.order:
        if name == "temperature":
            left = Candidates(left.ids, left.logits, temperature(left, params, shaping))
        else:
            left = left.kept(_keep(name, left, params, shaping, chance))
    return left


def _keep(name: str, left: Candidates, params: SamplingParams, shaping: Shaping, chance: float) -> Keep:
    """Return which of the tokens that are left a sampler keeps."""
    every, p, rank = np.ones(left.ids.size, np.bool_), left.probabilities, np.arange(left.ids.size)
    if name == "top_n_sigma" and shaping.top_n_sigma > 0:
        return np.asarray(left.logits >= left.logits.max() - shaping.top_n_sigma * left.logits.std())
    if name == "min_p" and params.min_p > 0:
        return at_least(p, params.min_p * float(p[0]))
    if name == "top_k" and params.top_k > 0:
        return rank < params.top_k
    if name == "top_p" and params.top_p < 1:
        return np.cumsum(p) - p < params.top_p
    if name == "typical_p" and shaping.typical_p < 1:
        return typical(p, shaping.typical_p)
    if name == "tfs" and shaping.tfs < 1:
        return tail_free(p, shaping.tfs)
    if name == "top_a" and shaping.top_a > 0:
        return at_least(p, shaping.top_a * float(p[0]) ** 2)
    if name == "epsilon_cutoff" and shaping.epsilon_cutoff > 0:
        return at_least(p, shaping.epsilon_cutoff)
    if name == "eta_cutoff" and shaping.eta_cutoff > 0:
        return eta(p, shaping.eta_cutoff)
    if name == "xtc" and chance < shaping.xtc_probability:
        return rank >= np.count_nonzero(p >= shaping.xtc_threshold) - 1
    return every


def temperature(left: Candidates, params: SamplingParams, shaping: Shaping) -> float:
    """Return the temperature: with a range, by the entropy at the temperature before, as a share of the largest one."""
    spread = shaping.dynatemp_range
    if spread <= 0 or left.ids.size < 2:
        return params.temperature
    share = float((left.probabilities * _surprise(left.probabilities)).sum() / np.log(left.ids.size))
    lowest = max(0.0, params.temperature - spread)
    return lowest + (params.temperature + spread - lowest) * float(
        min(max(share, 0.0), 1.0) ** shaping.dynatemp_exponent
    )


def at_least(probabilities: Probabilities, threshold: float) -> Keep:
    """Keep the tokens that are as likely as the threshold, and the first one in any case."""
    keep = probabilities >= threshold
    keep[0] = True
    return keep


def typical(probabilities: Probabilities, mass: float) -> Keep:
    """Keep the tokens whose surprise is closest to the entropy, until their mass exceeds `mass` (Meister et al.:
    "Locally typical sampling", 2022)."""
    surprise = _surprise(probabilities)
    average = float((probabilities * surprise).sum())
    is_below, rank = surprise >= average, np.arange(surprise.size)
    order = np.lexsort((np.where(is_below, rank, -rank), is_below, np.abs(surprise - average)))
    before = np.cumsum(probabilities[order]) - probabilities[order]
    keep = np.zeros(order.size, np.bool_)
    keep[order[: max(1, int(np.count_nonzero(before <= mass)))]] = True
    return keep


def tail_free(probabilities: Probabilities, z: float) -> Keep:
    """Cut where the sorted probabilities stop to bend: their second derivatives, normalised, sum to more than `z`."""
    if probabilities.size <= 2:
        return np.ones(probabilities.size, np.bool_)
    bends = np.abs(np.diff(probabilities, n=2))
    total = float(bends.sum())
    bends = bends / total if total > 1e-6 else np.full(bends.size, 1 / bends.size)
    beyond = np.flatnonzero(np.cumsum(bends) > z)
    beyond = beyond[beyond >= 1]
    return np.arange(probabilities.size) < (int(beyond[0]) if beyond.size else probabilities.size)


def eta(probabilities: Probabilities, cutoff: float) -> Keep:
    """Keep the tokens above a threshold that is lower where the entropy is high (Hewitt et al.: "Truncation sampling as
    language model desmoothing", 2022)."""
    average = float((probabilities * _surprise(probabilities)).sum())
    return at_least(probabilities, min(cutoff, np.sqrt(cutoff) * np.exp(-average)))


def _surprise(probabilities: Probabilities) -> Probabilities:
    """Return -log p in nats, a large number where p underflows to 0."""
    surprise: Probabilities = -np.log(np.maximum(probabilities, 1e-300))
    return surprise
