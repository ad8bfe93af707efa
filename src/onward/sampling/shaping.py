"""Samplers that cut a distribution in other ways than top_p, top_k and min_p do: in numpy, for the rows that use them.

A row's distribution is that of its edited logits at the choice's temperature. Each sampler keeps some of the tokens
that those before it kept, at least one, and sees their probabilities as if the others did not exist. The order:
top_n_sigma, min_p, top_k, top_p, typical_p, tfs, top_a, epsilon_cutoff, eta_cutoff, XTC. Ties are broken by rank:
higher logit first, then lower id.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onward.sampling.params import SamplingParams, Shaping
from onward.sampling.rng import uniform

XTC_ATTEMPT = 1 << 32
"""The attempt number of XTC's random number: no rejected attempt of another sampler reaches it."""

_FEW = 2048
"""Candidates that are sorted before it is known whether more are needed."""
Keep = NDArray[np.bool_]
Probabilities = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that are left: `ids` int64 [n], ascending; `logits` float64 [n], divided by the temperature."""

    ids: NDArray[np.int64]
    logits: NDArray[np.float64]

    @property
    def probabilities(self) -> Probabilities:
        """The softmax of the logits: float64 [n]."""
        weights = np.exp(self.logits - self.logits.max())
        normalised: Probabilities = weights / weights.sum()
        return normalised

    def kept(self, keep: Keep) -> Candidates:
        return Candidates(self.ids[keep], self.logits[keep])


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
    left = Candidates(ids, row[ids].astype(np.float64) / max(params.temperature, 1e-30))
    if shaping.top_n_sigma > 0:
        left = left.kept(left.logits >= left.logits.max() - shaping.top_n_sigma * left.logits.std())
    if params.min_p > 0:
        left = left.kept(left.logits >= left.logits.max() + min(0.0, np.log(params.min_p)))
    if 0 < params.top_k < left.ids.size:
        left = left.kept(_highest(left.logits, params.top_k))
    if params.top_p < 1:
        left = left.kept(top_p(left.probabilities, params.top_p))
    if shaping.typical_p < 1:
        left = left.kept(typical(left.probabilities, shaping.typical_p))
    if shaping.tfs < 1:
        left = left.kept(tail_free(left.probabilities, shaping.tfs))
    if shaping.top_a > 0:
        probabilities = left.probabilities
        left = left.kept(at_least(probabilities, shaping.top_a * float(probabilities.max()) ** 2))
    if shaping.epsilon_cutoff > 0:
        left = left.kept(at_least(left.probabilities, shaping.epsilon_cutoff))
    if shaping.eta_cutoff > 0:
        left = left.kept(eta(left.probabilities, shaping.eta_cutoff))
    if chance < shaping.xtc_probability:
        left = left.kept(xtc(left.probabilities, shaping.xtc_threshold))
    return left


def at_least(probabilities: Probabilities, threshold: float) -> Keep:
    """Keep the tokens that are as likely as the threshold, and the most likely ones in any case."""
    return probabilities >= min(threshold, float(probabilities.max()))


def top_p(probabilities: Probabilities, mass: float) -> Keep:
    """Keep the first tokens of the ranking until their mass reaches `mass`."""
    # Tokens below this threshold have less mass together than the nucleus leaves out: sorting the others suffices.
    likely = np.flatnonzero(at_least(probabilities, (1 - mass) / probabilities.size))
    order = likely[_ranking(probabilities[likely])]
    above = np.cumsum(probabilities[order]) - probabilities[order]
    return _first(order, max(1, int(np.count_nonzero(above < mass))), probabilities.size)


def typical(probabilities: Probabilities, mass: float) -> Keep:
    """Keep the tokens whose surprise is closest to the entropy, until their mass exceeds `mass` (Meister et al.:
    "Locally typical sampling", 2022)."""
    surprise = _surprise(probabilities)
    entropy = float((probabilities * surprise).sum())
    distances, count = np.abs(surprise - entropy), _FEW
    while True:
        # Those beyond the first `count` are farther away: they need not be sorted if these have the mass.
        is_all = count >= distances.size
        near = np.flatnonzero(distances <= (np.inf if is_all else np.partition(distances, count)[count]))
        order = near[np.argsort(distances[near], kind="stable")]
        mass_of = np.cumsum(probabilities[order])
        if is_all or mass_of[-1] > mass:
            before = mass_of - probabilities[order]
            return _first(order, max(1, int(np.count_nonzero(before <= mass))), distances.size)
        count *= 8


def tail_free(probabilities: Probabilities, z: float) -> Keep:
    """Cut where the sorted probabilities stop to bend: their second derivatives, normalised, sum to more than `z`."""
    if probabilities.size <= 2:
        return np.ones(probabilities.size, np.bool_)
    bends = np.abs(np.diff(np.sort(probabilities)[::-1], n=2))
    total = float(bends.sum())
    bends = bends / total if total > 1e-6 else np.full(bends.size, 1 / bends.size)
    beyond = np.flatnonzero(np.cumsum(bends) > z)
    beyond = beyond[beyond >= 1]
    return _highest(probabilities, int(beyond[0]) if beyond.size else probabilities.size)


def eta(probabilities: Probabilities, cutoff: float) -> Keep:
    """Keep the tokens above a threshold that is lower where the entropy is high (Hewitt et al.: "Truncation sampling as
    language model desmoothing", 2022)."""
    entropy = float((probabilities * _surprise(probabilities)).sum())
    return at_least(probabilities, min(cutoff, np.sqrt(cutoff) * np.exp(-entropy)))


def xtc(probabilities: Probabilities, threshold: float) -> Keep:
    """Of the tokens that are as likely as the threshold, keep the least likely one only; and all that are below it."""
    above = np.flatnonzero(probabilities >= threshold)
    keep = np.ones(probabilities.size, np.bool_)
    if above.size >= 2:
        keep[above[_ranking(probabilities[above])[:-1]]] = False
    return keep


def _surprise(probabilities: Probabilities) -> Probabilities:
    """Return -log p in nats, a large number where p underflows to 0."""
    surprise: Probabilities = -np.log(np.maximum(probabilities, 1e-300))
    return surprise


def _ranking(values: NDArray[np.float64]) -> NDArray[np.intp]:
    return np.argsort(-values, kind="stable")


def _highest(values: NDArray[np.float64], count: int) -> Keep:
    """Return True for the first `count` of the ranking, at least one. Nothing is sorted."""
    place = values.size - count
    threshold = np.partition(values, place)[place]
    keep: Keep = values > threshold
    keep[np.flatnonzero(values == threshold)[: count - int(np.count_nonzero(keep))]] = True
    return keep


def _first(order: NDArray[np.intp], count: int, size: int | None = None) -> Keep:
    """Return bool [size]: True for the first `count` indices of `order`."""
    keep = np.zeros(order.size if size is None else size, np.bool_)
    keep[order[:count]] = True
    return keep
