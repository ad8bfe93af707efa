"""The few operations that processors have an instruction for, and which form of them a processor runs.

`Isa` is the portable form, and the definition: plain IR, any processor. The others call an instruction of their own
for the same exact integers, so that a kernel has the same bits in every form. Vectors may be longer than a form's
registers: they are cut.

On x86 the sum of two products of maddubs must fit int16, or it would saturate; u8 operands of dpbusd are below 128,
because NEON's dot product takes them for signed; i8 operands of psignb are above -128, which has no opposite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from onward.kernels.function import Function
from onward.kernels.values import I8, I16, I32, VOID, Value, lanes, vec

Operation = Callable[..., Value]


class Isa:
    """The portable form. `soft`: which of function.SOFT is spelt out in other operations."""

    width = 16
    """Bytes of a register: kernels choose by it how many lanes they hold. It must not decide an order of sums."""
    has_dot = False
    """Whether dpbusd is one instruction. Where it is not, maddubs and maddwd are the better way to a product."""
    signed_dot = False
    """Whether dpbusd takes its first operand for signed, so that int8 weights need neither pabsb nor psignb."""
    has_spare_units = False
    """Whether shifts, masks, and conversions run next to dpbusd and fma, rather than instead of them. It decides how
    products are cut."""

    def __init__(self, soft: Iterable[str] = (), name: str = "portable") -> None:
        self.soft = frozenset(soft)
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def maddubs(self, f: Function, u: Value, s: Value) -> Value:
        """Return the sums of pairs of products u8[2n] * i8[2n], as i16[n]."""
        return pair_sums(u.zext(I16) * s.sext(I16))

    def maddwd(self, f: Function, a: Value, b: Value) -> Value:
        """Return the sums of pairs of products i16[2n] * i16[2n], as i32[n]."""
        return pair_sums(a.sext(I32) * b.sext(I32))

    def dpbusd(self, f: Function, total: Value, u: Value, s: Value) -> Value:
        """Return `total` i32[n] plus the sums of fours of products u8[4n] * i8[4n]; i8 * i8 with `signed_dot`."""
        products = (u.sext(I32) if self.signed_dot else u.zext(I32)) * s.sext(I32)
        return total + pair_sums(pair_sums(products))

    def lookup(self, f: Function, table: Sequence[int], codes: Value) -> Value:
        """Return bytes of a table of 16 by the lanes of `codes`, i8[n], which are below 16."""
        found = [f.const(codes.t, number) for number in table]
        for bit in range(4):
            is_set = (codes & (1 << bit)).ne(0)
            found = [f.select(is_set, found[i + 1], found[i]) for i in range(0, len(found), 2)]
        return found[0]

    def psignb(self, f: Function, x: Value, s: Value) -> Value:
        """Return `x` with the sign of `s` multiplied in, 0 where that is 0; `x` itself with `signed_dot`."""
        if self.signed_dot:
            return x
        zero = f.const(x.t, 0)
        return f.select(s < zero, zero - x, f.select(s.eq(zero), zero, x))

    def pabsb(self, f: Function, x: Value) -> Value:
        """Return magnitudes of int8 as u8; `x` itself with `signed_dot`."""
        return x if self.signed_dot else f.select(x < 0, -x, x)

    def pause(self, f: Function) -> None:
        """Tell the processor that this is a loop that waits."""


class Avx2(Isa):
    """AVX2 with FMA and F16C, also on processors with AVX-512 that lack VNNI."""

    width = 32

    def maddubs(self, f: Function, u: Value, s: Value) -> Value:
        names = {32: "llvm.x86.avx2.pmadd.ub.sw", 64: "llvm.x86.avx512.pmaddubs.w.512"}
        width = self.width
        return in_parts(lambda a, b: f.call(names[width], [a, b], vec(I16, width // 2)), width, u, s)

    def maddwd(self, f: Function, a: Value, b: Value) -> Value:
        names = {32: "llvm.x86.avx2.pmadd.wd", 64: "llvm.x86.avx512.pmaddw.d.512"}
        width = self.width
        return in_parts(lambda x, y: f.call(names[width], [x, y], vec(I32, width // 4)), width // 2, a, b)

    def lookup(self, f: Function, table: Sequence[int], codes: Value) -> Value:
        width = self.width
        name = {32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}[width]
        repeated = f.vconst(vec(I8, width), [*table] * (width // 16))
        return in_parts(lambda x: f.call(name, [repeated, x]), width, codes)

    def psignb(self, f: Function, x: Value, s: Value) -> Value:
        return in_parts(lambda a, b: f.call("llvm.x86.avx2.psign.b", [a, b]), 32, x, s)

    def pause(self, f: Function) -> None:
        f.b.call(f.declare("llvm.x86.sse2.pause", VOID, []), [])


class AvxVnni(Avx2):
    """AVX-VNNI: sums of four products in one instruction, at 256 bits."""

    has_dot = True

    def dpbusd(self, f: Function, total: Value, u: Value, s: Value) -> Value:
        count = self.width // 4
        t, name = vec(I32, count), f"llvm.x86.avx512.vpdpbusd.{self.width * 8}"

        def one(total: Value, u: Value, s: Value) -> Value:
            return f.call(name, [total, u.as_(t), s.as_(t)], t)

        return in_parts(one, (count, self.width, self.width), total, u, s)


class Avx512Vnni(AvxVnni):
    """AVX-512 with BW, VL and VNNI, at 512 bits."""

    width = 64

    def psignb(self, f: Function, x: Value, s: Value) -> Value:
        return Isa.psignb(self, f, x, s)  # the instruction ends at 256 bits; masks do it in two


class ZenVnni(Avx512Vnni):
    """The same on AMD's processors, which have four units for vectors; Intel's have two for those of 512 bits."""

    has_spare_units = True


class NeonDot(Isa):
    """ARM with the dot product of int8 (sdot)."""

    has_dot = True
    signed_dot = True
    _instruction = "llvm.aarch64.neon.sdot.v4i32.v16i8"

    def dpbusd(self, f: Function, total: Value, u: Value, s: Value) -> Value:
        return in_parts(lambda *part: f.call(self._instruction, part), (4, 16, 16), total, u, s)

    def lookup(self, f: Function, table: Sequence[int], codes: Value) -> Value:
        whole = f.vconst(vec(I8, 16), table)
        return in_parts(lambda x: f.call("llvm.aarch64.neon.tbl1.v16i8", [whole, x]), 16, codes)

    def pause(self, f: Function) -> None:
        f.b.call(f.declare("llvm.aarch64.hint", VOID, [I32]), [I32(1)])


class NeonI8mm(NeonDot):
    """ARM with products of u8 and i8 (i8mm's usdot)."""

    signed_dot = False
    _instruction = "llvm.aarch64.neon.usdot.v4i32.v16i8"


def pair_sums(x: Value) -> Value:
    """Return the sums of lanes 0 and 1, 2 and 3, …"""
    count = lanes(x.t)
    return x.shuffle(range(0, count, 2)) + x.shuffle(range(1, count, 2))


def in_parts(operation: Operation, size: int | tuple[int, ...], *operands: Value) -> Value:
    """Return an operation on registers of `size` lanes (one number, or one per operand) done part by part on longer
    vectors; a shorter one is filled up, and the result cut."""
    sizes = size if isinstance(size, tuple) else (size,) * len(operands)
    count, register = lanes(operands[0].t), sizes[0]
    if count < register:
        filled = (x.shuffle([i % lanes(x.t) for i in range(n)]) for x, n in zip(operands, sizes, strict=True))
        whole = operation(*filled)
        return whole.shuffle(range(lanes(whole.t) * count // register))
    parts = [
        operation(*(x.shuffle(range(n * k, n * k + n)) for x, n in zip(operands, sizes, strict=True)))
        for k in range(count // register)
    ]
    return joined(parts)


def joined(vectors: Iterable[Value]) -> Value:
    """Return the lanes of all these vectors: one, or a power of two of equally long ones."""
    parts = list(vectors)
    while len(parts) > 1:
        count = 2 * lanes(parts[0].t)
        parts = [low.shuffle(range(count), high) for low, high in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


_CHOICES = ("width", "has_dot", "signed_dot", "has_spare_units")


def emulated(isa: Isa) -> Isa:
    """Return the form that makes the same choices as `isa` with the portable operations: any processor runs it."""
    copied = type("Emulated", (Isa,), {name: getattr(isa, name) for name in _CHOICES})
    form: Isa = copied(isa.soft, f"{isa.name}-emulated")
    return form


def best_isa(architecture: str, features: Mapping[str, bool], cpu: str = "") -> Isa:
    """Return the fastest form that a processor with these features and this name (both LLVM's) runs."""

    def has(*names: str) -> bool:
        return all(features.get(name, False) for name in names)

    if architecture == "aarch64":
        return NeonI8mm((), "neon-i8mm") if has("i8mm") else NeonDot((), "neon-dot") if has("dotprod") else Isa()
    if has("avx2", "fma", "f16c"):
        if has("avx512vnni", "avx512bw", "avx512vl"):
            return ZenVnni((), "avx512-vnni-zen") if cpu.startswith("znver") else Avx512Vnni((), "avx512-vnni")
        return AvxVnni((), "avx-vnni") if has("avxvnni") else Avx2((), "avx2")
    if architecture != "x86_64":
        return Isa()
    lacking = [soft for soft, feature in (("f16", "f16c"), ("fma", "fma"), ("rint", "sse4.1")) if not has(feature)]
    return Isa(lacking, f"without-{'-'.join(lacking)}" if lacking else "portable")
