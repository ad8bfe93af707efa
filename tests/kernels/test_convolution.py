"""Short convolutions have the bits of their definition, wherever a step begins and in whichever order blocks lie."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.kernels.activations import ACTIVATION_NAMES, ACTIVATIONS
from onward.kernels.attention_shape import BLOCK_TOKENS, AttentionShape
from onward.kernels.code import Functions
from onward.kernels.convolution import emit_convolve, emit_keep
from onward.kernels.function import Function, Module
from onward.kernels.interpreter import Kernels
from onward.kernels.isa import Isa
from onward.kernels.memory import Rows, Vector, address
from onward.kernels.operations import Writers
from onward.kernels.products import ProductKind
from onward.kernels.records import CONTEXT, CONTEXT_WORDS, CONVOLVE, KEEP, OWN
from onward.kernels.tape import TapeBuilder
from onward.kernels.values import I64, PTR
from tests.examples import slow_but
from tests.kernels.definition import convolved
from tests.kernels.emulated import executable_forms
from tests.kernels.harness import compiled

POSITIONS = 75
CASES = [(64, 3, False), (40, 4, True), (7, 2, False), (16, 40, True)]
"""Width, length, and whether float32 is kept: with whole vectors, others, and neither; longer than a block."""
CUTS = {"at once": [POSITIONS], "one by one": [1] * POSITIONS, "in chunks": [3, 32, 1, 39]}


def shape_of(*, is_wide: bool) -> AttentionShape:
    return AttentionShape(1, 1, 16, 16, is_wide=is_wide)


@cache
def code(form: str, *, is_wide: bool) -> Functions:
    def write(module: Module, isa: Isa) -> None:
        shape = shape_of(is_wide=is_wide)
        operations = {
            "keep": emit_keep(module, shape),
            "convolve": emit_convolve(module, shape, Writers(module, ACTIVATION_NAMES)),
        }
        for name, operation in operations.items():
            f = Function(module, name, [PTR, PTR, I64, PTR], exported=True)
            f.call(operation, f.args)
            f.ret()

    return compiled(write, executable_forms().get(form))


def numbers(width: int, length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Rows of a sequence and weights; some products exceed float16."""
    random = np.random.default_rng(width)
    rows = random.normal(size=(POSITIONS, 3 * width)).astype(np.float32)
    rows[::7] *= np.float32(1000)
    return rows, random.normal(size=(length, width)).astype(np.float32)


def run(form: str, cuts: list[int], width: int, length: int, *, is_wide: bool) -> NDArray[np.float32]:
    """Both operations, step by step, with a cache whose blocks lie in any order and were used before."""
    rows, weights = numbers(width, length)
    shape, functions = shape_of(is_wide=is_wide), code(form, is_wide=is_wide)
    table = np.array([4, 0, 2], np.int32)
    kept = np.full((5, shape.kept_bytes(width)), 0x7B, np.uint8)
    found = np.full((POSITIONS, -(-width // 32) * 32), np.nan, np.float32)
    scratch, own, counter = np.zeros(found.shape[1] + 64, np.float32), np.zeros(8, np.int64), np.zeros(8, np.int64)
    p, i = ctypes.c_void_p, ctypes.c_int64
    start = 0
    for count in cuts:
        own_rows, positions = rows[start : start + count], np.arange(start, start + count)
        tables = np.full(count, address(table), np.int64)
        context = np.zeros(CONTEXT_WORDS, np.int64)
        CONTEXT.set(
            context, rows=count, threads=1, positions=positions, tables=tables, scratch=scratch,
            scratch_stride=scratch.nbytes,
        )  # fmt: skip
        common: Any = {
            "source": own_rows, "source_stride": rows.strides[0], "width": width, "cache": kept,
            "cache_stride": kept.strides[0],
        }  # fmt: skip
        records = {
            "keep": KEEP.record(0, **common),
            "convolve": CONVOLVE.record(
                0, **common, weights=weights, length=length,
                target=address(found[start:]), target_stride=found.strides[0], form=ACTIVATION_NAMES.index("float32"),
            ),
        }  # fmt: skip
        for name, record in records.items():
            counter[:] = 0
            OWN.set(own, counter=counter, step=0, total=0, is_last=0)
            functions.function(name, [p, p, i, p])(address(record), address(context), 0, address(own))
        start += count
    assert (found[:, width:] == 0).all()
    return found[:, :width]


@pytest.mark.parametrize(("width", "length", "is_wide"), CASES)
@pytest.mark.parametrize("cuts", slow_but(["in chunks"], CUTS))
def test_convolutions_have_the_bits_of_their_definition(cuts: str, width: int, length: int, is_wide: bool) -> None:
    expected = convolved(*numbers(width, length), np.float32 if is_wide else np.float16)
    assert run("host", CUTS[cuts], width, length, is_wide=is_wide).tobytes() == expected.tobytes()


@pytest.mark.parametrize("form", slow_but([], sorted(executable_forms())))
def test_every_form_has_the_bits_of_the_definition(form: str) -> None:
    for width, length, is_wide in CASES:
        expected = convolved(*numbers(width, length), np.float32 if is_wide else np.float16)
        assert run(form, CUTS["in chunks"], width, length, is_wide=is_wide).tobytes() == expected.tobytes()


def test_what_leaves_its_memory_is_refused() -> None:
    shape = shape_of(is_wide=False)
    product = (ProductKind("F32", "float32"),)
    tape = TapeBuilder(Kernels(product, ("F32",), (shape,), has_convolutions=True), 4, 1)
    source, target = Rows.allocate(4, 3 * 4 * 64), Rows.allocate(4, ACTIVATIONS["float32"].row_bytes(64))
    cache = Rows.exactly(2, BLOCK_TOKENS * 64 * 2)
    weights = Vector.of(np.ones(3 * 64, np.float32))
    tape.keep(source, 64, cache)
    tape.convolve(source, 64, weights, cache, target, "float32")
    without = TapeBuilder(Kernels(product, ("F32",), (shape,)), 4, 1)
    calls: list[Callable[[], None]] = [
        lambda: tape.keep(Rows.allocate(3, 3 * 4 * 64), 64, cache),
        lambda: tape.keep(source, 65, cache),
        lambda: tape.keep(source, 64, Rows.exactly(2, BLOCK_TOKENS * 63 * 2)),
        lambda: tape.convolve(source, 64, Vector.of(np.ones(100, np.float32)), cache, target, "float32"),
        lambda: tape.convolve(source, 64, Vector.of(np.ones(32, np.float32)), cache, target, "float32"),
        lambda: tape.convolve(source, 64, weights, cache, Rows.allocate(4, 128), "float32"),
        lambda: tape.convolve(source, 64, weights, cache, target, "int8"),
        lambda: without.keep(source, 64, cache),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"within|weights|compiled without"):
            call()
