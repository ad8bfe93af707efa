"""What a process of Onward inherits."""

from __future__ import annotations

import ast
import os
import sys

import pytest

from onward.ipc.spawn import SECRET_VARIABLES, spawn
from onward.settings import options

SHOW = "import os; os.write(0 if os.name == 'posix' else 1, repr(dict(os.environ)).encode())"


def inherited() -> dict[str, str]:
    """The variables of a process that was started."""
    process = spawn([sys.executable, "-c", SHOW])
    process.popen.wait(60)
    found: dict[str, str] = ast.literal_eval(os.read(process.up, 1 << 16).decode())
    process.close()
    return found


def test_the_variables_of_all_secret_settings_are_known() -> None:
    secret = {option.environment for option in options() if option.is_secret}
    assert secret | {"OPENAI_API_KEY"} == {*SECRET_VARIABLES}


def test_no_secret_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that compiles untrusted grammars may be compromised; it must not have secrets."""
    for name in SECRET_VARIABLES:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("ONWARD_THREADS", "1")
    found = inherited()
    assert "ONWARD_THREADS" in found and not {*SECRET_VARIABLES} & {*found}


@pytest.mark.parametrize(("stated", "right"), [(None, "1"), ("3", "3")])
def test_numpys_threads_are_not_started(stated: str | None, right: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from programs that import the library; their own variables are left alone."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if stated is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", stated)
    assert inherited()["OPENBLAS_NUM_THREADS"] == right
