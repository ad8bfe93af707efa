"""The interval of a row's ranking on which filters work, as kernels see it.

A row is sorted once. Everything that acts after that keeps an interval of the ranking: min_p, top_k, top_p, tfs and
the cut-offs its first tokens; XTC its last; typical_p those around the entropy, because the surprise of a token only
grows along the ranking. So what is left is an interval of sorted logits, and ids are looked up once, for the token that
is sampled. Tokens are ranked by logit, highest first, then by id, lowest first. `candidates` is the same with float64
and full sorts.
"""

from __future__ import annotations

from onward.kernels.function import Function, Variable
from onward.kernels.maths import exp64, log64
from onward.kernels.structures import View
from onward.kernels.values import F32, F64, I1, I64, Value
from onward.sampling import ranking
from onward.sampling.draws import scale_of, uniform_of
from onward.sampling.top_k import nth_token_with


class Interval:
    """An interval of the ranking of a row: the ranks from `start` on, `count` of them, at least one.

    `scale` is 1 / temperature. Weights are written when they are first needed at a start and a scale. `item`: whose
    random numbers it uses.
    """

    def __init__(self, f: Function, step: View, item: View, count: Value, scale: Value | float = 1.0) -> None:
        self.f, self._item, self._sorted, self._weights = f, item, step.sorted, step.sorted_weights
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

    def variable(self, value: Value) -> Variable:
        """Return a variable of float64."""
        return self.f.var(F64, value)

    def log(self, value: Value) -> Value:
        return log64(self.f, value)

    def exp(self, value: Value) -> Value:
        return exp64(self.f, value)

    def uniform(self, attempt: int) -> Value:
        """Return the item's random number for an attempt, in [0, 1) (float64)."""
        return uniform_of(self.f, self._item, attempt)

    def highest(self) -> Value:
        """Return the first logit (float32)."""
        return self.f.load(self.logits, F32)

    def mass(self) -> Value:
        """Return the sum of the weights, at least 1 (float64)."""
        return ranking.mass_of(self.f, self.weights, self.count.value)

    def entropy(self, mass: Value) -> Value:
        """Return the entropy in nats (float64)."""
        f = self.f
        total = ranking.weighted_distance(f, self.logits, self.weights, self.count.value, self.scale.value)
        return log64(f, mass) + total / mass

    def deviation(self) -> Value:
        """Return the standard deviation of the logits (float64)."""
        return ranking.deviation_of(self.f, self.logits, self.count.value)

    def keep_first(self, count: Value) -> None:
        """Keep the first tokens, at least one."""
        self.count.value = self.f.max(self.f.min(count, self.count.value), 1)

    def keep_heavier(self, weight: Value) -> None:
        """Keep the tokens whose weight is at least this (float64), at least one."""
        self.keep_first(self.num_heavier(weight))

    def num_heavier(self, weight: Value) -> Value:
        """Return how many weights are at least this (float64)."""
        return ranking.count_at_least(self.f, self.weights, self.count.value, weight)

    def num_below(self, goal: Value) -> Value:
        """Return how many of the sums of the first 1, 2, … weights are below `goal` (float64)."""
        return ranking.count_below(self.f, self.weights, self.count.value, goal)

    def keep_logits_above(self, bound: Value) -> None:
        """Keep the logits that are at least `bound` (float64)."""
        self.keep_first(ranking.count_at_least(self.f, self.logits, self.count.value, bound))

    def keep_nearest(self, centre: Value, goal: Value) -> None:
        """Keep the tokens that are about `centre` below the first (`distance`; float64), the closest until their mass
        exceeds `goal` (float64)."""
        f, found = self.f, self.f.stack(I64, 2)
        scale, count = self.scale.value, self.count.value
        ranking.find_nearest(f, self.logits, self.weights, count, scale, centre, goal, found)
        start = f.load(found, I64)
        self.keep_from(start, f.load(found, I64, 8) - start)

    def keep_until_bends(self, share: Value) -> None:
        """Keep the tokens before the place at which the second differences of the weights, normalised, sum to more than
        `share` (float64): one at least. Of three tokens at least."""
        f, weights, count = self.f, self.weights, self.count.value
        total, num_bends, below = ranking.sum_of_bends(f, weights, count), count - 2, f.var(I64, 0)
        with f.otherwise(total > self.mass() * 1e-6) as (bent, straight):
            with bent:
                below.value = ranking.count_of_bends(f, weights, count, share * total)
            with straight:  # as if all bends were the same
                below.value = _count_of_equal(f, num_bends, share)
        kept = f.max(below.value, 1)
        with f.when(kept < num_bends):
            self.keep_first(kept)

    def keep_from(self, start: Value, count: Value) -> None:
        """Keep `count` tokens, at least one, from a place within the interval on."""
        self.start.value += start
        self.count.value = count
        self._has_weights.value = 0

    def set_temperature(self, temperature: Value) -> None:
        """Divide the logits by a temperature (float64) from now on."""
        self.scale.value = scale_of(self.f, temperature)
        self._has_weights.value = 0

    def draw(self, mass: Value) -> Value:
        """Return a place, each with its probability: that at which the cumulative one passes the item's random number.
        `mass` is that of the interval."""
        f, goal = self.f, self.uniform(0) * mass
        return f.min(ranking.count_up_to(f, self.weights, self.count.value, goal), self.count.value - 1)

    def distance(self, place: Value) -> Value:
        """Return how far a logit, times the scale, is below the first (float32)."""
        f, logits = self.f, self.logits
        return (f.load(logits, F32) - f.load(logits, F32, place * 4)) * self.scale.value

    def token_at(self, row_pointer: Value, place: Value) -> Value:
        """Return the token at a place: of equal logits, the lower ids come first."""
        f, rank = self.f, self.start.value + place
        value, first = f.load(self._sorted, F32, rank * 4), f.var(I64, rank)
        with f.forever() as loop:
            loop.break_if(first.value <= 0)
            loop.break_if(f.load(self._sorted, F32, first.value * 4 - 4).ne(value))
            first.value -= 1
        return nth_token_with(f, row_pointer, value, rank - first.value)


def _count_of_equal(f: Function, size: Value, share: Value) -> Value:
    """Return how many of 1 / size, 2 / size, … are ≤ share."""
    count = f.var(I64, 0)
    with f.forever() as loop:
        loop.break_if(count.value >= size)
        loop.break_if((count.value + 1).to_f64() / size.to_f64() > share)
        count.value += 1
    return count.value
