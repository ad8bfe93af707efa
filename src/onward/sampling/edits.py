"""Kernels that write an edited copy of a row: masks, penalties, biases and bans. Pointers as in vocab_blocks.py."""

from __future__ import annotations

from onward.kernels.define import kernel
from onward.kernels.function import Function
from onward.kernels.structures import View
from onward.kernels.values import F32, F32X16, F64, I32, I64, PTR, Value, vec
from onward.sampling.layouts import BLOCK_LOGITS
from onward.sampling.rows import BLOCK_SHIFT, ITEM, STEP, block_at, block_maximum_at, lanes_of, row_at
from onward.sampling.vocab_blocks import NEGATIVE_INFINITY, block_maximum, copy_logits, largest_of_blocks

_MAX_LOGIT = 3.4028234663852886e38
_UNKNOWN = float("nan")
"""The maximum of a block whose logits have changed."""
_BLOCK_WORDS = BLOCK_LOGITS // 32
_WORDS = vec(I32, 16)


@kernel([PTR, PTR, PTR])
def copy_row(f: Function, source: Value, target: Value, mask: Value) -> None:
    """Write the logits of the row `source` to the row `target`, and its block maxima. `mask` (uint32 [words], masks.py)
    allows some of the tokens, the others get -inf; null allows all."""
    raw, copied = row_at(f, source), row_at(f, target)
    is_masked = ~mask.is_null()
    num_words = (raw.size + 31) >> 5
    with f.loop(0, raw.num_blocks) as k:
        logits, edited = block_at(f, raw, k), f.at(copied.logits, k << (BLOCK_SHIFT + 2))
        highest = f.var(F32, block_maximum_at(f, raw, k))
        with f.otherwise(is_masked) as (some, every):
            with some:
                words = f.min(num_words - k * _BLOCK_WORDS, _BLOCK_WORDS)
                highest.value = copy_masked(f, logits, edited, f.at(mask, k * (_BLOCK_WORDS * 4)), words, highest.value)
            with every:
                copy_logits(f, logits, edited)
        f.store(highest.value, copied.maxima, k * 4)


@kernel([PTR, PTR, PTR, I64, F32], F32)
def copy_masked(f: Function, source: Value, target: Value, words: Value, num_words: Value, maximum: Value) -> Value:
    """Copy a block, with -inf where its bit of `words` (uint32 [num_words ≤ 16]) is 0 or missing. Returns its maximum
    from that of the source; _UNKNOWN where only some of its tokens are allowed."""
    some, every = f.var(I32, 0), f.var(I32, -1)
    with f.loop(0, num_words) as w:
        bits = f.load(words, I32, w * 4)
        some.value |= bits
        every.value &= bits
    is_whole = num_words.eq(_BLOCK_WORDS) & every.value.eq(-1)
    with f.otherwise(is_whole) as (all_allowed, not_all):
        with all_allowed:
            copy_logits(f, source, target)
        with not_all:
            _copy_allowed(f, source, target, words, num_words)
    partly = f.select(some.value.eq(0), f.const(F32, NEGATIVE_INFINITY), f.const(F32, _UNKNOWN))
    return f.select(is_whole, maximum, partly)


def _copy_allowed(f: Function, source: Value, target: Value, words: Value, num_words: Value) -> None:
    impossible = f.const(F32X16, NEGATIVE_INFINITY)
    with f.loop(0, _BLOCK_WORDS) as w:
        bits = f.var(I32, 0)
        with f.when(w < num_words):
            bits.value = f.load(words, I32, w * 4)
        for half in range(2):
            lane_bits = f.vconst(_WORDS, [1 << (16 * half + lane) for lane in range(16)])
            is_allowed = (f.splat(bits.value, 16) & lane_bits).ne(0)
            at = w * 128 + 64 * half
            f.store(f.select(is_allowed, lanes_of(f, source, at), impossible), target, at)


@kernel([PTR, I64, F64])
def write_logit(f: Function, pointer: Value, token: Value, value: Value) -> None:
    """Write one logit; clip a finite one to float32's range; mark the maximum of its block as unknown."""
    row = row_at(f, pointer)
    clipped = f.min(f.max(value, -_MAX_LOGIT), _MAX_LOGIT)
    written = f.select(value.eq(NEGATIVE_INFINITY), value, clipped)
    f.store(written.to_f32(), row.logits, token * 4)
    f.store(f.const(F32, _UNKNOWN), row.maxima, (token >> BLOCK_SHIFT) * 4)


@kernel([PTR, PTR, PTR])
def apply_edits(f: Function, pointer: Value, item_pointer: Value, step_pointer: Value) -> None:
    """Apply penalties, biases and bans to a copied row in place; write its maximum.

    Each edit is computed in float64 and rounded to float32. repetition_penalty is the rule of Hugging Face
    transformers, presence and frequency are behaviour §2.9. A bias is plain addition: ±100 moves a logit
    past all others of an ordinary model, which in effect forces or bans a token (behaviour §2.8).
    """
    row, item, step = row_at(f, pointer), View(f, item_pointer, ITEM), View(f, step_pointer, STEP)
    ids, values = step.edit_ids, step.edit_values
    with f.loop(item.penalties_start, item.biases_start) as j:
        token = f.load(ids, I64, j * 8)
        logit, factor = f.load(row.logits, F32, token * 4).to_f64(), item.repetition_penalty
        repeated = f.select(logit > 0.0, logit / factor, logit * factor)
        penalised = repeated - f.load(values, F64, j * 8) * item.frequency_penalty - item.presence_penalty
        write_logit(f, pointer, token, penalised)
    with f.loop(item.biases_start, item.bans_start) as j:
        token = f.load(ids, I64, j * 8)
        write_logit(f, pointer, token, f.load(row.logits, F32, token * 4).to_f64() + f.load(values, F64, j * 8))
    with f.loop(item.bans_start, item.edits_end) as j:
        write_logit(f, pointer, f.load(ids, I64, j * 8), NEGATIVE_INFINITY)
    with f.loop(0, row.num_blocks) as k, f.when(block_maximum_at(f, row, k).is_nan()):
        f.store(block_maximum(f, block_at(f, row, k)), row.maxima, k * 4)
    row.set(maximum=largest_of_blocks(f, row))
