"""Rows of logits as kernels read them, and the layouts of the records that they share with Python.

A row is float32 [vocab_size]. It is read in blocks of BLOCK_LOGITS; its last block, where it is not whole, is read from
a copy (`tail`) that is filled up with -inf, so that every block is whole.
"""

from __future__ import annotations

from onward.kernels.function import Function
from onward.kernels.structures import Structure, View
from onward.kernels.values import F32, F32X16, I64, PTR, Value
from onward.sampling.layouts import BLOCK_LOGITS, WORK_ITEM_DTYPE, Step

BLOCK_SHIFT = BLOCK_LOGITS.bit_length() - 1
BLOCK_BYTES = BLOCK_LOGITS * 4

STEP, ITEM = Structure.of_structure(Step), Structure.of_dtype(WORK_ITEM_DTYPE)

ROW = Structure.of_words(logits=PTR, tail=PTR, maxima=PTR, size=I64, num_blocks=I64, maximum=F32)
"""A row of logits, where its last block is copied to, its block maxima and the largest of them."""


def row_at(f: Function, pointer: Value) -> View:
    return View(f, pointer, ROW)


def block_at(f: Function, row: View, k: Value) -> Value:
    """Return a pointer to block `k` of a row: BLOCK_LOGITS logits, 16 of which can be read at a time."""
    return f.select(k.eq(row.size >> BLOCK_SHIFT), row.tail, f.at(row.logits, k << (BLOCK_SHIFT + 2)))


def block_maximum_at(f: Function, row: View, k: Value) -> Value:
    """Return the maximum of block `k` (float32)."""
    return f.load(row.maxima, F32, k * 4)


def logit_at(f: Function, row: View, token: Value) -> Value:
    """Return a logit (float32)."""
    return f.load(row.logits, F32, token * 4)


def lanes_of(f: Function, block: Value, i: Value | int = 0) -> Value:
    """Return 16 logits of a block, from its byte `i` on."""
    return f.load(block, F32X16, i)
