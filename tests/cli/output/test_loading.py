"""The progress line: rewritten in place on a terminal, sentences elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from onward.cli.output import loading


def test_stages_are_a_line_on_a_terminal_that_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(loading, "INTERVAL_SECONDS", 0.001)
    with loading.loading() as show:
        show("Loading storyteller")
        while "Loading storyteller …" not in terminal.getvalue():
            pass
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_stages_go_to_the_log_where_there_is_no_terminal() -> None:
    logged: list[str] = []
    with loading.loading(logged.append) as show:
        show("Loading storyteller")
    assert logged == ["Loading storyteller"]


def test_stages_are_silent_where_there_is_neither(capsys: pytest.CaptureFixture[str]) -> None:
    with loading.loading() as show:
        show("Loading storyteller")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
