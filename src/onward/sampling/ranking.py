"""Kernels along a ranking: sums of weights in its order, where they pass a goal, and searches in what descends.

Pointers: `logits` and `weights` to float32 [n], highest first, n ≥ 1, of which 16 can be read from any place on. Sums
are float64: of all, 16 at a time; where a goal is passed, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable

from onward.kernels.define import kernel
from onward.kernels.function import Function
from onward.kernels.values import F32, F32X16, F64, I32, I64, PTR, Value, vec
from onward.sampling.vocab_blocks import places, weights_of

_DOUBLES = vec(F64, 16)


def sum_of(f: Function, size: Value, term: Callable[[Value], Value]) -> Value:
    """Return the sum of `term` (byte) → float32 or float64 [16], without what comes after `size` numbers."""
    total, zero = f.var(_DOUBLES, 0), f.const(_DOUBLES, 0)
    last = size.trunc(I32)
    with f.loop(0, size * 4, 64) as i:
        terms = term(i)
        wide = terms if terms.t == _DOUBLES else terms.to_f64()
        total.value += f.select(places(f, i) < last, wide, zero)
    return f.hsum(total.value)


@kernel([PTR, I64, F32, PTR])
def write_weights(f: Function, logits: Value, size: Value, scale: Value, weights: Value) -> None:
    """Write the weight of each logit, relative to the first."""
    first = f.load(logits, F32)
    with f.loop(0, size * 4, 64) as i:
        f.store(weights_of(f, f.load(logits, F32X16, i), first, scale), weights, i)


@kernel([PTR, I64], F64)
def mass_of(f: Function, weights: Value, size: Value) -> Value:
    """Return the sum of the weights."""
    return sum_of(f, size, lambda i: f.load(weights, F32X16, i))


@kernel([PTR, PTR, I64, F32], F64)
def weighted_distance(f: Function, logits: Value, weights: Value, size: Value, scale: Value) -> Value:
    """Return the sum of weights times distances: how far each logit, times `scale`, is below the first."""
    first = f.load(logits, F32)

    def term(i: Value) -> Value:
        weight = f.load(weights, F32X16, i)
        product = weight * ((first - f.load(logits, F32X16, i)) * scale)
        return f.select(weight > 0.0, product, f.const(F32X16, 0))  # not 0 times infinity

    return sum_of(f, size, term)


@kernel([PTR, I64], F64)
def deviation_of(f: Function, logits: Value, size: Value) -> Value:
    """Return the standard deviation."""
    count = size.to_f64()
    mean = sum_of(f, size, lambda i: f.load(logits, F32X16, i)) / count

    def square(i: Value) -> Value:
        difference = f.load(logits, F32X16, i).to_f64() - mean
        return difference * difference

    return f.sqrt(sum_of(f, size, square) / count)


@kernel([PTR, I64, F64], I64)
def count_at_least(f: Function, numbers: Value, size: Value, bound: Value) -> Value:
    """Return how many numbers, which never ascend, are ≥ bound."""
    low, high = f.var(I64, 0), f.var(I64, size)
    with f.forever() as loop:
        loop.break_if(low.value >= high.value)
        middle = (low.value + high.value) >> 1
        with f.otherwise(f.load(numbers, F32, middle * 4).to_f64() >= bound) as (at_least, below):
            with at_least:
                low.value = middle + 1
            with below:
                high.value = middle
    return low.value


def _count_sums(f: Function, size: Value, term: Callable[[Value], Value], goal: Value, includes_goal: bool) -> Value:
    """Return how many of the sums of the first 1, 2, … terms are < goal, or ≤ goal; nothing after that is read."""
    total, i = f.var(F64, 0), f.var(I64, 0)
    with f.forever() as loop:
        loop.break_if(i.value >= size)
        total.value += term(i.value).to_f64()
        loop.break_if(total.value > goal if includes_goal else total.value >= goal)
        i.value += 1
    return i.value


@kernel([PTR, I64, F64], I64)
def count_up_to(f: Function, weights: Value, size: Value, goal: Value) -> Value:
    """Return how many of the sums of the first 1, 2, … weights are ≤ goal."""
    return _count_sums(f, size, lambda i: f.load(weights, F32, i * 4), goal, True)


@kernel([PTR, I64, F64], I64)
def count_below(f: Function, weights: Value, size: Value, goal: Value) -> Value:
    """Return how many of the sums of the first 1, 2, … weights are < goal."""
    return _count_sums(f, size, lambda i: f.load(weights, F32, i * 4), goal, False)


def bend(f: Function, weights: Value, i: Value) -> Value:
    """Return by how much the weights fall more, or less, before weight i + 1 than after it (float32)."""
    first, second, third = (f.load(weights, F32, (i + k) * 4) for k in range(3))
    return f.fabs((first - second) - (second - third))


@kernel([PTR, I64], F64)
def sum_of_bends(f: Function, weights: Value, size: Value) -> Value:
    """Return the sum of the size - 2 bends of the weights: the absolute second differences."""
    total = f.var(F64, 0)
    with f.loop(0, size - 2) as i:
        total.value += bend(f, weights, i).to_f64()
    return total.value


@kernel([PTR, I64, F64], I64)
def count_of_bends(f: Function, weights: Value, size: Value, goal: Value) -> Value:
    """Return how many of the sums of the first 1, 2, … bends are ≤ goal."""
    return _count_sums(f, size - 2, lambda i: bend(f, weights, i), goal, True)


@kernel([PTR, PTR, I64, F32, F64, F64, PTR])
def find_nearest(
    f: Function, logits: Value, weights: Value, size: Value, scale: Value, centre: Value, goal: Value, result: Value
) -> None:
    """Write the interval (int64 [2]: start, end) of the ranks whose distance is closest to `centre`, as many as have a
    sum of weights above `goal`, else all. Of two that are as close, the lower rank comes first."""
    first = f.load(logits, F32)

    def distance(rank: Value) -> Value:
        """How far above the centre."""
        return ((first - f.load(logits, F32, rank * 4)) * scale).to_f64() - centre

    low, high, total = f.var(I64, _first_above(f, size, distance)), f.var(I64, 0), f.var(F64, 0)
    high.value = low.value
    with f.forever() as loop:
        loop.break_if((low.value <= 0) & (high.value >= size))
        before, after = f.max(low.value - 1, 0), f.min(high.value, size - 1)
        is_closer = -distance(before) <= distance(after)
        is_lower = (high.value >= size) | ((low.value > 0) & is_closer)
        with f.otherwise(is_lower) as (lower, higher):
            with lower:
                low.value = before
                total.value += f.load(weights, F32, before * 4).to_f64()
            with higher:
                total.value += f.load(weights, F32, after * 4).to_f64()
                high.value += 1
        loop.break_if(total.value > goal)
    f.store(low.value, result)
    f.store(high.value, result, 8)


def _first_above(f: Function, size: Value, distance: Callable[[Value], Value]) -> Value:
    """Return how many of the distances, which never descend, are negative."""
    low, high = f.var(I64, 0), f.var(I64, size)
    with f.forever() as loop:
        loop.break_if(low.value >= high.value)
        middle = (low.value + high.value) >> 1
        with f.otherwise(distance(middle) < 0.0) as (negative, others):
            with negative:
                low.value = middle + 1
            with others:
                high.value = middle
    return low.value
