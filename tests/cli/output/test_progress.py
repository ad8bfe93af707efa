"""The progress line: rewritten in place on a terminal, sentences elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from onward.cli.output import progress
from onward.cli.output.progress import loading, with_bar


def test_stages_are_a_line_that_is_removed_from_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "INTERVAL_SECONDS", 0.001)
    with loading() as show:
        show("Loading storyteller")
        while "Loading storyteller …" not in terminal.getvalue():
            pass
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_stages_go_to_the_log_where_there_is_no_terminal() -> None:
    logged: list[str] = []
    with loading(logged.append) as show:
        show("Loading storyteller")
    assert logged == ["Loading storyteller"]


def test_stages_are_silent_where_there_is_neither(capsys: pytest.CaptureFixture[str]) -> None:
    with loading() as show:
        show("Loading storyteller")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_long_stage_is_cut_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    line = progress.ProgressLine(lambda: "x" * 200)
    line.draw()
    line.remove()
    assert max(len(written) for written in terminal.getvalue().split("\r\x1b[K")) == 79


def test_percent_have_a_bar() -> None:
    assert with_bar("Converting m.gguf: 40 %") == f"Converting m.gguf {'━' * 8}{'╌' * 12} 40 %"
    assert with_bar("Loading m: it is large") == "Loading m: it is large"
