"""Kernels that sample from a sorted row: by a chain of filters, for choices that have others than temperature, min_p,
top_k and top_p, or another order; and by mirostat.

Each filter keeps some of the tokens that those before it kept, at least one, and sees their probabilities as if the
others did not exist. "temperature" is one of them: those after it see probabilities at the choice's temperature, those
before it at temperature 1.

Mirostat 1 and 2 follow llama.cpp's rules (Basu et al.: "Mirostat: a neural text decoding algorithm", 2020). A choice's
state `mu` is the largest surprise, in bits, of tokens that are kept. After each token it moves by how far that token's
surprise was from the target `tau`. Version 2 keeps the tokens whose surprise is at most mu; version 1 infers from the
slope of the most likely ones, as if they followed Zipf's law, how many have that surprise on average.

`reference` is the same with float64 and full sorts.
"""

from __future__ import annotations

from onward.kernels.define import kernel
from onward.kernels.function import Function
from onward.kernels.maths import LN2, exp64, log64
from onward.kernels.structures import Structure, View
from onward.kernels.values import F32, F64, I64, PTR, Value
from onward.sampling.chains import CHAIN_DTYPE, ORDER_BITS
from onward.sampling.draws import scale_of
from onward.sampling.filters import FILTERS
from onward.sampling.interval import Interval
from onward.sampling.rows import ITEM, STEP, row_at
from onward.sampling.sorting import sort_row
from onward.sampling.vocab_blocks import NEGATIVE_INFINITY

CHAIN = Structure.of_dtype(CHAIN_DTYPE)
SLOPE_TOKENS = 100
"""Version 1 reads the slope from this many of the most likely tokens, as llama.cpp does."""


@kernel([PTR, PTR, PTR, PTR], I64)
def draw_from_chain(
    f: Function, row_pointer: Value, item_pointer: Value, chain_pointer: Value, step_pointer: Value
) -> Value:
    """Return a token sampled from a row, which has a finite maximum; -inf marks tokens that must not be sampled."""
    item, chain = View(f, item_pointer, ITEM), View(f, chain_pointer, CHAIN)
    floor = (row_at(f, row_pointer).maximum.to_f64() - chain.floor).to_f32()
    count = sort_row(f, row_pointer, step_pointer, floor, chain.num_sorted)
    left = Interval(f, View(f, step_pointer, STEP), item, count)
    order = f.var(I64, chain.order)
    with f.forever() as loop:
        loop.break_if(order.value.eq(0))
        for number, each in enumerate(FILTERS.values(), 1):
            with f.when((order.value & ((1 << ORDER_BITS) - 1)).eq(number)):
                each.kernel(left, *(getattr(chain, one.name) for one in each.parameters))
        order.value = order.value >> ORDER_BITS
    return left.token_at(row_pointer, left.draw(left.mass()))


@kernel([PTR, PTR, PTR, PTR], I64)
def draw_by_mirostat(
    f: Function, row_pointer: Value, item_pointer: Value, chain_pointer: Value, step_pointer: Value
) -> Value:
    """Return a token sampled from a row, which has a finite maximum, and write the chain's `next_mu`."""
    item, chain = View(f, item_pointer, ITEM), View(f, chain_pointer, CHAIN)
    vocab_size = row_at(f, row_pointer).size
    count = sort_row(f, row_pointer, step_pointer, NEGATIVE_INFINITY, vocab_size)
    left = Interval(f, View(f, step_pointer, STEP), item, count, scale_of(f, item.temperature))
    kept = f.var(I64, 0)
    with f.otherwise(chain.mirostat.eq(2)) as (second, first):
        with second:
            least = left.mass() * exp64(f, f.min(-chain.mu, 1000.0) * LN2)
            kept.value = left.num_heavier(least)
        with first:
            kept.value = num_by_slope(f, left.logits, count, left.scale.value, chain.mu, vocab_size)
    left.keep_first(kept.value)
    mass = left.mass()
    place = left.draw(mass)
    surprise = left.distance(place).to_f64() + log64(f, mass)
    chain.set(next_mu=chain.mu - chain.eta * (surprise / LN2 - chain.tau))
    return left.token_at(row_pointer, place)


@kernel([PTR, I64, F32, F64, I64], I64)
def num_by_slope(f: Function, logits: Value, count: Value, scale: Value, mu: Value, vocab_size: Value) -> Value:
    """Return how many tokens version 1 keeps, from how far the log-probability of each of the most likely ones is above
    the next one's."""
    products, squares, num_falls = f.var(F64, 0), f.var(F64, 0), f.min(count, SLOPE_TOKENS) - 1
    with f.loop(0, num_falls) as i:
        step = log64(f, 1.0 / (i + 1).to_f64() + 1.0)
        first = f.load(logits, F32)
        before, after = (((first - f.load(logits, F32, (i + k) * 4)) * scale).to_f64() for k in range(2))
        products.value += step * (after - before)
        squares.value += step * step
    log_size = log64(f, vocab_size.to_f64())
    slope, kept = products.value / f.max(squares.value, 1e-300), f.var(I64, vocab_size)
    with f.otherwise(slope < float("inf")) as (finite, infinite):
        with finite, f.when(slope > 0.0):
            exponent = (log64(f, _share(f, slope - 1.0, log_size)) + mu * LN2) / slope
            with f.when(exponent < log_size):
                kept.value = f.max(exp64(f, exponent).to_i64(), 1)
        with infinite:  # all but the first impossible
            kept.value = f.i64(1)
    return kept.value


def _share(f: Function, excess: Value, log_size: Value) -> Value:
    """Return excess / (1 - size ** -excess), which is 1 / log(size) where the excess is 0."""
    power = -excess * log_size
    near = power * (power * (power * (1 / 6) + 0.5) + 1.0)  # of e**power - 1
    difference = f.select(f.fabs(power) < 1e-4, near, exp64(f, power) - 1.0)
    return f.select(f.fabs(excess) > 1e-9, excess / -difference, 1.0 / log_size)
