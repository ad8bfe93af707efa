"""The language: what control flow, memory and comparisons do, seen from what compiled functions return."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from onward.kernels.compiler import compile_object
from onward.kernels.function import Function, Module
from onward.kernels.isa import Isa
from onward.kernels.targets import host
from onward.kernels.values import F32, F64, I1, I32, I64, PTR, Type, Value, vec
from tests.kernels.harness import compiled

C_TYPES: list[tuple[Type, Any]] = [(I64, ctypes.c_int64), (I32, ctypes.c_int32), (F32, ctypes.c_float)]


def called(body: Any, *arguments: int) -> int:
    """Compile a function of int64s that returns an int64; call it."""

    def write(module: Module, isa: Isa) -> None:
        f = Function(module, "test", [I64] * len(arguments), I64, exported=True)
        result = body(f, *f.args)
        f.ret(result.zext(I64) if result.t == I1 else result)

    return int(compiled(write).function("test", [ctypes.c_int64] * len(arguments), ctypes.c_int64)(*arguments))


def test_a_loop_counts_up_to_its_end_by_its_step() -> None:
    def collatz(f: Function, n: Value) -> Value:
        total = f.var(I64, 0)
        with f.loop(3, n, 4) as i:
            total.value = total.value * 10 + i
        return total.value

    assert called(collatz, 12) == 37 * 10 + 11 and called(collatz, 3) == 0 and called(collatz, -5) == 0


def test_an_endless_loop_is_left_and_begun_again_by_conditions() -> None:
    def steps(f: Function, n: Value) -> Value:
        value, count, even = f.var(I64, n), f.var(I64, 0), f.var(I64, 0)
        with f.forever() as loop:
            loop.break_if(value.value.eq(1))
            count.value += 1
            with f.otherwise((value.value & 1).eq(0)) as (halve, triple):
                with halve:
                    value.value = value.value // 2
                    even.value += 1
                with triple:
                    value.value = value.value * 3 + 1
            loop.continue_if(count.value < 5)
        return count.value * 1000 + even.value

    assert called(steps, 6) == 8 * 1000 + 6


def test_a_variable_is_set_each_time_that_its_place_is_reached() -> None:
    def sums(f: Function, n: Value) -> Value:
        total = f.var(I64, 0)
        with f.loop(0, n) as i:
            inner = f.var(I64, 0)
            with f.loop(0, i):
                inner.value += 1
            total.value += inner.value
        return total.value

    assert called(sums, 5) == 10


SIGNS: list[tuple[str, Any, int]] = [
    ("signed <", lambda f, a, b: a < b, 1),
    ("unsigned <", lambda f, a, b: a.below(b), 0),
    ("signed /", lambda f, a, b: a / b, -2),
    ("unsigned //", lambda f, a, b: a // b, (2**64 - 7) // 3),
    ("unsigned %", lambda f, a, b: a % b, (2**64 - 7) % 3),
    ("logical >>", lambda f, a, b: a >> 60, 15),
    ("sar", lambda f, a, b: a.sar(1), -4),
    ("~", lambda f, a, b: ~a, 6),
    ("minimum", lambda f, a, b: f.min(a, b), -7),
    ("maximum", lambda f, a, b: f.max(a, b), 3),
    ("number on the left", lambda f, a, b: 10 - a, 17),
]


@pytest.mark.parametrize(("body", "expected"), [case[1:] for case in SIGNS], ids=[case[0] for case in SIGNS])
def test_integers_are_signed_where_the_operator_says_so(body: Any, expected: int) -> None:
    assert called(body, -7, 3) == expected


NAN = float("nan")
COMPARISONS: list[tuple[str, Any, tuple[int, int, int]]] = [
    ("<", lambda x, y: x < y, (1, 0, 0)),
    (">=", lambda x, y: x >= y, (0, 1, 0)),
    ("==", lambda x, y: x.eq(y), (0, 1, 0)),
    ("!=", lambda x, y: x.ne(y), (1, 0, 1)),
    ("NaN", lambda x, y: y.is_nan(), (0, 0, 1)),
]


@pytest.mark.parametrize(("compare", "expected"), [case[1:] for case in COMPARISONS], ids=[c[0] for c in COMPARISONS])
@pytest.mark.parametrize("t", [F32, F64], ids=str)
def test_a_nan_differs_from_everything(t: Type, compare: Any, expected: tuple[int, int, int]) -> None:
    for other, result in zip((2.0, 1.0, NAN), expected, strict=True):
        assert called(lambda f, other=other: compare(f.const(t, 1.0), f.const(t, other))) == result


def test_memory_is_addressed_in_bytes_and_need_not_be_aligned() -> None:
    def write(module: Module, isa: Isa) -> None:
        f = Function(module, "test", [PTR, I64], exported=True)
        source, offset = f.args
        copy = f.stack(F32, 8)
        f.store(f.load(source, vec(F32, 4), offset), copy, 16)
        f.store(f.load(copy, vec(F32, 4), 16, 16) + 1.0, source, 1)
        f.ret()

    data = np.zeros(64, np.uint8)
    data[3:19] = np.arange(4, dtype=np.float32).view(np.uint8)
    compiled(write).function("test", [ctypes.c_void_p, ctypes.c_int64])(data.ctypes.data, 3)
    assert data[1:17].copy().view(np.float32).tolist() == [1, 2, 3, 4]


def test_lanes_are_added_in_one_order() -> None:
    x = np.array([1e8, 1, -1e8, 1, 3, 5, 7, 1e-3], np.float32)

    def write(module: Module, isa: Isa) -> None:
        f = Function(module, "test", [PTR], F32, exported=True)
        f.ret(f.hsum(f.load(f.args[0], vec(F32, 8))))

    halves = x[:4] + x[4:]
    quarters = halves[:2] + halves[2:]
    found = compiled(write).function("test", [ctypes.c_void_p], ctypes.c_float)(x.ctypes.data)
    assert found == float(quarters[0] + quarters[1])


def test_atomic_operations_return_what_was_there() -> None:
    def write(module: Module, isa: Isa) -> None:
        f = Function(module, "test", [PTR], I64, exported=True)
        before = f.fetch_add(f.args[0], 5)
        f.store_release(f.load_acquire(f.args[0]) * 2, f.args[0], 8)
        f.ret(before)

    counters = np.array([7, 0], np.int64)
    assert compiled(write).function("test", [ctypes.c_void_p], ctypes.c_int64)(counters.ctypes.data) == 7
    assert counters.tolist() == [12, 24]


def test_a_function_calls_another_one() -> None:
    def write(module: Module, isa: Isa) -> None:
        inner = Function(module, "square", [I64], I64, inline=False)
        square = inner.ret(inner.args[0] * inner.args[0])
        f = Function(module, "test", [I64], I64, exported=True)
        f.ret(f.call(square, [f.args[0] + 1]))

    assert compiled(write).function("test", [ctypes.c_int64], ctypes.c_int64)(6) == 49


def test_the_same_calls_write_the_same_text() -> None:
    def text() -> str:
        module = Module("test")
        f = Function(module, "test", [PTR, I64], exported=True)
        with f.loop(0, f.args[1]) as i:
            f.store(f.load(f.args[0], F32, i * 4) + 1.0, f.args[0], i * 4)
        f.ret()
        return module.text()

    assert text() == text()


def test_float64_has_no_fma() -> None:
    f = Function(Module("test"), "test", [F64], F64)
    with pytest.raises(AssertionError, match="float64 has no fma"):
        f.fma(f.args[0], 2.0, 1.0)


def test_what_would_call_a_library_is_not_compiled() -> None:
    module = Module("test")
    f = Function(module, "test", [F64], F64, exported=True)
    f.ret(f.call("llvm.sin.f64", [f.args[0]]))
    if host().triple.endswith("linux-gnu"):
        with pytest.raises(RuntimeError, match="compiled code calls sin"):
            compile_object(module.text(), host())
