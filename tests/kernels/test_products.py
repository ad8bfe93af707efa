"""Products give the bits of their definition: every type of weights, every form of activations, any number of rows."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.checkpoints.expansion import expanded
from onward.checkpoints.types import NVFP4
from onward.kernels.activations import ACTIVATION_NAMES, ACTIVATIONS
from onward.kernels.code import Functions
from onward.kernels.function import Function, Module
from onward.kernels.isa import Isa
from onward.kernels.memory import address
from onward.kernels.operations import Writers
from onward.kernels.panels import emit_interleave, panel_count
from onward.kernels.products import (
    OUT_BYTES,
    ProductKind,
    _group_sizes,
    emit_product,
    few_rows,
    single_rows,
    tile_of,
)
from onward.kernels.records import PRODUCT
from onward.kernels.targets import FORMS
from onward.kernels.type_table import WEIGHT_TYPES
from onward.kernels.values import I64, PTR
from onward.kernels.weight_types import PANEL_ROWS, WeightType
from tests.checkpoints.float8 import VALUES
from tests.checkpoints.making import random_blocks
from tests.examples import slow_but
from tests.kernels import definition
from tests.kernels.emulated import executable_forms
from tests.kernels.harness import compiled

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 33, 193)
"""Of activations: all ways to multiply, groups of every size, more than a tile."""
OUTPUTS = 69
"""Four panels, a tile, and a part of one."""
INTEGER_TYPES = tuple(name for name, kind in WEIGHT_TYPES.items() if isinstance(kind, WeightType))
FLOAT_TYPES = tuple(name for name in WEIGHT_TYPES if name not in INTEGER_TYPES)
KINDS = [ProductKind(name, form) for name in INTEGER_TYPES for form in ACTIVATION_NAMES]
KINDS += [ProductKind(name, "float32") for name in FLOAT_TYPES]
REPRESENTATIVES = [
    ProductKind("Q4_1", "int8"), ProductKind("Q6_K", "int8"), ProductKind("MXFP4", "int8"),
    ProductKind("NVFP4_X", "int8"), ProductKind("F16", "float32"), ProductKind("F8_E4M3", "float32"),
]  # fmt: skip
"""Each form of activations, and types of each family: with and without minimum, with scales of scales, with scales
that are floats, floats without and with a scale. Models in tests/runtimes/native/test_model.py have other
types of weights."""
FAST_KINDS = [ProductKind("Q6_K", "int8"), ProductKind("F16", "float32")]
"""Those of the fast suite; its tests of models have the bits of other types."""
MAIN_FORMS = ("avx2", "neon-dot")
WIDE_FORMS = ("avx512-vnni", "avx512-vnni-zen")
"""In which the slow tests compare every kind, in one of the wide forms by turns of the types of weights, so that each
has both kinds of activations: one for each way in which products are cut (`tile_of`, `few_rows`). In the other forms
they compare representatives, and the rest are companions."""


def write(kind: ProductKind, module: Module, isa: Isa) -> None:
    emit_interleave(module, kind.weights)
    writers = Writers(module, {kind.activations})
    f = Function(module, "activate", [I64, PTR, PTR, I64], exported=True)
    form, source, target, blocks = f.args
    writers.call(f, form, source, target, f.i64(0), blocks)
    f.ret()
    emit_product(module, isa, kind)


@cache
def code(kind: ProductKind, form: str) -> Functions:
    targets = executable_forms()
    return compiled(lambda module, isa: write(kind, module, isa), targets.get(form))


def file_rows(name: str, inputs: int) -> NDArray[np.uint8]:
    """Rows as they are in a file, [OUTPUTS, bytes]."""
    if name == "F8_E4M3":
        return float8_blocks(OUTPUTS, inputs)
    if name in FLOAT_TYPES:
        values = np.random.default_rng(4).normal(size=(OUTPUTS, inputs)).astype("<f4")
        if name == "BF16":
            return np.ascontiguousarray(values.view("<u2")[:, 1::2]).view(np.uint8)
        return (values.astype("<f2") if name == "F16" else values).view(np.uint8)
    if name == "Q8_X":
        return expanded_blocks(OUTPUTS, inputs)
    stored = random_blocks(name.removesuffix("_X"), OUTPUTS, inputs)[2]
    rows = np.frombuffer(stored, np.uint8).reshape(OUTPUTS, -1)
    if name == "NVFP4_X":  # a factor of each row
        parts = [expanded(NVFP4, row[None], inputs, 0.01 * (1 + index)) for index, row in enumerate(rows)]
        return np.concatenate(parts)
    return rows


def float8_blocks(rows: int, inputs: int) -> NDArray[np.uint8]:
    """Rows of F8_E4M3 with every code but NaN, and factors of 256 times a usual scale."""
    random = np.random.default_rng(7)
    codes = random.integers(0, 255, (rows, inputs // 32, 32), np.uint8)
    codes[codes == 0x7F] = 0x80
    factors = random.normal(size=(rows, inputs // 32, 1)).astype("<f4").view(np.uint8)
    return np.concatenate((factors, codes), axis=2).reshape(rows, -1)


def expanded_blocks(rows: int, inputs: int) -> NDArray[np.uint8]:
    """Rows of Q8_X whose weights are at most 4,096 with their scale, as those of all types that are expanded."""
    random = np.random.default_rng(6)
    count = inputs // 32
    factors = random.uniform(0.001, 0.02, (rows, count, 1)).astype("<f4").view(np.uint8)
    scales = random.integers(-32, 33, (rows, count, 2)).astype("<i2").view(np.uint8)
    weights = random.integers(-127, 128, (rows, count, 32)).astype(np.int8).view(np.uint8)
    return np.concatenate((factors, scales, weights), axis=2).reshape(rows, -1)


def expected(kind: ProductKind, rows: NDArray[np.uint8], x: NDArray[np.float32]) -> NDArray[np.float32]:
    if kind.weights == "BF16":
        return definition.float_product((rows.view("<u2").astype(np.uint32) << 16).view(np.float32), x)
    if kind.weights == "F8_E4M3":
        blocks = rows.reshape(OUTPUTS, -1, 36)
        factors = np.ascontiguousarray(blocks[..., :4]).view("<f4").astype(np.float64)
        return definition.float_product(
            (VALUES[blocks[..., 4:]] * factors / 256).astype(np.float32).reshape(OUTPUTS, -1), x
        )
    if kind.weights in FLOAT_TYPES:
        weights = rows.view({"F16": "<f2", "F32": "<f4"}[kind.weights]).astype(np.float32)
        return definition.float_product(weights, x)
    blocks = rows.reshape(OUTPUTS, -1, kind.type.block_bytes)
    parts = definition.PARTS[kind.weights](blocks)
    if kind.activations == "float32":
        return definition.float_product(definition.float_weights(parts), x)
    return definition.integer_product(parts, x)


class Product:
    """Weights as panels, and calls of the kernel."""

    def __init__(self, kind: ProductKind, form: str, rows: NDArray[np.uint8], inputs: int) -> None:
        self.kind, self.code, self.inputs = kind, code(kind, form), inputs
        self.panels = panel_count(OUTPUTS)
        self.blocks = inputs // kind.type.block_weights
        self.memory = np.full(self.panels * self.blocks * kind.type.panel_block_bytes, 0xEE, np.uint8)
        zeros = np.zeros(rows.shape[1], np.uint8)
        pointers = np.full(self.panels * PANEL_ROWS, address(zeros), np.int64)
        pointers[:OUTPUTS] = address(rows) + np.arange(OUTPUTS) * rows.shape[1]
        p, i = ctypes.c_void_p, ctypes.c_int64
        interleave = self.code.function(f"interleave_{kind.weights}", [p, i, p, i, i])
        interleave(address(pointers), self.blocks, address(self.memory), 0, self.panels)

    def activations(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        kind = ACTIVATIONS[self.kind.activations]
        found = np.zeros((len(x), kind.row_bytes(self.inputs)), np.uint8)
        p, i = ctypes.c_void_p, ctypes.c_int64
        activate = self.code.function("activate", [i, p, p, i])
        for row, target in zip(x, found, strict=True):
            activate(ACTIVATION_NAMES.index(kind.name), address(row), address(target), self.inputs // 32)
        return found

    def __call__(
        self,
        x: NDArray[np.float32],
        bias: NDArray[np.float32] | None = None,
        *,
        is_added: bool = False,
        scale: float = 1,
    ) -> NDArray[np.float32]:
        source = self.activations(x)
        out = np.full((len(x), self.panels * PANEL_ROWS), 3.0, np.float32)
        record = PRODUCT.record(
            0, panels=self.memory, panel_bytes=self.blocks * self.kind.type.panel_block_bytes, blocks=self.blocks,
            num_panels=self.panels, source=source, source_stride=source.shape[1], target=out,
            target_stride=self.panels * OUT_BYTES, bias=bias, is_added=is_added, claim=1, scale=scale,
        )  # fmt: skip
        scratch = np.zeros(1 << 20, np.uint8)
        scratch = scratch[-address(scratch) % 64 :]
        p, i = ctypes.c_void_p, ctypes.c_int64
        multiply = self.code.function(f"product_{self.kind.name}", [p, i, i, i, p])
        multiply(address(record), 0, self.panels, len(x), address(scratch))
        assert not out[:, OUTPUTS:].any() or is_added or bias is not None
        return out[:, :OUTPUTS]


def inputs_of(rows: int, inputs: int) -> NDArray[np.float32]:
    """Activations with large, tiny and zero blocks."""
    x = np.random.default_rng(rows).normal(size=(rows, inputs)).astype(np.float32)
    x[:, 5] *= 300
    x[0, 32:64] = 0
    x[-1, :32] *= np.float32(1e-34)
    return x


def check(kind: ProductKind, form: str) -> None:
    inputs = 512 if kind.type.block_weights > 32 else 288
    stored = file_rows(kind.weights, inputs)
    product = Product(kind, form, stored, inputs)
    x = inputs_of(max(ROWS), inputs)
    whole = expected(kind, stored, x)
    for count in ROWS:
        for rows in (slice(count), slice(-count, None)):  # the first and the last row are special
            assert product(x[rows]).tobytes() == whole[rows].tobytes()


@pytest.mark.parametrize("form", sorted(FORMS))
def test_all_functions_of_products_are_compared(form: str) -> None:
    isa = FORMS[form].isa
    for kind in KINDS:
        tile, single, few = tile_of(isa, kind.activations), single_rows(isa, kind), few_rows(isa, kind)
        assert {*range(1, single + 1)} <= {*ROWS}
        most = tile.rows if few is None else few
        for used in (range(single + 1, most + 1), range(most + 1, tile.rows + 1)):
            tiles = {
                rows // -(-rows // tile.rows) + extra
                for rows in ROWS
                for extra in (0, rows % -(-rows // tile.rows) > 0)
            }
            compared = _group_sizes([rows for rows in tiles if rows in used], tile.register_rows)
            assert compared == _group_sizes(used, tile.register_rows), kind.name


@pytest.mark.parametrize("kind", slow_but(FAST_KINDS, REPRESENTATIVES), ids=lambda kind: kind.name)
def test_a_product_has_the_bits_of_its_definition(kind: ProductKind) -> None:
    check(kind, "host")


def marks(kind: ProductKind, form: str) -> list[pytest.MarkDecorator]:
    wide = WIDE_FORMS[list(WEIGHT_TYPES).index(kind.weights) % len(WIDE_FORMS)]
    if kind in REPRESENTATIVES or form in (*MAIN_FORMS, wide):
        return [pytest.mark.slow]
    return [pytest.mark.slow, pytest.mark.companion]


def test_slow_tests_have_both_kinds_of_activations_in_every_wide_form() -> None:
    others = [kind for kind in KINDS if kind.weights in INTEGER_TYPES and kind not in REPRESENTATIVES]
    for form in WIDE_FORMS:
        compared = {kind.activations for kind in others if len(marks(kind, form)) == 1}
        assert compared == set(ACTIVATION_NAMES), form


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        pytest.param(kind, form, marks=marks(kind, form), id=f"{kind.name}-{form}")
        for kind in KINDS
        for form in sorted(executable_forms())
    ],
)
def test_every_form_has_the_bits_of_the_definition(kind: ProductKind, form: str) -> None:
    check(kind, form)


@pytest.mark.parametrize("name", slow_but(["Q6_K"], ["Q5_K", "Q6_K", "Q8_X"]))
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_with_their_scales_are_exact(name: str, sign: int) -> None:
    """Of the types with the largest: float32 has to hold them."""
    block = {
        "Q5_K": np.r_[np.array([1, -1], "<f2").view(np.uint8), np.full(172, 255, np.uint8)],
        "Q6_K": np.r_[np.zeros(192, np.uint8), np.full(16, 128, np.uint8), np.array([1], "<f2").view(np.uint8)],
        "Q8_X": np.r_[np.array([1], "<f4").view(np.uint8), np.array([32, 32], "<i2").view(np.uint8),
                      np.full(32, 127, np.uint8)],
    }[name]  # fmt: skip
    kind, inputs = ProductKind(name, "int8"), 512
    stored = np.tile(block, (OUTPUTS, inputs // kind.type.block_weights))
    x = sign * np.random.default_rng(3).integers(125, 128, (5, inputs)).astype(np.float32)
    x[:, ::32] = 127 * sign
    product = Product(kind, "host", stored, inputs)
    for rows in (1, 2, 5):
        assert product(x[:rows]).tobytes() == expected(kind, stored, x[:rows]).tobytes()


def test_bias_scale_and_addition_are_rounded_one_after_the_other() -> None:
    kind, inputs = FAST_KINDS[0], 256
    stored = file_rows(kind.weights, inputs)
    product = Product(kind, "host", stored, inputs)
    x = inputs_of(3, inputs)
    bias = np.random.default_rng(1).normal(size=80).astype(np.float32)
    plain = expected(kind, stored, x)
    scaled = (plain + bias[:OUTPUTS]) * np.float32(0.7)
    assert product(x, bias, scale=0.7).tobytes() == scaled.tobytes()
    assert product(x, bias, is_added=True, scale=0.7).tobytes() == (np.float32(3) + scaled).tobytes()


def test_nan_values_become_the_largest_step() -> None:
    kind, inputs = FAST_KINDS[0], 256
    product = Product(kind, "host", file_rows(kind.weights, inputs), inputs)
    x = np.ones((1, inputs), np.float32)
    x[0, 3] = np.nan
    steps = product.activations(x)[0].view(np.int8)
    assert np.abs(steps[:32].astype(int)).max() == 127
