"""A module is found again without being written, unless something that decides it may have changed."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from types import ModuleType

import pytest

from onward import kernels, sampling
from onward.kernels.code import load
from onward.kernels.object_cache import ObjectCache
from onward.kernels.recipe import Recipe
from tests.kernels.test_code import module_that_adds


@pytest.fixture
def package(tmp_path: Path) -> ModuleType:
    """A package of one file, imported a minute after it was written."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("A = 1\n", encoding="utf-8")
    made = ModuleType("package")
    made.__path__ = [str(folder)]
    made.IMPORTED_NS = time.time_ns() + 60_000_000_000  # type: ignore[attr-defined]
    return made


def recipe(package: ModuleType, *facts: object) -> Recipe:
    return Recipe(lambda: module_that_adds(3), facts, (package,))


def test_a_digest_covers_facts_and_sources(package: ModuleType) -> None:
    first = recipe(package, 1).digest()
    assert first is not None and recipe(package, 1).digest() == first
    digests = {first, recipe(package, 2).digest()}
    folder = Path(package.__path__[0])
    (folder / "__init__.py").write_text("A = 2\n", encoding="utf-8")
    digests.add(recipe(package, 1).digest())
    (folder / "other.py").write_text("", encoding="utf-8")
    digests.add(recipe(package, 1).digest())
    (folder / "other.py").rename(folder / "another.py")
    digests.add(recipe(package, 1).digest())
    assert len(digests) == 5 and None not in digests


def test_sources_that_changed_after_they_were_imported_say_nothing(package: ModuleType) -> None:
    package.IMPORTED_NS = time.time_ns() - 60_000_000_000  # type: ignore[attr-defined]
    assert recipe(package).digest() is None


def test_sources_that_are_not_files_say_nothing(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda self: (_ for _ in ()).throw(PermissionError()))
    assert recipe(package).digest() is None


def test_a_package_without_sources_says_nothing(package: ModuleType) -> None:
    (Path(package.__path__[0]) / "__init__.py").unlink()
    assert recipe(package).digest() is None


def test_a_module_that_was_compiled_is_not_written_again(package: ModuleType, tmp_path: Path) -> None:
    written: list[None] = []

    def text() -> str:
        written.append(None)
        return module_that_adds(4)

    made, cache = Recipe(text, ("test",), (package,)), ObjectCache(tmp_path / "kernels")
    for _ in range(3):
        code = load(made, cached_in=cache)
        assert code.function("test", [ctypes.c_int64], ctypes.c_int64)(2) == 6
    assert len(written) == 1
    package.IMPORTED_NS = 0  # type: ignore[attr-defined]
    assert load(made, cached_in=cache).was_compiled, "what is written then is kept under its text, not under the recipe"
    assert not load(module_that_adds(4), cached_in=cache).was_compiled


def test_the_packages_that_write_modules_know_when_they_were_imported() -> None:
    for each in (kernels, sampling):
        assert 0 < each.IMPORTED_NS < time.time_ns()
