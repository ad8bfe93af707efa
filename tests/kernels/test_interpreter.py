"""The modules of a model compile for every processor, and import nothing from a C library."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from onward.kernels.activations import ActivationName
from onward.kernels.attention_shape import AttentionShape
from onward.kernels.code import load
from onward.kernels.compiler import ALLOWED_SYMBOLS, compile_object, undefined_symbols
from onward.kernels.interpreter import NUM_OPERATIONS, Kernels
from onward.kernels.machine import Machine
from onward.kernels.parts import Part
from onward.kernels.products import ProductKind
from onward.kernels.recipe import Recipe
from onward.kernels.records import RECORD_WORDS
from onward.kernels.targets import FORMS, host
from tests.runtimes.native.test_model_bounds import NoWeights

TYPES = ("Q4_K", "Q6_K", "Q8_0")


def cases() -> list[Any]:
    """Activations and forms. The slow tests compile one of both kinds for each form by turns, and both where the most
    is done in software; companions compile the others."""
    found = []
    for place, form in enumerate(FORMS):
        for index, name in enumerate(("int8", "float32")):
            is_often = form == "sse2" or place % 2 == index
            marks = [pytest.mark.slow] if is_often else [pytest.mark.slow, pytest.mark.companion]
            found.append(pytest.param(name, form, marks=marks, id=f"{name}-{form}"))
    return found


@pytest.mark.parametrize(("name", "form"), cases())
def test_no_module_has_symbols_of_a_library(name: ActivationName, form: str) -> None:
    shape = AttentionShape(12, 2, 128, 128, is_wide=name == "float32", has_window=True)
    kernels = Kernels(tuple(ProductKind(kind, name) for kind in TYPES), ("Q4_K", "F32"), (shape,))
    target = FORMS[form]
    for recipe in kernels.recipes(target.isa):
        assert undefined_symbols(compile_object(recipe.text(), target)) <= ALLOWED_SYMBOLS


def test_models_share_the_modules_of_what_they_both_need() -> None:
    shapes = AttentionShape(4, 2, 16, 16), AttentionShape(4, 2, 32, 32), AttentionShape(4, 2, 16, 8)
    one = Kernels((ProductKind("Q4_K", "int8"), ProductKind("F16", "float32")), ("F16",), shapes[:1])
    other = Kernels((ProductKind("Q6_K", "int8"), ProductKind("F16", "float32")), ("F16",), shapes, has_experts=True)
    first, second = ([recipe.facts[0] for recipe in each] for each in _only_in(one, other))
    assert Counter(first) == Counter(["emit_interleave", "_emit_products"])
    assert Counter(second) == Counter(
        [*first, "emit_norm_heads", "emit_rotate", "emit_rotate", "_emit_attention", "_emit_experts"]
    )
    for kernels in (one, other):
        assert len({recipe.facts for recipe in kernels.recipes(host().isa)}) == len(kernels.recipes(host().isa))


def test_an_invalid_record_is_skipped() -> None:
    """A late thread may read what used to be a record."""
    kernels = Kernels((ProductKind("F32", "float32"),), ("F32",), (AttentionShape(4, 2, 16, 16),))
    records = np.zeros((5, RECORD_WORDS), np.int64)
    records[:4, 0] = NUM_OPERATIONS - 1, NUM_OPERATIONS, 1 << 50, -1
    machine = Machine(
        load(*kernels.recipes(host().isa)), [Part(None, records)], NoWeights(), kernels, rows=1, positions=64,
        threads=1, scratch_bytes=4096,
    )  # fmt: skip
    machine.step(1, [Part(None, records)])
    machine.close()


def _only_in(one: Kernels, other: Kernels) -> tuple[list[Recipe], list[Recipe]]:
    """Return the modules that only one of the two models needs."""
    first, second = one.recipes(host().isa), other.recipes(host().isa)
    both = {recipe.facts for recipe in first} & {recipe.facts for recipe in second}
    return [each for each in first if each.facts not in both], [each for each in second if each.facts not in both]
