"""Kernels that sample a token by temperature, min_p, top_k and top_p. Pointers as in vocab_blocks.py.

min_p, top_k and top_p each keep a prefix of the ranking, so nothing is ever sorted: a token sampled outside of the
nucleus is rejected, and the next attempt samples among the tokens that rank above it. That is exact, because the
nucleus is a prefix too; the expected number of attempts is logarithmic.
"""

from __future__ import annotations

from onward.kernels.define import kernel
from onward.kernels.function import Function
from onward.kernels.maths import log64
from onward.kernels.structures import View
from onward.kernels.values import F32, F64, I64, PTR, Value
from onward.sampling.rng import GOLDEN_GAMMA
from onward.sampling.rows import ITEM, STEP, logit_at, row_at
from onward.sampling.top_k import BOUND, find_top_k_bound
from onward.sampling.vocab_blocks import NEGATIVE_INFINITY, masses_above, pick_token


@kernel([I64], I64)
def mix(f: Function, word: Value) -> Value:
    """Return SplitMix64's finaliser of a uint64; the same as `rng.mix`."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB
    return word ^ (word >> 31)


@kernel([I64, I64, I64, I64], F64)
def uniform(f: Function, seed: Value, choice: Value, position: Value, attempt: Value) -> Value:
    """Return a float64 in [0, 1) from four uint64; the same as `rng.uniform`."""
    state = mix(f, seed + GOLDEN_GAMMA)
    for counter in (choice, position, attempt):
        state = mix(f, state + (counter + 1) * GOLDEN_GAMMA)
    return (state >> 11).to_f64() * 2.0**-53


def uniform_of(f: Function, item: View, attempt: Value | int) -> Value:
    """Return the random number of a work item for an attempt."""
    return uniform(f, item.seed, item.choice, item.position, attempt)


def scale_of(f: Function, temperature: Value) -> Value:
    """Return 1 / temperature within bounds, as float32, from float64."""
    return f.min(f.max(1.0 / temperature, 1e-30), 1e30).to_f32()


@kernel([PTR, PTR, PTR])
def find_bound(f: Function, pointer: Value, item_pointer: Value, result: Value) -> None:
    """Write the BOUND above which min_p and top_k keep tokens."""
    row, item, bound = row_at(f, pointer), View(f, item_pointer, ITEM), View(f, result, BOUND)
    bound.set(value=NEGATIVE_INFINITY, token=row.size)
    maximum = row.maximum
    with f.when(item.min_p > 0.0):
        lowest = (maximum.to_f64() + item.temperature * log64(f, item.min_p)).to_f32()
        bound.set(value=f.min(maximum, lowest))
    with f.when((item.top_k > 0) & (item.top_k < row.size)):
        by_rank = View.on_stack(f, BOUND)
        find_top_k_bound(f, pointer, item.top_k, by_rank.pointer)
        is_higher = by_rank.value > bound.value
        with f.when(is_higher | (by_rank.value.eq(bound.value) & (by_rank.token < bound.token))):
            bound.set(value=by_rank.value, token=by_rank.token)


@kernel([PTR, PTR, PTR, F64], I64)
def sample_token(f: Function, pointer: Value, item_pointer: Value, step_pointer: Value, row_mass: Value) -> Value:
    """Return a sampled token.

    The step's first masses must be those of the row and `row_mass` (float64) their sum, or `row_mass` is 0 where they
    have not been computed at this temperature. Overwrites the second masses, and the weights.

    Terminates: every rejection leaves fewer tokens, and above the last one left there is nothing, so it is accepted.
    """
    row, item, step = row_at(f, pointer), View(f, item_pointer, ITEM), View(f, step_pointer, STEP)
    scale, bound = scale_of(f, item.temperature), View.on_stack(f, BOUND)
    find_bound(f, pointer, item_pointer, bound.pointer)
    value, token = f.var(F32, bound.value), f.var(I64, bound.token)
    masses, total = f.var(PTR, step.masses), f.var(F64, row_mass)
    own_masses = f.at(step.masses, step.num_blocks * 8)
    with f.when(row_mass.eq(0.0) | (bound.value > NEGATIVE_INFINITY)):
        masses.value = own_masses
        total.value = masses_above(f, pointer, value.value, token.value, scale, own_masses)
    target, attempt, chosen = item.top_p * total.value, f.var(I64, 0), f.var(I64, 0)
    with f.forever() as loop:
        goal = uniform_of(f, item, attempt.value) * total.value
        chosen.value = pick_token(f, pointer, value.value, token.value, scale, masses.value, goal, step.weights)
        loop.break_if(item.top_p >= 1.0)
        value.value, token.value = logit_at(f, row, chosen.value), chosen.value
        masses.value = own_masses
        total.value = masses_above(f, pointer, value.value, token.value, scale, own_masses)
        loop.break_if(total.value < target)
        attempt.value += 1
    return chosen.value
