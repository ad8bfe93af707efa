"""What a process of Onward inherits."""

from __future__ import annotations

import os
import sys

import pytest

from onward.ipc.spawn import SECRET_VARIABLES, spawn
from onward.settings import options

SHOW = "import os; os.write(0 if os.name == 'posix' else 1, ' '.join(os.environ).encode())"


def test_the_variables_of_all_secret_settings_are_known() -> None:
    secret = {option.environment for option in options() if option.is_secret}
    assert secret | {"OPENAI_API_KEY"} == {*SECRET_VARIABLES}


def test_no_secret_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that computes strangers' grammars may be taken over: it has nothing to give away."""
    for name in SECRET_VARIABLES:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("ONWARD_THREADS", "1")
    process = spawn([sys.executable, "-c", SHOW])
    process.popen.wait(60)
    names = os.read(process.up, 1 << 16).decode().split()
    process.close()
    assert "ONWARD_THREADS" in names and not {*SECRET_VARIABLES} & {*names}
