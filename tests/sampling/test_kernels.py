"""Compilation of the kernels is reported; loading what was compiled before is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onward.compose.engine import COMPILING
from onward.sampling import kernels
from onward.sampling.kernels import load_kernels


@pytest.mark.slow
def test_compilation_is_reported_only_where_nothing_was_compiled_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    heard: list[str] = []
    for state in ("new", "cached", "loaded"):
        if state != "loaded":
            monkeypatch.setattr(kernels, "_loaded", [])
        load_kernels(lambda state=state: heard.append(state))  # type: ignore[misc]
    assert heard == ["new"]


@pytest.mark.slow
def test_the_first_start_says_that_kernels_are_compiled(tmp_path: Path) -> None:
    code = "import sys; from onward.compose import compose; from onward.settings import Settings\n"
    # one write per line: two threads write, and `print` would write a line and its end separately
    code += "compose(Settings(model=('toy',)), lambda line: sys.stdout.write(line + chr(10)))"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}

    def start() -> list[str]:
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    assert COMPILING in start()
    assert start() == ["Loading toy"]
