"""The objects that a wheel brings are those that usual models need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onward.kernels import object_cache, self_test
from onward.kernels.code import load
from onward.kernels.interpreter import Kernels
from onward.kernels.object_cache import ObjectCache
from onward.kernels.products import ProductKind
from onward.kernels.recipe import Recipe
from onward.kernels.targets import FORMS, USUAL, Target, host
from onward.model_files.gguf import GGUFFiles
from onward.models.resolve import built_in_folder
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.native import load as native_load
from onward.runtimes.native import packaged
from onward.runtimes.table import load_model
from onward.sampling import kernels as sampling_kernels


class _Loading(Exception):
    """Ends a load before code is loaded."""


@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_the_built_in_model_needs_nothing_else(precision: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted: list[Recipe] = []

    def grab(*modules: Recipe, **_: object) -> None:
        wanted.extend(modules)
        raise _Loading

    monkeypatch.setattr(native_load, "load_code", grab)
    with pytest.raises(_Loading):
        load_model(
            GGUFFiles(built_in_folder("storyteller")),
            RuntimeOptions(precision=precision, cache_dir=tmp_path),
            lambda _: None,
        )
    isa = host().isa
    wanted += [*self_test.recipes(isa), sampling_kernels.recipe(isa)]
    there = {repr(each.facts) for each in packaged.recipes(isa)}
    assert len(wanted) > 10 and {repr(each.facts) for each in wanted} <= there


def test_each_object_is_compiled_once() -> None:
    for name in USUAL:
        facts = [repr(each.facts) for each in packaged.recipes(FORMS[name].isa)]
        assert len(facts) == len({*facts}) > 80


@pytest.mark.parametrize(
    ("architecture", "names"),
    [
        ("x86_64", ["avx2", "avx-vnni", "avx512-vnni", "avx512-vnni-zen"]),
        ("aarch64", ["neon-dot", "neon-i8mm"]),
        ("riscv64", []),
    ],
)
def test_an_image_has_objects_of_its_architecture_only(
    architecture: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "exact_host", lambda: Target(f"{architecture}-unknown-linux-gnu", "", "", host().isa))
    assert [each.isa.name for each in packaged.wanted_targets(only_here=True)] == names
    assert len(packaged.wanted_targets(only_here=False)) == len(USUAL)


def test_what_was_compiled_for_the_package_is_found_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By a user whose cache is empty: nothing is compiled, and nothing is written."""
    target, kernels = host(), Kernels((ProductKind("Q8_0", "int8"),), (), ())
    few = [each for each in kernels.recipes(target.isa) if each.facts[0] in ("emit_interleave", "_emit_interpreter")]
    monkeypatch.setattr(packaged, "recipes", lambda isa: few)
    monkeypatch.setattr(object_cache, "PACKAGED", tmp_path / "objects")
    packaged.write_objects(tmp_path / "objects", [target])
    cache = ObjectCache(tmp_path / "kernels")
    code = load(*few, cached_in=cache)
    assert len(few) == 2 and code.address("step") and not code.was_compiled and not (tmp_path / "kernels").exists()
    monkeypatch.setattr(object_cache, "PACKAGED", tmp_path / "elsewhere")
    assert load(*few, cached_in=cache).was_compiled


def test_sources_that_were_just_written_are_not_compiled_for_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Recipe, "digest", lambda self, known: None)
    with pytest.raises(RuntimeError, match="just been written"):
        packaged.write_objects(tmp_path / "objects", [host()])
