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
    def cumulative(self) -> NDArray[np.float64]:
        """The sums of the weights, each up to its own: float64 [n]."""
        cumulative: NDArray[np.float64] = np.cumsum(self.weights.astype(np.float64))
        return cumulative

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
    goal = uniform(params.seed, choice, position, 0) * float(kept.cumulative[-1])
    index = min(int(np.searchsorted(kept.cumulative, goal, side="right")), kept.logits.size - 1)
    return token_at(row, kept, index, buffers)


def shaped(
    row: NDArray[np.float32], params: SamplingParams, shaping: Shaping, chance: float, buffers: SortBuffers
) -> Ranking:
    """Return what all samplers keep: a view of `buffers`, valid until the next call. XTC acts if `chance`, a number in
    [0, 1), is below its probability."""
    left = Ranking(sort_descending(row, _floor(row, params, shaping), buffers))
    for name in shaping.order:
        left = _keep(name, left, params, shaping, chance)
    return left


def token_at(row: NDArray[np.float32], kept: Ranking, index: int, buffers: SortBuffers) -> int:
    """Return the token at an index of `kept`: of equal logits, the lower ids come first."""
    rank = kept.start + index
    value = kept.logits[index]
    ties_above = rank - int(np.searchsorted(-buffers.values[: rank + 1], -value, side="left"))
    return int(np.flatnonzero(row == value)[ties_above])


def _floor(row: NDArray[np.float32], params: SamplingParams, shaping: Shaping) -> float:
    """Return a logit below which no token is kept, -inf if it is not known without the ranking.

    That of min_p, where nothing but a fixed temperature acts before it: what is below need not be sorted.
    """
    if params.min_p <= 0 or "min_p" not in shaping.order:
        return -math.inf
    before = set(shaping.order[: shaping.order.index("min_p")])
    if shaping.dynatemp_range > 0 and "temperature" in before:
        return -math.inf
    if before - {"temperature"} - _prefixes(params, shaping):
        return -math.inf
    temperature = params.temperature if "temperature" in before else 1.0
    return float(row.max()) + temperature * (math.log(params.min_p) - 1e-4)  # a little lower: weights are rounded


def _prefixes(params: SamplingParams, shaping: Shaping) -> set[str]:
    """Return the samplers that are off, or that keep first tokens by number: min_p may cut before them as well."""
    is_off = {
        "top_n_sigma": shaping.top_n_sigma <= 0,
        "top_p": params.top_p >= 1,
        "typical_p": shaping.typical_p >= 1,
        "tfs": shaping.tfs >= 1,
        "top_a": shaping.top_a <= 0,
        "epsilon_cutoff": shaping.epsilon_cutoff <= 0,
        "eta_cutoff": shaping.eta_cutoff <= 0,
        "xtc": shaping.xtc_probability <= 0,
    }
    return {"top_k", *(name for name, off in is_off.items() if off)}


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
        return left.first(1 + int(np.searchsorted(left.cumulative, params.top_p * left.mass, side="left")))
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
    offsets = left.distances.astype(np.float64) - (left.entropy - math.log(left.mass))
    split = int(np.searchsorted(offsets, 0.0, side="left"))
    # Two sorted runs, whose merge is what a stable sort of numpy does: from the entropy upwards, and downwards.
    nearest = np.argsort(np.concatenate((-offsets[:split][::-1], offsets[split:])), kind="stable")
    ranks = np.where(nearest < split, split - 1 - nearest, nearest)
    mass_of = np.cumsum(left.weights[ranks], dtype=np.float64)
    kept = ranks[: 1 + int(np.searchsorted(mass_of, share * left.mass, side="right"))]
    low = int(kept.min())
    return Ranking(left.logits[low : int(kept.max()) + 1], left.start + low, left.scale)


def tail_start(left: Ranking, share: float) -> int:
    """Return where tail-free sampling cuts: where the second differences of the probabilities, normalised, sum to more
    than `share`."""
    weights = left.weights
    if weights.size <= 2:
        return weights.size
    falls = weights[:-1] - weights[1:]
    bends = np.cumsum(np.abs(falls[:-1] - falls[1:]), dtype=np.float64)
    if bends[-1] <= 1e-6 * left.mass:
        bends = np.arange(1, bends.size + 1) / bends.size
    beyond = max(1, int(np.searchsorted(bends, share * bends[-1], side="right")))
    return beyond if beyond < bends.size else weights.size
