"""The chain of samplers as a kernel, for the choices that have others than temperature, min_p, top_k and top_p, or
another order; and the interval of the ranking that it works on.

Each sampler keeps some of the tokens that those before it kept, at least one, and sees their probabilities as if the
others did not exist. "temperature" is one of them: those after it see probabilities at the choice's temperature, those
before it at temperature 1. Tokens are ranked by logit, highest first, then by id, lowest first.

A row is sorted once. Everything that acts after that keeps an interval of the ranking: min_p, top_k, top_p, tfs and
the cut-offs its first tokens; XTC its last; typical_p those around the entropy, because the surprise of a token only
grows along the ranking. So the state of a chain is an interval of sorted logits, and ids are looked up once, for the
token that is sampled. `reference_shaping` is the same with float64 and full sorts.
"""

from __future__ import annotations

from collections.abc import Callable

from onward.kernels.define import kernel
from onward.kernels.function import Function
from onward.kernels.maths import exp64, log64
from onward.kernels.structures import View
from onward.kernels.values import F32, F64, I1, I64, PTR, Value
from onward.sampling import ranking
from onward.sampling.draws import scale_of, uniform_of
from onward.sampling.params import DEFAULT_ORDER
from onward.sampling.rng import XTC_ATTEMPT
from onward.sampling.rows import CHAIN, ITEM, STEP, row_at
from onward.sampling.sorting import sort_row
from onward.sampling.top_k import nth_token_with


class Interval:
    """An interval of the ranking of a row: the ranks from `start` on, `count` of them, at least one.

    `scale` is 1 / temperature. Weights are written when they are first needed at a start and a scale.
    """

    def __init__(self, f: Function, step: View, count: Value, scale: Value | float = 1.0) -> None:
        self.f, self._sorted, self._weights = f, step.sorted, step.sorted_weights
        self.start, self.count, self.scale = f.var(I64, 0), f.var(I64, count), f.var(F32, scale)
        self._has_weights = f.var(I1, 0)

    @property
    def logits(self) -> Value:
        """A pointer to the first logit."""
        return self.f.at(self._sorted, self.start.value * 4)

    @property
    def weights(self) -> Value:
        """A pointer to the weights of `logits`, relative to the first."""
        f = self.f
        with f.when(~self._has_weights.value):
            ranking.write_weights(f, self.logits, self.count.value, self.scale.value, self._weights)
            self._has_weights.value = 1
        return self._weights

    def mass(self) -> Value:
        """Return the sum of the weights, at least 1 (float64)."""
        return ranking.mass_of(self.f, self.weights, self.count.value)

    def entropy(self, mass: Value) -> Value:
        """Return the entropy in nats (float64)."""
        f = self.f
        total = ranking.weighted_distance(f, self.logits, self.weights, self.count.value, self.scale.value)
        return log64(f, mass) + total / mass

    def keep_first(self, count: Value) -> None:
        """Keep the first tokens, at least one."""
        self.count.value = self.f.max(self.f.min(count, self.count.value), 1)

    def keep_heavier(self, weight: Value) -> None:
        """Keep the tokens whose weight is at least this (float64), at least one."""
        self.keep_first(self.num_heavier(weight))

    def num_heavier(self, weight: Value) -> Value:
        """Return how many weights are at least this (float64)."""
        return ranking.count_at_least(self.f, self.weights, self.count.value, weight)

    def keep_from(self, start: Value, count: Value) -> None:
        """Keep `count` tokens, at least one, from a place within the interval on."""
        self.start.value += start
        self.count.value = count
        self._has_weights.value = 0

    def set_scale(self, scale: Value) -> None:
        self.scale.value = scale
        self._has_weights.value = 0

    def pick(self, chance: Value, mass: Value) -> Value:
        """Return the place at which the cumulative probability passes `chance`, a number in [0, 1)."""
        f = self.f
        return f.min(ranking.count_up_to(f, self.weights, self.count.value, chance * mass), self.count.value - 1)

    def distance(self, place: Value) -> Value:
        """Return how far a logit, times the scale, is below the first (float32)."""
        f, logits = self.f, self.logits
        return (f.load(logits, F32) - f.load(logits, F32, place * 4)) * self.scale.value

    def token_at(self, row_pointer: Value, place: Value) -> Value:
        """Return the token at a place: of equal logits, the lower ids come first."""
        f, rank = self.f, self.start.value + place
        value, first = f.load(self._sorted, F32, rank * 4), f.var(I64, rank)
        with f.forever() as turn:
            turn.leave(first.value <= 0)
            turn.leave(f.load(self._sorted, F32, first.value * 4 - 4).ne(value))
            first.value -= 1
        return nth_token_with(f, row_pointer, value, rank - first.value)


class Chain:
    """What the samplers of a chain read, and the interval that they leave."""

    def __init__(self, f: Function, item: View, chain: View, left: Interval) -> None:
        self.f, self.item, self.chain, self.left = f, item, chain, left

    def temperature(self) -> None:
        """Set the temperature: with a range, by the entropy of what is left, as a share of the largest possible one
        (the rule of llama.cpp and KoboldCpp)."""
        f, spread, chosen = self.f, self.chain.dynatemp_range, self.item.temperature
        temperature = f.var(F64, chosen)
        with f.when((spread > 0.0) & (self.left.count.value >= 2)):
            entropy = self.left.entropy(self.left.mass())
            share = f.min(f.max(entropy / log64(f, self.left.count.value.to_f64()), 0.0), 1.0)
            lowest = f.max(chosen - spread, 0.0)
            power = exp64(f, self.chain.dynatemp_exponent * log64(f, share))
            temperature.value = lowest + (chosen + spread - lowest) * power
        self.left.set_scale(scale_of(f, temperature.value))

    def top_n_sigma(self) -> None:
        f, left = self.f, self.left
        with f.when(self.chain.top_n_sigma > 0.0):
            deviation = ranking.deviation_of(f, left.logits, left.count.value)
            bound = f.load(left.logits, F32).to_f64() - self.chain.top_n_sigma * deviation
            left.keep_first(ranking.count_at_least(f, left.logits, left.count.value, bound))

    def min_p(self) -> None:
        with self.f.when(self.item.min_p > 0.0):
            self.left.keep_heavier(self.item.min_p)

    def top_k(self) -> None:
        with self.f.when(self.item.top_k > 0):
            self.left.keep_first(self.item.top_k)

    def top_p(self) -> None:
        f, left = self.f, self.left
        with f.when(self.item.top_p < 1.0):
            goal = self.item.top_p * left.mass()
            left.keep_first(ranking.count_below(f, left.weights, left.count.value, goal) + 1)

    def typical_p(self) -> None:
        """Keep the tokens whose surprise is closest to the entropy, until their mass exceeds the share (Meister et al.:
        "Locally typical sampling", 2022)."""
        f, left = self.f, self.left
        with f.when(self.chain.typical_p < 1.0):
            mass, found = left.mass(), f.stack(I64, 2)
            centre, goal = left.entropy(mass) - log64(f, mass), self.chain.typical_p * mass
            scale, count = left.scale.value, left.count.value
            ranking.find_nearest(f, left.logits, left.weights, count, scale, centre, goal, found)
            start = f.load(found, I64)
            left.keep_from(start, f.load(found, I64, 8) - start)

    def tfs(self) -> None:
        """Cut where the second differences of the probabilities, normalised, sum to more than the share."""
        f, left = self.f, self.left
        with f.when((self.chain.tfs < 1.0) & (left.count.value > 2)):
            weights, count = left.weights, left.count.value
            total, num_bends, below = ranking.sum_of_bends(f, weights, count), count - 2, f.var(I64, 0)
            with f.otherwise(total > left.mass() * 1e-6) as (bent, straight):
                with bent:
                    below.value = ranking.count_of_bends(f, weights, count, self.chain.tfs * total)
                with straight:  # as if all bends were the same
                    below.value = _count_of_equal(f, num_bends, self.chain.tfs)
            kept = f.max(below.value, 1)
            with f.when(kept < num_bends):
                left.keep_first(kept)

    def top_a(self) -> None:
        with self.f.when(self.chain.top_a > 0.0):
            self.left.keep_heavier(self.chain.top_a / self.left.mass())

    def epsilon_cutoff(self) -> None:
        with self.f.when(self.chain.epsilon_cutoff > 0.0):
            self.left.keep_heavier(self.chain.epsilon_cutoff * self.left.mass())

    def eta_cutoff(self) -> None:
        """Cut off by the entropy (Hewitt et al.: "Truncation sampling as language model desmoothing", 2022)."""
        f, left, eta = self.f, self.left, self.chain.eta_cutoff
        with f.when(eta > 0.0):
            mass = left.mass()
            by_entropy = f.sqrt(eta) * exp64(f, -left.entropy(mass))
            left.keep_heavier(f.min(eta, by_entropy) * mass)

    def xtc(self) -> None:
        f, left = self.f, self.left
        with f.when(uniform_of(f, self.item, XTC_ATTEMPT) < self.chain.xtc_probability):
            above = f.max(left.num_heavier(self.chain.xtc_threshold * left.mass()) - 1, 0)
            left.keep_from(above, left.count.value - above)


def _count_of_equal(f: Function, size: Value, share: Value) -> Value:
    """Return how many of 1 / size, 2 / size, … are ≤ share."""
    count = f.var(I64, 0)
    with f.forever() as turn:
        turn.leave(count.value >= size)
        turn.leave((count.value + 1).to_f64() / size.to_f64() > share)
        count.value += 1
    return count.value


@kernel([PTR, PTR, PTR, PTR], I64)
def draw_from_chain(
    f: Function, row_pointer: Value, item_pointer: Value, chain_pointer: Value, step_pointer: Value
) -> Value:
    """Return a token sampled from a row, which has a finite maximum; -inf marks tokens that must not be sampled."""
    item, params = View(f, item_pointer, ITEM), View(f, chain_pointer, CHAIN)
    floor = (row_at(f, row_pointer).maximum.to_f64() - params.floor).to_f32()
    count = sort_row(f, row_pointer, step_pointer, floor, params.num_sorted)
    left = Interval(f, View(f, step_pointer, STEP), count)
    chain = Chain(f, item, params, left)
    actions: dict[int, Callable[[], None]] = {i: getattr(chain, name) for i, name in enumerate(DEFAULT_ORDER, 1)}
    order = f.var(I64, params.order)
    with f.forever() as turn:
        turn.leave(order.value.eq(0))
        for number, act in actions.items():
            with f.when((order.value & 15).eq(number)):
                act()
        order.value = order.value >> 4
    return left.token_at(row_pointer, left.pick(uniform_of(f, item, 0), left.mass()))
