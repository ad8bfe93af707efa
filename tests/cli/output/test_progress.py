"""The progress line: rewritten in place on a terminal, sentences elsewhere."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from onward.cli.output import progress
from onward.cli.output.progress import loading, time_left, with_bar
from tests.waiting import wait_for


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error as a terminal on which the line is redrawn every millisecond."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    # not that of `sys`, which pytest replaces between a fixture and its test
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=terminal))
    monkeypatch.setattr(progress, "INTERVAL_SECONDS", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def wait_for_words(terminal: io.StringIO, words: str) -> None:
    wait_for(lambda: words in terminal.getvalue(), words)


def test_stages_are_a_line_that_is_removed_from_the_terminal(terminal: io.StringIO) -> None:
    with loading() as show:
        show("Loading storyteller")
        wait_for_words(terminal, "Loading storyteller …")
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_name_cannot_control_the_terminal(terminal: io.StringIO) -> None:
    with loading() as show:
        show("Loading a\x1b[31m\rb")
        wait_for_words(terminal, "Loading a\\x1b[31m\\x0db …")
    assert "\x1b[31m" not in terminal.getvalue()


def test_a_dumb_terminal_has_no_line_that_is_rewritten(terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    said: list[str] = []
    with loading(said.append) as show:
        show("Loading storyteller")
    assert said == ["Loading storyteller"] and terminal.getvalue() == ""


def test_a_remark_is_written_above_the_line_of_a_terminal(terminal: io.StringIO) -> None:
    def write(remark: str) -> None:
        terminal.write(f"{remark}\n")

    with loading(write) as show:
        show("Loading storyteller")
        show("Context lowered from 4096 to 512 tokens.")
        wait_for_words(terminal, "Context lowered from 4096 to 512 tokens.\n\r\x1b[KLoading storyteller …")
    assert "\r\x1b[KContext lowered" in terminal.getvalue()


def test_percentages_have_a_bar_and_the_time_left(terminal: io.StringIO) -> None:
    with loading() as show:
        show("Downloading m, 10 MB of 100 MB: 10 %")
        show("Downloading m, 40 MB of 100 MB: 40 %")
        wait_for_words(terminal, "Downloading m, 40 MB of 100 MB ━")
        wait_for_words(terminal, " left")
        show("Checking m")
        wait_for_words(terminal, "Checking m …")
    assert "━" not in terminal.getvalue().rpartition("Checking m")[2]


def test_stages_go_to_the_log_where_there_is_no_terminal() -> None:
    logged: list[str] = []
    with loading(logged.append) as show:
        show("Loading storyteller")
    assert logged == ["Loading storyteller"]


def test_the_log_has_a_line_for_each_tenth() -> None:
    logged: list[str] = []
    with loading(logged.append) as show:
        for percent in (0, 1, 9, 10, 19, 55, 100):
            show(f"Downloading m: {percent} %")
        show("Checking m")
        show("Downloading n: 100 %")
    percentages = [f"Downloading m: {percent} %" for percent in (0, 10, 55, 100)]
    assert logged == [*percentages, "Checking m", "Downloading n: 100 %"]


def test_stages_are_silent_where_there_is_neither(capsys: pytest.CaptureFixture[str]) -> None:
    with loading() as show:
        show("Loading storyteller")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_long_stage_is_cut_to_the_width_of_the_terminal(terminal: io.StringIO) -> None:
    line = progress.ProgressLine(lambda width: "x" * 200)
    line.draw()
    line.remove()
    assert max(len(written) for written in terminal.getvalue().split("\r\x1b[K")) == 77


def test_a_bar_stands_between_two_texts() -> None:
    assert with_bar("Converting", 2, 5, "40 %", 36) == f"Converting {'━' * 8}{'─' * 12} 40 %"
    assert with_bar("", 7, 5, "", 10) == "━" * 10
    assert with_bar("é" * 20, 1, 2, "50 %", 33) == "é" * 20 + " 50 %"


def test_the_time_left_is_estimated_from_what_was_done() -> None:
    assert time_left(0, 10, 5.0) == "" and time_left(10, 10, 5.0) == "0:00:00 left"
    assert time_left(1, 10, 7.0) == "0:01:03 left"
