"""Compilation of the kernels is reported; loading them from numba's cache is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from onward.compose.engine import COMPILING
from onward.sampling.compilation import on_compilation
from onward.sampling.vocab_blocks import compiled


def num_notifications() -> int:
    """Return how often the compilation of a new small function is reported, in calls with two types."""

    def increment(number: float) -> float:
        return number + 1

    calls: list[None] = []
    function = compiled(cache=True)(increment)
    with on_compilation(lambda: calls.append(None)):
        assert (function(1), function(1.5)) == (2, 2.5)
    return len(calls)


def test_compilation_is_reported_once_and_only_with_a_cold_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert [num_notifications(), num_notifications()] == [1, 0]


def test_nothing_is_reported_after_the_context() -> None:
    calls: list[None] = []
    with on_compilation(lambda: calls.append(None)):
        pass
    assert compiled()(lambda number: number * 2)(2) == 4
    assert calls == []


@pytest.mark.slow
def test_the_first_start_says_that_kernels_are_compiled(tmp_path: Path) -> None:
    code = "from onward.compose import compose; from onward.settings import Settings\n"
    code += "compose(Settings(model=('toy',)), print)"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def start() -> list[str]:
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    assert COMPILING in start()
    assert start() == ["Loading toy"]
