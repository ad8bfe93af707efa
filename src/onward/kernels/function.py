"""Functions of the vector language: constants, variables, memory, calls, loops and branches.

    f = Function(module, "scale", [PTR, I64, F32])
    row, count, factor = f.args
    with f.loop(0, count * 4, 32) as i:
        f.store(f.load(row, vec(F32, 8), i) * factor, row, i)
    f.ret()

writes the IR of a function that scales float32 in place, eight at a time. Pointers are untyped, offsets are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from onward.kernels.soft import soft_fma, soft_narrow, soft_rint, soft_widen
from onward.kernels.values import (
    F16,
    F32,
    I8,
    I32,
    I64,
    PTR,
    VOID,
    Type,
    Value,
    element,
    is_float,
    lanes,
    like,
    vec,
)

SOFT = frozenset({"f16", "fma", "rint"})
"""What may be spelt out in other operations, where the target has no instruction for it (soft.py)."""


class Module:
    """A module of IR that functions are written to. `soft`: which of SOFT the target lacks (isa.Isa.soft)."""

    def __init__(self, name: str, soft: Iterable[str] = ()) -> None:
        self.ir = ir.Module(name)
        self.soft = frozenset(soft)
        assert self.soft <= SOFT

    def text(self) -> str:
        """Return the module as LLVM assembly: the same for the same calls."""
        return str(self.ir)


class Variable:
    """A place on the stack with one value, which LLVM turns into a register. `v.value += x` reads and writes it."""

    __slots__ = ("_address", "f", "t")

    def __init__(self, f: Function, t: Type) -> None:
        self.f, self.t = f, t
        with f.b.goto_entry_block():
            self._address = f.b.alloca(t)

    @property
    def value(self) -> Value:
        return Value(self.f, self.f.b.load(self._address, typ=self.t))

    @value.setter
    def value(self, value: Value | float) -> None:
        self.set(value)

    def set(self, value: Value | float) -> Variable:
        """Write a value; return the variable."""
        converted = value if isinstance(value, Value) else self.f.const(self.t, value)
        self.f.b.store(converted.v, self._address)
        return self


class LoopBody:
    """What may be written in the body of `Function.forever`."""

    def __init__(self, f: Function, start: Any, end: Any) -> None:
        self._f, self._start, self._end = f, start, end

    def break_if(self, condition: Value) -> None:
        """Leave the loop if this is true."""
        self._branch(condition, self._end)

    def continue_if(self, condition: Value) -> None:
        """Start the next iteration if this is true."""
        self._branch(condition, self._start)

    def _branch(self, condition: Value, target: Any) -> None:
        following = self._f.fn.append_basic_block()
        self._f.b.cbranch(condition.v, target, following)
        self._f.b.position_at_end(following)


class Function:
    """A function that is being written. End it with `ret`.

    `exported` functions can be found by name in the compiled object. `inline` True or False overrides LLVM's decision;
    where it is False, vectors for which there is no register lie within lines of the cache.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        parameters: Sequence[Type],
        returns: Type = VOID,
        *,
        exported: bool = False,
        inline: bool | None = None,
    ) -> None:
        self.module, self.soft = module, module.soft
        self.fn = ir.Function(module.ir, ir.FunctionType(returns, parameters), name)
        if not exported:
            self.fn.linkage = "internal"
        if inline is not None:
            self.fn.attributes.add("alwaysinline" if inline else "noinline")
        if inline is False:
            self.fn.attributes.alignstack = 64  # else a product takes 1.3 times as long, if the caller's stack ends so
        self.fn.attributes.add("nounwind")
        self.b = ir.IRBuilder(self.fn.append_basic_block("entry"))
        self.args = [Value(self, argument) for argument in self.fn.args]

    def ret(self, value: Value | None = None) -> Any:
        """Return from the function, which ends it. Returns what `call` takes."""
        if value is None:
            self.b.ret_void()
        else:
            self.b.ret(value.v)
        return self.fn

    # constants and variables

    def const(self, t: Type, number: float) -> Value:
        """Return a constant; in every lane of a vector."""
        scalar = ir.Constant(element(t), float(number) if is_float(t) else int(number))
        if not lanes(t):
            return Value(self, scalar)
        # not all lanes, which takes a third of the time to write a module; llvmlite has no name for this
        vector = ir.FormattedConstant(scalar.type, f"splat ({scalar})")
        vector.type = t
        return Value(self, vector)

    def vconst(self, t: Type, numbers: Iterable[float]) -> Value:
        """Return a vector of constants."""
        return Value(self, ir.Constant(t, [ir.Constant(t.element, number) for number in numbers]))

    def i32(self, number: Value | int) -> Value:
        return number if isinstance(number, Value) else self.const(I32, number)

    def i64(self, number: Value | int) -> Value:
        return number if isinstance(number, Value) else self.const(I64, number)

    def f32(self, number: Value | float) -> Value:
        return number if isinstance(number, Value) else self.const(F32, number)

    def null(self) -> Value:
        """Return the null pointer."""
        return Value(self, ir.Constant(PTR, None))

    def splat(self, value: Value, num_lanes: int) -> Value:
        """Return a vector with the scalar in every lane."""
        undefined = ir.Constant(vec(value.t, num_lanes), ir.Undefined)
        return Value(self, self.b.insert_element(undefined, value.v, I32(0))).shuffle([0] * num_lanes)

    def var(self, t: Type, initial: Value | float | None = None) -> Variable:
        """Return a variable; `initial` is written here, each time that this place is reached."""
        variable = Variable(self, t)
        return variable if initial is None else variable.set(initial)

    # memory

    def at(self, pointer: Value, offset: Value | int = 0) -> Value:
        """Return a pointer `offset` bytes further."""
        if isinstance(offset, int) and offset == 0:
            return pointer
        return Value(self, self.b.gep(pointer.v, [self.i64(offset).v], source_etype=I8))

    def load(self, pointer: Value, t: Type, offset: Value | int = 0, align: int = 1) -> Value:
        return Value(self, self.b.load(self.at(pointer, offset).v, typ=t, align=align))

    def store(self, value: Value, pointer: Value, offset: Value | int = 0, align: int = 1) -> None:
        self.b.store(value.v, self.at(pointer, offset).v, align=align)

    def load_pointer(self, pointer: Value, offset: Value | int = 0) -> Value:
        return self.load(pointer, PTR, offset, 8)

    def prefetch(self, pointer: Value, offset: Value | int = 0, locality: int = 3) -> None:
        function = self.declare("llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])
        self.b.call(function, [self.at(pointer, offset).v, I32(0), I32(locality), I32(1)])

    def stack(self, t: Type, count: int = 1) -> Value:
        """Return a pointer to `count` of t on the stack, aligned to 64 bytes. Windows wants frames below 4 KiB."""
        with self.b.goto_entry_block():
            place = self.b.alloca(ir.ArrayType(t, count))
            place.align = 64
            cast = ir.instructions.CastInstr(self.b.block, "bitcast", place, PTR, "")
            self.b._insert(cast)
            return Value(self, cast)

    # calls

    def declare(self, name: str, returns: Type, parameters: Sequence[Type]) -> Any:
        """Return the function of this name, declared on first use."""
        known = self.module.ir.globals.get(name)
        return ir.Function(self.module.ir, ir.FunctionType(returns, parameters), name) if known is None else known

    def call(self, function: Any, arguments: Sequence[Value], returns: Type = None) -> Value:
        """Call what `ret` returned, or an intrinsic by name; its result has the first argument's type or `returns`."""
        values = [argument.v for argument in arguments]
        if isinstance(function, str):
            function = self.declare(function, returns or values[0].type, [value.type for value in values])
        return Value(self, self.b.call(function, values))

    def call_address(self, function: Value, arguments: Sequence[Value]) -> None:
        """Call a C function that returns nothing by its address."""
        values = [argument.v for argument in arguments]
        signature = ir.FunctionType(VOID, [value.type for value in values])
        typed = ir.instructions.CastInstr(self.b.block, "bitcast", function.v, signature.as_pointer(), "")
        self.b._insert(typed)  # a cast to the type that it has, but that llvmlite knows to be a function's
        self.b.call(typed, values)

    def _intrinsic(self, name: str, *arguments: Value) -> Value:
        t = arguments[0].t
        scalar = {"half": "f16", "float": "f32", "double": "f64"}.get(str(element(t)), str(element(t)))
        return self.call(f"llvm.{name}.{f'v{lanes(t)}' if lanes(t) else ''}{scalar}", arguments)

    # arithmetic

    def fma(self, a: Value | float, b: Value | float, c: Value | float) -> Value:
        """Return a * b + c of float32, rounded once. Numbers and scalars are splatted."""
        given = [each for each in (a, b, c) if isinstance(each, Value)]
        t = max(given, key=lambda each: lanes(each.t)).t
        assert element(t) == F32, "float64 has no fma here: processors without one could not spell it out quickly"
        terms = [self._as_type(each, t) for each in (a, b, c)]
        return soft_fma(self, *terms) if "fma" in self.soft else self._intrinsic("fma", *terms)

    def _as_type(self, value: Value | float, t: Type) -> Value:
        if not isinstance(value, Value):
            return self.const(t, value)
        return self.splat(value, lanes(t)) if lanes(t) and not lanes(value.t) else value

    def widen(self, half: Value) -> Value:
        if "f16" in self.soft:
            return soft_widen(self, half)
        return Value(self, self.b.fpext(half.v, like(half.t, F32)))

    def narrow(self, value: Value) -> Value:
        if "f16" in self.soft:
            return soft_narrow(self, value)
        return Value(self, self.b.fptrunc(value.v, like(value.t, F16)))

    def rint(self, x: Value) -> Value:
        """Return the nearest whole number as a float, ties to even."""
        return soft_rint(self, x) if "rint" in self.soft else self._intrinsic("rint", x)

    def sqrt(self, x: Value) -> Value:
        return self._intrinsic("sqrt", x)

    def fabs(self, x: Value) -> Value:
        return self._intrinsic("fabs", x)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        return Value(self, self.b.select(condition.v, yes.v, no.v))

    def max(self, x: Value, y: Value | float) -> Value:
        """Return x > y ? x : y, which is `y` if either is a NaN; signed for integers."""
        other = self._as_type(y, x.t)
        return self.select(x > other, x, other)

    def min(self, x: Value, y: Value | float) -> Value:
        """Return x < y ? x : y, which is `y` if either is a NaN; signed for integers."""
        other = self._as_type(y, x.t)
        return self.select(x < other, x, other)

    def hsum(self, x: Value) -> Value:
        """Return the sum of a vector's lanes: lane i and lane i + n/2, and so on, in that order."""
        count = lanes(x.t)
        while count > 1:
            count //= 2
            x = x.shuffle(range(count)) + x.shuffle(range(count, 2 * count))
        return x.lane(0)

    def hmax(self, x: Value) -> Value:
        """Return the largest of a vector's lanes, in the order of `hsum`."""
        count = lanes(x.t)
        while count > 1:
            count //= 2
            x = self.max(x.shuffle(range(count)), x.shuffle(range(count, 2 * count)))
        return x.lane(0)

    def any(self, mask: Value) -> Value:
        """Return whether a lane of a vector of booleans is true."""
        bits = mask.as_(ir.IntType(lanes(mask.t)))
        return bits.ne(0)

    def count(self, mask: Value) -> Value:
        """Return how many lanes of a vector of booleans are true: int64."""
        bits = self._intrinsic("ctpop", mask.as_(ir.IntType(lanes(mask.t))))
        return bits if bits.t == I64 else bits.zext(I64)

    # control

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: Value | int = 1) -> Iterator[Value]:
        """Repeat the body for start, start + step, … below `stop` (signed); int64 unless a Value says otherwise."""
        t = next((each.t for each in (stop, start) if isinstance(each, Value)), I64)
        first, last, increment = (self._as_type(each, t) for each in (start, stop, step))
        before = self.b.block
        head, body, done = (self.fn.append_basic_block() for _ in range(3))
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(t)
        index.add_incoming(first.v, before)
        self.b.cbranch(self.b.icmp_signed("<", index, last.v), body, done)
        self.b.position_at_end(body)
        yield Value(self, index)
        index.add_incoming(self.b.add(index, increment.v), self.b.block)
        self.b.branch(head)
        self.b.position_at_end(done)

    @contextmanager
    def forever(self) -> Iterator[LoopBody]:
        """Repeat the body until its `break_if`."""
        body, done = self.fn.append_basic_block(), self.fn.append_basic_block()
        self.b.branch(body)
        self.b.position_at_end(body)
        yield LoopBody(self, body, done)
        self.b.branch(body)
        self.b.position_at_end(done)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the body if the condition is true."""
        with self.b.if_then(condition.v):
            yield

    @contextmanager
    def otherwise(self, condition: Value) -> Iterator[tuple[Any, Any]]:
        """Yield two context managers, whose bodies run if the condition is true, and if it is not."""
        with self.b.if_else(condition.v) as branches:
            yield branches

    # atomics, on int64

    def fetch_add(self, pointer: Value, number: Value | int, offset: Value | int = 0) -> Value:
        """Add atomically; return the number before."""
        place = self.at(pointer, offset)
        return Value(self, self.b.atomic_rmw("add", place.v, self.i64(number).v, "seq_cst"))

    def compare_and_swap(self, pointer: Value, old: Value, new: Value) -> Value:
        """Write `new` atomically where `old` is; return whether it was."""
        pair = self.b.cmpxchg(pointer.v, old.v, new.v, "seq_cst", "seq_cst")
        return Value(self, self.b.extract_value(pair, 1))

    def acquire(self) -> None:
        """Order the loads before this place before what follows."""
        self.b.fence("acquire")

    def load_acquire(self, pointer: Value, offset: Value | int = 0) -> Value:
        return Value(self, self.b.load_atomic(self.at(pointer, offset).v, "acquire", 8, typ=I64))

    def store_release(self, number: Value | int, pointer: Value, offset: Value | int = 0) -> None:
        place = self.at(pointer, offset)
        # IRBuilder.store_atomic does not know untyped pointers
        self.b._insert(ir.instructions.StoreAtomicInstr(self.b.block, self.i64(number).v, place.v, "release", 8))
