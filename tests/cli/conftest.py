"""Tests of the command line run without the settings of the developer."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from onward.cli.root import root

from ..listening import served_here


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        ours = name.startswith(("OPENAI_", "ONWARD_", "HF_")) or name in ("NO_COLOR", "FORCE_COLOR")
        if ours or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries and polls of a server come without a pause."""
    monkeypatch.setattr("onward.cli.source.transport.INITIAL_DELAY_SECONDS", 0.01)
    monkeypatch.setattr("onward.cli.batch.remote.POLL_SECONDS", 0.01)


def runner() -> CliRunner:
    """A runner that keeps standard output and standard error apart: click does so by itself from 8.2 on."""
    options: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    return CliRunner(**options)


def onward(*arguments: str, stdin: str | bytes | None = None) -> Result:
    """`onward …` in this process, off a terminal."""
    return runner().invoke(root, list(arguments), prog_name="onward", input=stdin)


def create(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return onward("completions", "create", *arguments, stdin=stdin)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a server of the toy model on a real socket, /v1 included."""
    with served_here() as url:
        yield url + "/v1"
