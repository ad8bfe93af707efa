"""A start that compiles the kernels says so; one that loads them from numba's cache does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from onward.compose import COMPILING
from onward.sampling import kernels


def notices() -> int:
    """How often a new process of this small function is notified of its compilation, in two calls."""

    def increment(number: int) -> int:
        return number + 1

    calls: list[None] = []
    function = kernels.compiled(cache=True)(increment)
    with kernels.on_compilation(lambda: calls.append(None)):
        assert (function(1), function(1.5)) == (2, 2.5)
    return len(calls)


def test_only_a_cold_cache_is_noticed_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert [notices(), notices()] == [1, 0]


def test_nothing_is_noticed_afterwards() -> None:
    calls: list[None] = []
    with kernels.on_compilation(lambda: calls.append(None)):
        pass
    assert kernels.compiled()(lambda number: number * 2)(2) == 4
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
