"""A debug form of the kernels: every load and store is compared with the memory that they were given.

Functions that are written within `Checker.writing` ask a function of their module for each address. An access outside
is counted, and redirected to a spare page, so that nothing is destroyed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numpy.typing import NDArray

from onward.kernels.function import Function
from onward.kernels.memory import Rows, address
from onward.kernels.values import I64, PTR, Type, Value
from tests.kernels.harness import size_of

_REGIONS, _COUNT, _OUTSIDE, _ACCESSES = range(4)
_OFF = -1
_FRAME_BYTES = 1 << 16
"""Around a function's frame lies the stack, which is its own."""


class Checker:
    """Kept as long as the code that was written with it."""

    def __init__(self) -> None:
        self._control = np.array([0, _OFF, 0, 0], np.int64)
        self._regions = np.zeros((0, 2), np.int64)
        self._spare = np.zeros(8192, np.uint8)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Have functions written with checks."""

        def load(f: Function, pointer: Value, t: Type, offset: Value | int = 0, align: int = 1) -> Value:
            return Value(f, f.b.load(self._checked(f, f.at(pointer, offset), t).v, typ=t, align=align))

        def store(f: Function, value: Value, pointer: Value, offset: Value | int = 0, align: int = 1) -> None:
            f.b.store(value.v, self._checked(f, f.at(pointer, offset), value.t).v, align=align)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Function, "load", load)
            patch.setattr(Function, "store", store)
            yield

    def _checked(self, f: Function, place: Value, t: Type) -> Value:
        size = 8 if t == PTR else size_of(t)
        return Value(f, f.b.call(f.module.ir.globals.get("checked") or self._emit(f.module.ir), [place.v, I64(size)]))

    def _emit(self, module: Any) -> Any:
        """Write checked(pointer, size): the pointer, or one to the spare page."""
        function = ir.Function(module, ir.FunctionType(PTR, [PTR, I64]), "checked")
        function.linkage = "internal"
        function.attributes.add("noinline")
        place, size = function.args
        b = ir.IRBuilder(function.append_basic_block())
        frame = ir.Function(module, ir.FunctionType(PTR, [ir.IntType(32)]), "llvm.frameaddress.p0")
        control = [I64(address(self._control) + 8 * word).inttoptr(PTR) for word in range(4)]

        def word(index: int) -> Any:
            return b.load(control[index], typ=I64)

        first = b.ptrtoint(place, I64)
        distance = b.sub(first, b.ptrtoint(b.call(frame, [ir.IntType(32)(0)]), I64))
        is_stack = b.icmp_unsigned("<", b.add(distance, I64(_FRAME_BYTES)), I64(2 * _FRAME_BYTES))
        with b.if_then(b.or_(is_stack, b.icmp_signed("<", word(_COUNT), I64(0)))):
            b.ret(place)
        b.store(b.add(word(_ACCESSES), I64(1)), control[_ACCESSES])
        low, high = b.alloca(I64), b.alloca(I64)  # the last region that begins at or before the place is before `low`
        b.store(I64(0), low)
        b.store(word(_COUNT), high)
        test, body, done = (function.append_basic_block() for _ in range(3))
        b.branch(test)
        b.position_at_end(test)
        b.cbranch(b.icmp_signed("<", b.load(low, typ=I64), b.load(high, typ=I64)), body, done)
        b.position_at_end(body)
        middle = b.ashr(b.add(b.load(low, typ=I64), b.load(high, typ=I64)), I64(1))

        def bound(index: Any, which: int) -> Any:
            at = b.add(b.add(b.mul(index, I64(16)), I64(8 * which)), word(_REGIONS))
            return b.load(b.inttoptr(at, PTR), typ=I64)

        is_before = b.icmp_signed("<=", bound(middle, 0), first)
        b.store(b.select(is_before, b.add(middle, I64(1)), b.load(low, typ=I64)), low)
        b.store(b.select(is_before, b.load(high, typ=I64), middle), high)
        b.branch(test)
        b.position_at_end(done)
        region = b.sub(b.load(low, typ=I64), I64(1))
        with (
            b.if_then(b.icmp_signed(">=", region, I64(0))),
            b.if_then(b.icmp_signed("<=", b.add(first, size), bound(region, 1))),
        ):
            b.ret(place)
        b.store(b.add(word(_OUTSIDE), I64(1)), control[_OUTSIDE])
        b.ret(I64(-(-address(self._spare) // 4096) * 4096).inttoptr(PTR))
        return function

    def watch(self, objects: Iterable[object]) -> None:
        """From now on, compare with the arrays that are reachable from these objects."""
        regions: list[list[int]] = []
        for begin, end in sorted((address(array), address(array) + array.nbytes) for array in arrays_of(objects)):
            if regions and begin < regions[-1][1]:  # a view of the same memory
                regions[-1][1] = max(end, regions[-1][1])
            else:
                regions.append([begin, end])
        self._regions = np.array(regions, np.int64).reshape(-1, 2)
        self._control[:] = address(self._regions), len(self._regions), 0, 0

    def result(self) -> tuple[int, int]:
        """Stop; return the number of accesses, and how many of them were outside."""
        self._control[_COUNT] = _OFF
        return int(self._control[_ACCESSES]), int(self._control[_OUTSIDE])


def arrays_of(objects: Iterable[object]) -> Iterator[NDArray[Any]]:
    """Yield every array of kernels' memory that can be reached from objects of this project."""
    seen: set[int] = set()
    waiting = list(objects)
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            yield each
        elif isinstance(each, Rows):
            yield each.memory[: each.count * each.stride]
        elif isinstance(each, list | tuple | set):
            waiting += each
        elif isinstance(each, dict):
            waiting += each.values()
        elif type(each).__module__.startswith("onward."):
            names = [*getattr(each, "__dict__", ()), *getattr(type(each), "__slots__", ())]
            waiting += [getattr(each, name) for name in names if hasattr(each, name)]
