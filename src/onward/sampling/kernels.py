"""The compiled sampler: `run` samples or scores the items of a step, or the part of one thread, in one call.

What it reads and writes is in layouts.Step. It holds no state and uses nothing of Python: any thread may call it, as
long as no other thread uses the arrays that it writes. Every number is computed in one order by operations that round
equally everywhere (kernels.maths), so tokens and log-probabilities have the same bits on every processor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

from onward import kernels, sampling
from onward.kernels.code import Functions, load
from onward.kernels.define import kernel
from onward.kernels.function import Function, Module
from onward.kernels.isa import Isa
from onward.kernels.maths import log64
from onward.kernels.recipe import Recipe
from onward.kernels.structures import View
from onward.kernels.targets import host
from onward.kernels.values import F32, F64, I64, PTR, Value
from onward.sampling.draws import sample_token
from onward.sampling.edits import apply_edits, copy_row
from onward.sampling.layouts import PADDING
from onward.sampling.outputs import NO_TOKEN_LEFT, NOT_FINITE
from onward.sampling.ranked_draws import CHAIN, draw_by_mirostat, draw_from_chain
from onward.sampling.rows import BLOCK_SHIFT, ITEM, ROW, STEP, logit_at, row_at
from onward.sampling.top_k import find_top_k, first_token_with_maximum, rank_of
from onward.sampling.vocab_blocks import NEGATIVE_INFINITY, masses_above, prepare_row

Run = Callable[[int, int, int], int]
"""(the address of a layouts.Step, the first item, the end) → how many items have no token."""


@kernel([PTR, PTR, PTR, PTR, F64], I64)
def choose_token(
    f: Function, row_pointer: Value, item_pointer: Value, chain_pointer: Value, step_pointer: Value, row_mass: Value
) -> Value:
    """Return the token to score, or sample one. `row_mass` as in draws.sample_token."""
    item, chain = View(f, item_pointer, ITEM), View(f, chain_pointer, CHAIN)
    token = f.var(I64, item.target_token)
    with f.when(token.value < 0), f.otherwise(item.greedy.ne(0)) as (greedy, random):
        with greedy:
            token.value = first_token_with_maximum(f, row_pointer)
        with random, f.otherwise(item.chain.eq(0)) as (usual, chained):
            with usual:
                token.value = sample_token(f, row_pointer, item_pointer, step_pointer, row_mass)
            with chained, f.otherwise(chain.mirostat.eq(0)) as (samplers, mirostat):
                with samplers:
                    token.value = draw_from_chain(f, row_pointer, item_pointer, chain_pointer, step_pointer)
                with mirostat:
                    token.value = draw_by_mirostat(f, row_pointer, item_pointer, chain_pointer, step_pointer)
    return token.value


@kernel([PTR, PTR, I64, I64, F64])
def report(f: Function, row_pointer: Value, step_pointer: Value, i: Value, token: Value, row_mass: Value) -> None:
    """Write the token of item `i`, its rank and log-probability and the most likely tokens: those of the raw row, whose
    mass at temperature 1 is `row_mass`. NaN where no log-probability is asked for."""
    row, step = row_at(f, row_pointer), View(f, step_pointer, STEP)
    item = View(f, f.at(step.items, i * ITEM.size), ITEM)
    f.store(token, step.tokens, i * 8)
    rank, normalizer = f.var(I64, 0), f.var(F64, float("nan"))
    with f.when(item.with_rank.ne(0)):
        rank.value = rank_of(f, row_pointer, token)
    f.store(rank.value, step.ranks, i * 8)
    with f.when(item.num_top >= 0):
        normalizer.value = row.maximum.to_f64() + log64(f, row_mass)
    f.store(normalizer.value, step.normalizers, i * 8)
    logprob = logit_at(f, row, token).to_f64() - normalizer.value
    f.store(logprob.to_f32(), step.logprobs, i * 4)
    num_top = f.min(f.min(item.num_top, step.top_width), row.size)
    with f.when(num_top > 0):
        ids, values = f.at(step.top_ids, i * step.top_width * 8), f.at(step.top_logprobs, i * step.top_width * 4)
        find_top_k(f, row_pointer, num_top, ids, values)
        with f.loop(0, num_top * 4, 4) as j:
            f.store((f.load(values, F32, j).to_f64() - normalizer.value).to_f32(), values, j)


@kernel([PTR, I64, I64], I64)
def run(f: Function, step_pointer: Value, first: Value, end: Value) -> Value:
    """Sample or score items and write the results at their index: NOT_FINITE or NO_TOKEN_LEFT as the token of an item
    that has none. Return how many of those there are.

    A row's block maxima, masses and their sum are computed once for consecutive items that read it, always by the
    same code, so that their bits depend on the row alone.
    """
    step = View(f, step_pointer, STEP)
    raw, edited = _rows(f, step)
    current, row_mass, num_failed = f.var(I64, -1), f.var(F64, 0), f.var(I64, 0)
    with f.loop(first, end) as i:
        item = View(f, f.at(step.items, i * ITEM.size), ITEM)
        with f.when(item.row.ne(current.value)):
            current.value, row_mass.value = item.row, 0.0
            raw.set(logits=f.at(step.logits, item.row * step.vocab_size * 4))
            prepare_row(f, raw.pointer)
        is_plain = item.edits_end.eq(item.penalties_start) & item.mask.eq(0)
        is_usual = item.greedy.eq(0) & item.chain.eq(0) & (item.target_token < 0)
        can_use_row_mass = is_plain & is_usual & item.temperature.eq(1.0)
        is_finite = f.fabs(raw.maximum) < float("inf")
        with f.when(is_finite & row_mass.value.eq(0.0) & ((item.num_top >= 0) | can_use_row_mass)):
            scale = f.const(F32, 1)
            row_mass.value = masses_above(f, raw.pointer, NEGATIVE_INFINITY, raw.size, scale, step.masses)
        with f.when(is_finite & ~is_plain):
            mask = f.at(step.masks, item.mask * step.mask_words * 4)
            copy_row(f, raw.pointer, edited.pointer, f.select(item.mask > 0, mask, f.null()))
            apply_edits(f, edited.pointer, item.pointer, step_pointer)
        final = f.select(is_plain, raw.pointer, edited.pointer)
        has_token = is_finite & (row_at(f, final).maximum > NEGATIVE_INFINITY)
        with f.otherwise(has_token) as (sampled, failed):
            with sampled:
                known = f.select(can_use_row_mass, row_mass.value, f.const(F64, 0))
                chain = f.at(step.chains, i * CHAIN.size)
                token = choose_token(f, final, item.pointer, chain, step_pointer, known)
                report(f, raw.pointer, step_pointer, i, token, row_mass.value)
            with failed:
                reason = f.select(is_finite, f.i64(NO_TOKEN_LEFT), f.i64(NOT_FINITE))
                f.store(reason, step.tokens, i * 8)
                num_failed.value += 1
    return num_failed.value


def _rows(f: Function, step: View) -> tuple[View, View]:
    """Return the row that is read and its edited copy, which is whole blocks."""
    raw, edited = View.on_stack(f, ROW), View.on_stack(f, ROW)
    for row in (raw, edited):
        row.set(size=step.vocab_size, num_blocks=step.num_blocks)
    raw.set(logits=step.logits, tail=step.tail, maxima=step.maxima)
    edited.set(logits=step.edited, maxima=f.at(step.maxima, (step.num_blocks + PADDING) * 4))
    edited.set(tail=f.at(step.edited, (step.vocab_size >> BLOCK_SHIFT) << (BLOCK_SHIFT + 2)))
    return raw, edited


def module_text(isa: Isa) -> str:
    """Return the sampler as LLVM assembly, for a form of the instructions."""
    module = Module("sampling", isa.soft)
    run.export(module)
    return module.text()


def run_of(code: Functions) -> Run:
    """Return the compiled `run`. It releases the GIL."""
    return code.function(run.name, (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64), ctypes.c_int64)


def recipe(isa: Isa) -> Recipe:
    """Return how the sampler's module is written."""
    return Recipe(partial(module_text, isa), ("sampling", isa.name), (kernels, sampling))


_loaded: list[Run] = []


def load_kernels(notify: Callable[[], None] | None = None) -> Run:
    """Return `run` for this machine, loaded once per process; `notify` is called before it is compiled, which happens
    once per machine. Raises kernels.executable_memory.NoExecutableMemory."""
    if not _loaded:
        _loaded.append(run_of(load(recipe(host().isa), notify=notify)))
    return _loaded[0]
