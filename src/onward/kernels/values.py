"""Values of the vector language: types, and an SSA value with operators.

A kernel is a Python function that computes with `Value`s and thereby writes LLVM IR. Integers have no sign of their
own: `<`, `>`, `.sar` and `/` are signed, `//`, `%`, `>>` and `.below` unsigned. Floats are compared "ordered" (false if
either is a NaN), except `ne`. Every operation is rounded once and no fast-math flag is ever set, so a value has the
same bits on every processor.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from llvmlite import ir

Type = Any
"""A type of llvmlite.ir, which has no type hints."""
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
PTR = ir.PointerType()
VOID = ir.VoidType()
LANES = 16
"""Numbers that kernels compute together, on every processor: it decides the order of sums."""
VECTOR_BYTES = 4 * LANES
"""Of float32."""


@cache
def vec(element_type: Type, num_lanes: int) -> Type:
    """Return the type of a vector."""
    return ir.VectorType(element_type, num_lanes)


F32X16 = vec(F32, LANES)


def element(t: Type) -> Type:
    """Return the type of a vector's lanes, of a scalar itself."""
    return t.element if isinstance(t, ir.VectorType) else t


def lanes(t: Type) -> int:
    """Return how many lanes a vector has, 0 for a scalar."""
    return int(t.count) if isinstance(t, ir.VectorType) else 0


def like(shape: Type, element_type: Type) -> Type:
    """Return the type with the lanes of `shape`, a scalar for a scalar, and another element."""
    count = lanes(shape)
    return vec(element_type, count) if count else element_type


def is_float(t: Type) -> bool:
    """Return whether a scalar, or a vector's lanes, are floating point."""
    return isinstance(element(t), ir.FloatType | ir.HalfType | ir.DoubleType)


class Value:
    """An SSA value of the function `f`. Next to a vector, numbers and scalars are splatted."""

    __slots__ = ("f", "v")

    def __init__(self, f: Any, v: Any) -> None:
        self.f = f  # a function.Function
        self.v = v

    @property
    def t(self) -> Type:
        """The value's type."""
        return self.v.type

    def _operands(self, other: Value | float) -> tuple[Value, Any]:
        """Return both operands, with equal types: this one as a Value, the other as llvmlite has it."""
        if not isinstance(other, Value):
            return self, self.f.const(self.t, other).v
        if lanes(self.t) and not lanes(other.t):
            return self, self.f.splat(other, lanes(self.t)).v
        if lanes(other.t) and not lanes(self.t):
            return self.f.splat(self, lanes(other.t)), other.v
        return self, other.v

    def _binary(self, other: Value | float, integer: str, floating: str = "", *, swapped: bool = False) -> Value:
        this, that = self._operands(other)
        build = getattr(self.f.b, floating if is_float(this.t) else integer)
        return Value(self.f, build(that, this.v) if swapped else build(this.v, that))

    def __add__(self, other: Value | float) -> Value:
        return self._binary(other, "add", "fadd")

    def __radd__(self, other: Value | float) -> Value:
        return self._binary(other, "add", "fadd", swapped=True)

    def __sub__(self, other: Value | float) -> Value:
        return self._binary(other, "sub", "fsub")

    def __rsub__(self, other: Value | float) -> Value:
        return self._binary(other, "sub", "fsub", swapped=True)

    def __mul__(self, other: Value | float) -> Value:
        return self._binary(other, "mul", "fmul")

    def __rmul__(self, other: Value | float) -> Value:
        return self._binary(other, "mul", "fmul", swapped=True)

    def __truediv__(self, other: Value | float) -> Value:
        return self._binary(other, "sdiv", "fdiv")

    def __rtruediv__(self, other: Value | float) -> Value:
        return self._binary(other, "sdiv", "fdiv", swapped=True)

    def __floordiv__(self, other: Value | float) -> Value:
        """Divide unsigned integers."""
        return self._binary(other, "udiv")

    def __mod__(self, other: Value | float) -> Value:
        """Return the remainder of unsigned integers."""
        return self._binary(other, "urem")

    def __and__(self, other: Value | float) -> Value:
        return self._binary(other, "and_")

    def __or__(self, other: Value | float) -> Value:
        return self._binary(other, "or_")

    def __xor__(self, other: Value | float) -> Value:
        return self._binary(other, "xor")

    def __lshift__(self, other: Value | float) -> Value:
        return self._binary(other, "shl")

    def __rshift__(self, other: Value | float) -> Value:
        """Shift in zeros."""
        return self._binary(other, "lshr")

    def sar(self, other: Value | float) -> Value:
        """Shift right, keeping the sign."""
        return self._binary(other, "ashr")

    def __invert__(self) -> Value:
        return self ^ -1

    def __neg__(self) -> Value:
        """Turn the sign, also of a zero and of a NaN."""
        return Value(self.f, self.f.b.fneg(self.v) if is_float(self.t) else self.f.b.neg(self.v))

    def _compare(self, operator: str, other: Value | float) -> Value:
        this, that = self._operands(other)
        compare = self.f.b.fcmp_ordered if is_float(this.t) else self.f.b.icmp_signed
        return Value(self.f, compare(operator, this.v, that))

    def __lt__(self, other: Value | float) -> Value:
        return self._compare("<", other)

    def __gt__(self, other: Value | float) -> Value:
        return self._compare(">", other)

    def __le__(self, other: Value | float) -> Value:
        return self._compare("<=", other)

    def __ge__(self, other: Value | float) -> Value:
        return self._compare(">=", other)

    def eq(self, other: Value | float) -> Value:
        return self._compare("==", other)

    def ne(self, other: Value | float) -> Value:
        """Return whether they differ; a NaN differs from everything, also from itself."""
        this, that = self._operands(other)
        compare = self.f.b.fcmp_unordered if is_float(this.t) else self.f.b.icmp_signed
        return Value(self.f, compare("!=", this.v, that))

    def below(self, other: Value | float) -> Value:
        """Return whether an unsigned integer is less than another."""
        this, that = self._operands(other)
        return Value(self.f, self.f.b.icmp_unsigned("<", this.v, that))

    def is_nan(self) -> Value:
        return self.ne(self)

    def is_null(self) -> Value:
        """Return whether a pointer is null."""
        return Value(self.f, self.f.b.icmp_unsigned("==", self.f.b.ptrtoint(self.v, I64), I64(0)))

    def _cast(self, operation: str, t: Type) -> Value:
        return Value(self.f, getattr(self.f.b, operation)(self.v, t if lanes(t) else like(self.t, t)))

    def zext(self, t: Type) -> Value:
        """Widen integers with zeros. `t`: the element's type, here and below."""
        return self._cast("zext", t)

    def sext(self, t: Type) -> Value:
        """Widen integers with their sign."""
        return self._cast("sext", t)

    def trunc(self, t: Type) -> Value:
        """Keep the low bits of integers."""
        return self._cast("trunc", t)

    def to_f32(self) -> Value:
        """Convert signed integers, or round float64, to float32."""
        return self._cast("fptrunc" if is_float(self.t) else "sitofp", F32)

    def to_f64(self) -> Value:
        """Convert signed integers, or widen float32, to float64."""
        return self._cast("fpext" if is_float(self.t) else "sitofp", F64)

    def to_i32(self) -> Value:
        """Truncate floats towards zero. What does not fit has other bits on other processors: clamp first."""
        return self._cast("fptosi", I32)

    def to_i64(self) -> Value:
        """Truncate floats towards zero; as `to_i32`."""
        return self._cast("fptosi", I64)

    def fpext(self) -> Value:
        """Widen float16 to float32."""
        widened: Value = self.f.widen(self)
        return widened

    def fptrunc(self) -> Value:
        """Round float32 to float16, ties to even."""
        narrowed: Value = self.f.narrow(self)
        return narrowed

    def as_(self, t: Type) -> Value:
        """Return the same bits as another type of the same size."""
        return Value(self.f, self.f.b.bitcast(self.v, t))

    def lane(self, index: int) -> Value:
        """Return one lane of a vector."""
        return Value(self.f, self.f.b.extract_element(self.v, I32(index)))

    def shuffle(self, indices: Iterable[int], other: Value | None = None) -> Value:
        """Return a vector of lanes of this vector, followed by lanes of `other`."""
        shuffled = Shuffle(self.f.b.block, self.v, (self if other is None else other).v, tuple(indices))
        self.f.b._insert(shuffled)
        return Value(self.f, shuffled)


class Shuffle(ir.instructions.Instruction):  # type: ignore[misc]
    """llvmlite's ShuffleVector without an object for each index, which take longer than all the rest of a module."""

    def __init__(self, block: Any, first: Any, second: Any, indices: tuple[int, ...]) -> None:
        assert first.type == second.type and all(0 <= index < 2 * first.type.count for index in indices)
        super().__init__(block, vec(first.type.element, len(indices)), "shufflevector", (first, second))
        self._mask = _mask_text(indices)

    def descr(self, buf: list[str]) -> None:
        """Append the instruction's text."""
        vectors = ", ".join(f"{each.type} {each.get_reference()}" for each in self.operands)
        buf.append(f"shufflevector {vectors}, {self._mask}\n")


@cache
def _mask_text(indices: tuple[int, ...]) -> str:
    numbers = f"<{', '.join(f'i32 {index}' for index in indices)}>" if any(indices) else "zeroinitializer"
    return f"<{len(indices)} x i32> {numbers}"
