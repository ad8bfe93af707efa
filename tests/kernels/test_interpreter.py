"""A model's whole module compiles for every processor, and needs nothing of a C library."""

from __future__ import annotations

import pytest

from onward.kernels.activations import ActivationName
from onward.kernels.attention_shape import AttentionShape
from onward.kernels.code import ALLOWED_SYMBOLS, compile_object, undefined_symbols
from onward.kernels.interpreter import Kernels
from onward.kernels.products import ProductKind
from onward.kernels.targets import FORMS

TYPES = ("Q4_K", "Q6_K", "Q8_0")


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["int8", "int16", "float32"])
def test_a_module_has_no_symbols_of_a_library(form: str, name: ActivationName) -> None:
    shape = AttentionShape(12, 2, 128, 128, is_wide=name == "float32", has_window=True)
    kernels = Kernels(tuple(ProductKind(kind, name) for kind in TYPES), ("Q4_K", "F32"), (shape,))
    target = FORMS[form]
    compiled = compile_object(kernels.module_text(target.isa), target)
    assert undefined_symbols(compiled) <= ALLOWED_SYMBOLS
