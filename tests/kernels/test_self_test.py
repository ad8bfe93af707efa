"""The self-test at load: every form passes it, and on a machine that fails it, the error says what is wrong."""

from __future__ import annotations

from functools import cache

import pytest

from onward.kernels import self_test
from onward.kernels.compiler import compile_object, undefined_symbols
from onward.kernels.self_test import EXPECTED, digest_of, recipes, run_self_test
from onward.kernels.targets import FORMS
from tests.kernels.emulated import executable_forms, linked


@cache
def compiled(form: str) -> list[bytes]:
    return [compile_object(recipe.text(), FORMS[form]) for recipe in recipes(FORMS[form].isa)]


def test_this_machine_passes() -> None:
    assert run_self_test().problem == ""


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(executable_forms()))
def test_every_form_passes(form: str) -> None:
    target = FORMS[form]
    assert digest_of(linked(compiled(form), target), target.isa) == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_form_is_compiled_without_calls_into_a_library(form: str) -> None:
    for data in compiled(form):
        assert undefined_symbols(data) <= {"memcpy", "memset", "_GLOBAL_OFFSET_TABLE_"}


def test_another_result_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "EXPECTED", "0123456789abcdef")
    problem = run_self_test().problem
    assert problem.startswith("The kernels compute other numbers here than on other machines (")
    assert "instead of 01234567" in problem
