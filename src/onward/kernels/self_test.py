"""A product, a softmax and other functions of fixed numbers, whose bits are known: every machine must compute them.

Fingerprints of models do not name the processor, because kernels compute the same bits on all. This is checked, in
milliseconds, where kernels are first loaded: a processor or a compiler that is at fault must not answer for others.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from hashlib import sha256
from typing import Any

from onward import kernels
from onward.kernels import maths
from onward.kernels.activations import ACTIVATION_NAMES, ACTIVATIONS
from onward.kernels.code import Functions, load
from onward.kernels.function import Function, Module
from onward.kernels.interpreter import product_recipes
from onward.kernels.isa import Isa
from onward.kernels.memory import address
from onward.kernels.operations import Writers
from onward.kernels.products import OUT_BYTES, ProductKind
from onward.kernels.recipe import Recipe
from onward.kernels.records import PRODUCT
from onward.kernels.self_test_result import SelfTest
from onward.kernels.targets import Target, host
from onward.kernels.values import F32X16, I64, PTR, Value
from onward.kernels.weight_types import PANEL_ROWS

EXPECTED = "d25501a32be1ce03ad79170c8a447356ed8cac282ec89fbcdb8daf0373c18e5d"
"""The digest that every machine finds. Changes only with what kernels compute."""

_KIND = ProductKind("Q4_K", "int8")
_BLOCKS, _ROWS = 2, (1, 3)
_NUMBERS = 64
_FUNCTIONS = ("exp", "sigmoid", "tanh")
_OF_POSITIVE = ("log", "rsqrt")
"""Functions of numbers above 0: elsewhere they return NaN, whose bits are not promised."""
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def run_self_test() -> SelfTest:
    """Compute the fixed numbers on this machine, once per process. The code is compiled once per machine, and then
    found in the cache. Raises executable_memory.NoExecutableMemory."""
    return SelfTest("kernels", _digest_of_target(host()), EXPECTED)


@cache
def _digest_of_target(target: Target) -> str:
    return digest_of(load(*recipes(target.isa), target=target), target.isa)


def recipes(isa: Isa) -> list[Recipe]:
    """Return how the modules of the test are written: those of a product that many models have, and one of its own."""
    own = Recipe(partial(_own_text, isa), ("self-test", isa.name), (kernels,))
    return [*product_recipes(_KIND, isa), own]


def _own_text(isa: Isa) -> str:
    module = Module("self_test", isa.soft)
    writers = Writers(module, {_KIND.activations})
    f = Function(module, "activate", [PTR, PTR, I64], exported=True)
    source, target, blocks = f.args
    writers.call(f, f.i64(ACTIVATION_NAMES.index(_KIND.activations)), source, target, f.i64(0), blocks)
    f.ret()
    _emit_functions(module)
    return module.text()


def _emit_functions(module: Module) -> None:
    """Emit functions(source, target): a softmax and the functions of _NUMBERS float32, and their float16."""
    f = Function(module, "functions", [PTR, PTR], exported=True)
    source, target = f.args
    vectors = [f.load(source, F32X16, at) for at in range(0, 4 * _NUMBERS, 64)]
    results = _softmax(f, vectors)
    for name in _FUNCTIONS:
        results += [getattr(maths, name)(f, each) for each in vectors]
    for name in _OF_POSITIVE:
        results += [getattr(maths, name)(f, f.fabs(each) + 2.0**-7) for each in vectors]
    results += [each.fptrunc().fpext() for each in vectors]
    for i, result in enumerate(results):
        f.store(result, target, 64 * i)
    f.ret()


def _softmax(f: Function, vectors: list[Value]) -> list[Value]:
    largest, total = vectors[0], f.const(F32X16, 0)
    for each in vectors[1:]:
        largest = f.max(largest, each)
    weights = [maths.exp2(f, each - f.hmax(largest)) for each in vectors]
    for each in weights:
        total = total + each
    return [each / f.hsum(total) for each in weights]


def digest_of(code: Functions, isa: Isa) -> str:
    """Return the digest of what the test's code computes, which was written for `isa`."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    stored = b"".join(_block(i) for i in range(PANEL_ROWS * _BLOCKS))
    weights = ctypes.create_string_buffer(stored, len(stored))
    first = ctypes.addressof(weights)
    pointers = (ctypes.c_int64 * PANEL_ROWS)(*(first + row * len(stored) // PANEL_ROWS for row in range(PANEL_ROWS)))
    panel = ctypes.create_string_buffer(_BLOCKS * _KIND.type.panel_block_bytes)
    interleave = code.function(f"interleave_{_KIND.weights}", [pointer, integer, pointer, integer, integer])
    interleave(pointers, _BLOCKS, panel, 0, 1)
    results = [_product(code, isa, panel, rows) for rows in _ROWS]
    numbers = _floats(_NUMBERS, 70)
    target = ctypes.create_string_buffer(4 * _NUMBERS * (len(_FUNCTIONS) + len(_OF_POSITIVE) + 2))
    code.function("functions", [pointer, pointer])(numbers, target)
    return sha256(b"".join([*results, target.raw])).hexdigest()


def _product(code: Functions, isa: Isa, panel: Any, rows: int) -> bytes:
    """Return float32 [rows, PANEL_ROWS]."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    inputs = _BLOCKS * _KIND.type.block_weights
    row_bytes = ACTIVATIONS[_KIND.activations].row_bytes(inputs)
    source, target = ctypes.create_string_buffer(rows * row_bytes), ctypes.create_string_buffer(rows * OUT_BYTES)
    activate = code.function("activate", [pointer, pointer, integer])
    for row in range(rows):
        activate(_floats(inputs, row), ctypes.addressof(source) + row * row_bytes, inputs // 32)
    record = PRODUCT.record(
        0, panels=ctypes.addressof(panel), panel_bytes=len(panel), blocks=_BLOCKS, num_panels=1,
        source=ctypes.addressof(source), source_stride=row_bytes, target=ctypes.addressof(target),
        target_stride=OUT_BYTES, bias=0, is_added=0, claim=1, scale=0.3,
    )  # fmt: skip
    scratch = ctypes.create_string_buffer(_KIND.scratch_bytes(isa) + 64)
    aligned = -(-ctypes.addressof(scratch) // 64) * 64
    multiply = code.function(f"product_{_KIND.name}", [pointer, integer, integer, integer, pointer])
    multiply(address(record), 0, 1, rows, aligned)
    return target.raw


def _word(i: int) -> int:
    """Return pseudo-random bits."""
    word = (i + 1) * _GOLDEN_GAMMA & (2**64 - 1)
    return (word ^ (word >> 29)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)


def _block(i: int) -> bytes:
    """Return a block of Q4_K: two scales as float16 around 0.01, and any bits after them."""
    bits = b"".join(_word(100 * i + k).to_bytes(8, "little") for k in range(18))
    scales = (0x2100 + _word(i) % 512).to_bytes(2, "little") + (0x2000 + _word(i + 7) % 512).to_bytes(2, "little")
    return scales + bits[4:]


def _floats(count: int, seed: int) -> Any:
    """Return float32 numbers, exact multiples of 1/64 times a power of two, around 0."""
    numbers = ((_word(i + 1000 * seed) % 2001 - 1000) / 64 * 2.0 ** (_word(i) % 5 - 2) for i in range(count))
    return (ctypes.c_float * count)(*numbers)
