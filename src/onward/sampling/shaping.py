"""The chain of samplers, for the choices that have others than temperature, min_p, top_k and top_p, or another order.

Each sampler keeps some of the tokens that those before it kept, at least one, and sees their probabilities as if the
others did not exist. "temperature" is one of them: those after it see probabilities at the choice's temperature, those
before it at temperature 1. Tokens are ranked by logit, highest first, then by id, lowest first.

A row is sorted once, by a compiled function. Everything that acts after that keeps an interval of the ranking: min_p,
top_k, top_p, tfs and the cut-offs its first tokens; XTC its last; typical_p those around the entropy, because the
surprise of a token only grows along the ranking. So the state of a chain is a slice of sorted logits, and ids are
looked up once, for the token that is sampled. `reference_shaping` is the same with float64 and full sorts.

All functions are pure and hold no lock: any thread may call them. numpy releases the GIL in those that take long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from onward.sampling.params import SamplingParams, Shaping
from onward.sampling.rng import XTC_ATTEMPT, uniform
from onward.sampling.running_sums import (
    count_below,
    count_of_bends,
    count_up_to,
    nearest,
    sum_in_order,
    sum_of_bends,
)
from onward.sampling.sorting import SortBuffers, sort_descending


@dataclass(frozen=True)
class Ranking:
    """An interval of the ranking of a row: `logits` float32 [n], n ≥ 1, highest first; `start` is its first rank.

    `scale` is 1 / temperature.
    """

    logits: NDArray[np.float32]
    start: int = 0
    scale: float = 1.0

    @cached_property
    def distances(self) -> NDArray[np.float32]:
        """How far each logit at the temperature is below the first: float32 [n]."""
        distances: NDArray[np.float32] = (self.logits[0] - self.logits) * np.float32(self.scale)
        return distances

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """The probabilities, relative to the first: float32 [n]."""
        weights: NDArray[np.float32] = np.exp(-self.distances)
        return weights

    @cached_property
    def mass(self) -> float:
        """The sum of the weights, at least 1."""
        return float(self.weights.sum(dtype=np.float64))

    @cached_property
    def entropy(self) -> float:
        """The entropy in nats."""
        return math.log(self.mass) + float((self.weights * self.distances).sum(dtype=np.float64)) / self.mass

    def first(self, count: int) -> Ranking:
        """Return its first tokens, at least one."""
        return Ranking(self.logits[: max(1, count)], self.start, self.scale)

    def heavier(self, weight: float) -> int:
        """Return how many weights are ≥ weight."""
        return self.weights.size - int(np.searchsorted(self.weights[::-1], weight, side="left"))

    def pick(self, chance: float) -> int:
        """Return the index at which the cumulative probability passes `chance`, a number in [0, 1)."""
        goal = chance * sum_in_order(self.weights)
        return min(count_up_to(self.weights, goal), self.logits.size - 1)


def draw(
    row: NDArray[np.float32],
    params: SamplingParams,
    shaping: Shaping,
    choice: int,
    position: int,
    buffers: SortBuffers,
) -> int:
    """Return a token sampled from an edited row (float32 [vocab_size]), which has a finite maximum; -inf marks tokens
    that must not be sampled. A function of its arguments alone. Overwrites `buffers`."""
    if params.is_greedy:
        return int(row.argmax())
    chance = uniform(params.seed, choice, position, XTC_ATTEMPT)
    kept = shaped(row, params, shaping, chance, buffers)
    return token_at(row, kept, kept.pick(uniform(params.seed, choice, position, 0)), buffers)


def shaped(
    row: NDArray[np.float32], params: SamplingParams, shaping: Shaping, chance: float, buffers: SortBuffers
) -> Ranking:
    """Return what all samplers keep: a view of `buffers`, valid until the next call. XTC acts if `chance`, a number in
    [0, 1), is below its probability."""
    left = Ranking(sort_descending(row, *_bounds(row, params, shaping), buffers))
    for name in shaping.order:
        left = _keep(name, left, params, shaping, chance)
    return left


def token_at(row: NDArray[np.float32], kept: Ranking, index: int, buffers: SortBuffers) -> int:
    """Return the token at an index of `kept`: of equal logits, the lower ids come first."""
    rank = kept.start + index
    value = kept.logits[index]
    ties_above = rank - int(np.searchsorted(-buffers.values[: rank + 1], -value, side="left"))
    return int(np.flatnonzero(row == value)[ties_above])


def _bounds(row: NDArray[np.float32], params: SamplingParams, shaping: Shaping) -> tuple[float, int]:
    """Return a logit below which no token is kept, and a rank behind which none is: what is beyond need not be sorted.
    -inf and the size of the vocabulary where that is not known without the ranking.

    min_p and top_k say so where nothing acts before them but each other and a fixed temperature.
    """
    floor, count, scale = -math.inf, row.size, 1.0
    for name in shaping.order:
        if name == "temperature":
            if shaping.dynatemp_range > 0:
                break
            scale = params.temperature
        elif name == "min_p" and params.min_p > 0:
            # a little lower, because weights are rounded
            floor = float(row.max()) + scale * (math.log(params.min_p) - 1e-4)
        elif name == "top_k" and params.top_k > 0:
            count = min(params.top_k, row.size)
        elif name not in ("min_p", "top_k") and _is_on(name, params, shaping):
            break
    return floor, count


def _is_on(name: str, params: SamplingParams, shaping: Shaping) -> bool:
    """Return whether one of the samplers that look at probabilities leaves tokens out."""
    return {
        "top_n_sigma": shaping.top_n_sigma > 0,
        "top_p": params.top_p < 1,
        "typical_p": shaping.typical_p < 1,
        "tfs": shaping.tfs < 1,
        "top_a": shaping.top_a > 0,
        "epsilon_cutoff": shaping.epsilon_cutoff > 0,
        "eta_cutoff": shaping.eta_cutoff > 0,
        "xtc": shaping.xtc_probability > 0,
    }[name]


def _keep(name: str, left: Ranking, params: SamplingParams, shaping: Shaping, chance: float) -> Ranking:
    """Return what one sampler keeps of what is left; all of it if the sampler is off."""
    if name == "temperature":
        return replace(left, scale=1 / min(max(temperature(left, params, shaping), 1e-30), 1e30))
    if name == "top_n_sigma" and shaping.top_n_sigma > 0:
        deviation = float(left.logits.std(dtype=np.float64))
        bound = float(left.logits[0]) - shaping.top_n_sigma * deviation
        return left.first(int(np.searchsorted(-left.logits, -bound, side="right")))
    if name == "min_p" and params.min_p > 0:
        return left.first(left.heavier(params.min_p))
    if name == "top_k" and params.top_k > 0:
        return left.first(params.top_k)
    if name == "top_p" and params.top_p < 1:
        return left.first(1 + count_below(left.weights, params.top_p * left.mass))
    if name == "typical_p" and shaping.typical_p < 1:
        return typical(left, shaping.typical_p)
    if name == "tfs" and shaping.tfs < 1:
        return left.first(tail_start(left, shaping.tfs))
    if name == "xtc" and chance < shaping.xtc_probability:
        above = max(0, left.heavier(shaping.xtc_threshold * left.mass) - 1)
        return Ranking(left.logits[above:], left.start + above, left.scale)
    cut = _cut_off(name, left, shaping)
    return left if cut is None else left.first(left.heavier(cut))


def _cut_off(name: str, left: Ranking, shaping: Shaping) -> float | None:
    """Return the weight below which a cut-off leaves tokens out; None if it is off."""
    if name == "top_a" and shaping.top_a > 0:
        return shaping.top_a / left.mass
    if name == "epsilon_cutoff" and shaping.epsilon_cutoff > 0:
        return shaping.epsilon_cutoff * left.mass
    if name == "eta_cutoff" and shaping.eta_cutoff > 0:
        # Hewitt et al.: "Truncation sampling as language model desmoothing", 2022
        by_entropy = math.sqrt(shaping.eta_cutoff) * math.exp(-left.entropy)
        return min(shaping.eta_cutoff, by_entropy) * left.mass
    return None


def temperature(left: Ranking, params: SamplingParams, shaping: Shaping) -> float:
    """Return the temperature: with a range, by the entropy of what is left, as a share of the largest possible one (the
    rule of llama.cpp and KoboldCpp)."""
    spread = shaping.dynatemp_range
    if spread <= 0 or left.logits.size < 2:
        return params.temperature
    share = min(max(left.entropy / math.log(left.logits.size), 0.0), 1.0)
    lowest = max(0.0, params.temperature - spread)
    return lowest + (params.temperature + spread - lowest) * float(share**shaping.dynatemp_exponent)


def typical(left: Ranking, share: float) -> Ranking:
    """Keep the tokens whose surprise is closest to the entropy, until their mass exceeds `share` (Meister et al.:
    "Locally typical sampling", 2022)."""
    start, end = nearest(left.distances, left.weights, left.entropy - math.log(left.mass), share * left.mass)
    return Ranking(left.logits[start:end], left.start + start, left.scale)


def tail_start(left: Ranking, share: float) -> int:
    """Return where tail-free sampling cuts: where the second differences of the probabilities, normalised, sum to more
    than `share`."""
    weights = left.weights
    if weights.size <= 2:
        return weights.size
    num_bends, total = weights.size - 2, sum_of_bends(weights)
    if total > 1e-6 * left.mass:
        below = count_of_bends(weights, share * total)
    else:  # as if all were the same
        bends = np.arange(1, num_bends + 1) / num_bends
        below = int(np.searchsorted(bends, share * bends[-1], side="right"))
    return max(1, below) if max(1, below) < num_bends else weights.size
