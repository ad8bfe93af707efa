"""Each form of an operation computes the integers of its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.kernels.compiler import compile_object, undefined_symbols
from onward.kernels.function import Module
from onward.kernels.isa import Avx2, Isa, best_isa, emulated
from onward.kernels.targets import FORMS
from onward.kernels.values import I8, I16, I32, vec
from tests.examples import slow_but
from tests.kernels.emulated import executable_forms
from tests.kernels.harness import apply, compiled, elementwise

FORM_NAMES = sorted(executable_forms())
FAST_FORMS = [name for name in FORM_NAMES if name in ("sse2", "avx2", "neon")]
LANES = (4, 8, 16)
TABLE = [3, 255, 0, 15, 7, 200, 127, 128, 9, 1, 2, 4, 8, 16, 32, 64]


def write_all(module: Module, isa: Isa) -> None:
    for n in LANES:
        sums, words, octets = vec(I32, n), vec(I16, 2 * n), vec(I8, 4 * n)
        elementwise(module, f"maddubs{n}", [octets, octets], words, isa.maddubs)
        elementwise(module, f"maddwd{n}", [words, words], sums, isa.maddwd)
        elementwise(module, f"dpbusd{n}", [sums, octets, octets], sums, isa.dpbusd)
        elementwise(
            module,
            f"signed{n}",
            [sums, octets, octets],
            sums,
            lambda f, total, w, x: isa.dpbusd(f, total, isa.pabsb(f, w), isa.psignb(f, x, w)),
        )
        elementwise(module, f"lookup{n}", [octets], octets, lambda f, codes: isa.lookup(f, TABLE, codes))


def integers(low: int, high: int, count: int, dtype: Any) -> NDArray[Any]:
    return np.random.default_rng(low + high + count).integers(low, high, count).astype(dtype)


def sums_of(products: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    sums: NDArray[np.int32] = products.reshape(-1, count).sum(axis=1, dtype=np.int32)
    return sums


@pytest.mark.parametrize("form", slow_but(FAST_FORMS, FORM_NAMES))
def test_every_form_computes_the_integers_of_its_definition(form: str) -> None:
    code = compiled(write_all, executable_forms()[form])
    weights, signed, x = (
        integers(0, 128, 1024, np.int8),
        integers(-128, 128, 1024, np.int8),
        integers(-127, 128, 1024, np.int8),
    )
    a, b, start = (
        integers(-4096, 4097, 512, np.int16),
        integers(-4096, 4097, 512, np.int16),
        integers(-(2**20), 2**20, 256, np.int32),
    )
    products = weights.astype(np.int32) * x
    for n in LANES:
        found = apply(code, f"maddubs{n}", np.empty(512, np.int16), weights, x)
        assert np.array_equal(found, sums_of(products, 2)), n
        words = sums_of(a.astype(np.int32) * b, 2)
        assert np.array_equal(apply(code, f"maddwd{n}", np.empty(256, np.int32), a, b), words), n
        found = apply(code, f"dpbusd{n}", np.empty(256, np.int32), start, weights, x)
        assert np.array_equal(found, start + sums_of(products, 4)), n
        found = apply(code, f"signed{n}", np.empty(256, np.int32), start, signed, x)
        assert np.array_equal(found, start + sums_of(signed.astype(np.int32) * x, 4)), n
        codes = integers(0, 16, 1024, np.int8)
        looked_up = np.array(TABLE, np.uint8)[codes].view(np.int8)
        assert np.array_equal(apply(code, f"lookup{n}", np.empty_like(codes), codes), looked_up), n


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_compiled_without_calls_into_a_library(form: str) -> None:
    target = FORMS[form]
    module = Module("test", target.isa.soft)
    write_all(module, target.isa)
    assert undefined_symbols(compile_object(module.text(), target)) <= {"memcpy", "memset", "_GLOBAL_OFFSET_TABLE_"}


CASES = [
    ("x86_64", "", "without-f16-fma-rint"),
    ("x86_64", "sse4.1", "without-f16-fma"),
    ("x86_64", "sse4.1 avx f16c", "without-fma"),
    ("x86_64", "sse4.1 avx avx2 f16c fma", "avx2"),
    ("x86_64", "sse4.1 avx2 f16c fma avx512bw avx512vl", "avx2"),
    ("x86_64", "sse4.1 avx2 f16c fma avxvnni", "avx-vnni"),
    ("x86_64", "sse4.1 avx2 f16c fma avx512bw avx512vl avx512vnni avxvnni", "avx512-vnni"),
    ("aarch64", "neon", "portable"),
    ("aarch64", "neon dotprod", "neon-dot"),
    ("aarch64", "neon dotprod i8mm", "neon-i8mm"),
    ("riscv64", "", "portable"),
]


@pytest.mark.parametrize(("architecture", "features", "name"), CASES)
def test_the_form_follows_from_the_processors_features(architecture: str, features: str, name: str) -> None:
    assert best_isa(architecture, dict.fromkeys(features.split(), True)).name == name


def test_how_products_are_cut_follows_from_the_processors_units() -> None:
    features = dict.fromkeys(["avx2", "f16c", "fma", "avx512bw", "avx512vl", "avx512vnni"], True)
    forms = {cpu: best_isa("x86_64", features, cpu) for cpu in ("sapphirerapids", "znver5")}
    assert {cpu: form.has_spare_units for cpu, form in forms.items()} == {"sapphirerapids": False, "znver5": True}
    assert len({form.name for form in forms.values()}) == 2, "objects are kept by the name of their form"


def test_an_emulated_form_makes_the_choices_of_the_form() -> None:
    form = emulated(Avx2((), "avx2"))
    assert (form.name, form.width, form.has_dot) == ("avx2-emulated", 32, False)
    assert not isinstance(form, Avx2)
