"""Output on a terminal, and its width in cells. Styles are written as tags: {dim:…}, {bold:…}."""

from __future__ import annotations

import io
import json
import re
import signal
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import wcwidth
from hypothesis import given
from hypothesis import strategies as st

from onward.cli.output import terminal
from onward.cli.output.terminal import cut, dotted, pad, pluralize, text_width, wrap

from ..conftest import create
from ..scripted import DONE, STREAM_HEAD, chunk, error, scripted, slow_stream, waiting_stream
from ..terminal import Terminal

TOY = ("completions", "create", "--model", "toy", "--seed", "1", "--max-tokens", "8")


def seen(server: str, *arguments: str, piped: bytes | None = None, **environment: str) -> tuple[str, int]:
    """(screen, exit code) of a run with the server, which is faster than loading a model."""
    with Terminal(*TOY, "--base-url", server, *arguments, piped=piped, **environment) as terminal:
        code = terminal.end()
    asking, _, rest = terminal.screen.partition("\n")
    assert f"Using {server} (--base-url)" in asking
    return rest, code


def toy_text(prompt: str, *more: str) -> str:
    text: str = json.loads(create(prompt, *TOY[2:], *more).stdout)["choices"][0]["text"]
    return text


@pytest.mark.slow
def test_the_prompt_is_dimmed_and_the_progress_line_is_removed() -> None:
    with Terminal(*TOY, "Once upon a time") as terminal:
        assert terminal.end() == 0
    assert terminal.screen == "{dim:Once upon a time}" + toy_text("Once upon a time") + "\n"


@pytest.mark.slow
def test_several_choices_have_headings_and_stats_follow(server: str) -> None:
    screen, code = seen(server, "--n", "2", "--stats", "Once upon a time")
    whole = json.loads(create("Once upon a time", *TOY[2:], "--n", "2").stdout)
    first, second = (choice["text"] for choice in whole["choices"])
    head, _, stats = screen.rpartition("{dim:prompt ")
    assert code == 0
    assert head == (
        "{bold:── Choice 1 of 2 ──}\n{dim:Once upon a time}" + first + "\n\n"
        "{bold:── Choice 2 of 2 ──}\n{dim:Once upon a time}" + second + "\n"
    )
    assert stats.startswith("7 tokens (0 cached) · completion 16 tokens · ")
    assert "first token after" in stats and stats.endswith("finish reason: length}\n")


@pytest.mark.slow
def test_log_probabilities_are_coloured_and_listed(server: str) -> None:
    screen, _ = seen(server, "--logprobs", "2", "--temperature", "0", "Once")
    whole = json.loads(create("Once", *TOY[2:], "--logprobs", "2", "--temperature", "0").stdout)
    tokens = whole["choices"][0]["logprobs"]["tokens"]
    assert screen.startswith("{dim:Once}{38;5;")
    text, _, listed = screen.partition("\n\n")
    assert text.count("{38;5;") == len(tokens)
    assert len(listed.strip().splitlines()) == 1 + len(tokens)
    assert listed.startswith("{38;5;40:≥90%} {38;5;112:≥60%}")


@pytest.mark.slow
def test_no_color_leaves_plain_text(server: str) -> None:
    screen, _ = seen(server, "Once", NO_COLOR="1")
    assert screen == "Once" + toy_text("Once") + "\n"


@pytest.mark.slow
def test_a_piped_prompt_is_printed_live_too(server: str) -> None:
    screen, _ = seen(server, piped=b"Once upon a time")
    assert screen == "{dim:Once upon a time}" + toy_text("Once upon a time") + "\n"


@pytest.mark.slow
def test_requested_json_is_coloured(server: str) -> None:
    screen, _ = seen(server, "--format", "jsonl", "--transform", "usage.total_tokens", "Once")
    assert screen == "{36:12}\n"


@pytest.mark.slow
def test_explore_on_a_terminal_is_live_text(server: str) -> None:
    with Terminal(*TOY, "--base-url", server, "--format", "explore", "Once") as terminal:
        assert terminal.end() == 0
    assert terminal.screen.startswith("{dim:--format explore: onward has no explorer; using auto}\n")
    assert terminal.screen.endswith("{dim:Once}" + toy_text("Once") + "\n")


@pytest.mark.slow
def test_best_of_is_not_streamed(server: str) -> None:
    screen, code = seen(server, "--best-of", "2", "Once")
    assert code == 0
    assert screen == "{dim:Once}" + toy_text("Once", "--best-of", "2") + "\n"


def test_text_is_printed_as_it_arrives_after_the_name_of_the_server() -> None:
    with (
        scripted(slow_stream) as server,
        Terminal("completions", "create", "-m", "m", "Once", OPENAI_BASE_URL=server.url) as terminal,
    ):
        terminal.wait_for("first")
        assert "second" not in terminal.screen
        assert f"{{dim:Using {server.url} (OPENAI_BASE_URL)}}" in terminal.screen
        server.go_on.set()
        assert terminal.end() == 0
        assert terminal.screen.endswith("{dim:Once} first second\\x1b[2J\n")
        assert server.requests[0].fields == {"model": "m", "prompt": "Once", "stream": True}


@pytest.mark.slow
def test_a_retry_is_noted_before_the_completion() -> None:
    busy = error(429, "Slow down.", retry_after_ms="300")
    with (
        scripted(busy, STREAM_HEAD + chunk(" there", "stop") + DONE) as server,
        Terminal("completions", "create", "-m", "m", "Once", "--base-url", server.url) as terminal,
    ):
        assert terminal.end() == 0
        assert "\n{dim:Slow down. Retrying in 0.3 s.}\n{dim:Once} there\n" in terminal.screen


def test_ctrl_c_exits_with_code_130_and_closes_the_connection() -> None:
    with (
        scripted(waiting_stream) as server,
        Terminal("completions", "create", "-m", "m", "Once", "--base-url", server.url) as terminal,
    ):
        terminal.wait_for("first")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.screen
        assert server.departed.wait(60)


@pytest.mark.slow
def test_ctrl_c_stops_the_model_in_this_process() -> None:
    long = ("--max-tokens", "2000", "--ignore-eos", "--n", "100")
    with Terminal("completions", "create", "--model", "toy", "Once", *long) as terminal:
        terminal.wait_for("Once")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.screen


TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=40)


def test_wide_characters_take_two_cells_and_combining_ones_none() -> None:
    assert [text_width(text) for text in ("abc", "日本", "e\u0301", "a\u200bb", "")] == [3, 4, 1, 2, 0]


def test_padding_is_in_cells() -> None:
    assert pad("日本", 6) == "日本  "
    assert pad("too long", 3) == "too long"


def test_a_wide_character_is_not_divided() -> None:
    assert cut("日本語", 5) == "日本"
    assert list(wrap("日本語", 5)) == ["日本", "語"]
    assert list(wrap("日本", 1)) == ["日", "本"]


def test_a_grapheme_counts_as_one_character() -> None:
    family, flag, heart = "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f"
    assert [text_width(text) for text in (family, flag, heart)] == [2, 2, 2]
    assert list(wrap(family + flag + heart, 3)) == [family, flag, heart]


def test_line_breaks_are_kept_and_tabs_expanded() -> None:
    assert list(wrap("ab\n\ncd\te", 80)) == ["ab", "", "cd      e"]
    assert cut("", 10) == ""


@given(TEXTS, st.integers(2, 20))
def test_wrapping_loses_nothing_and_no_line_is_too_wide(text: str, cells: int) -> None:
    lines = list(wrap(text, cells))
    assert "".join(lines) == text
    for line in lines:  # a combining mark without a base character is wider before other characters than alone
        widths = [text_width(grapheme) for grapheme in wcwidth.iter_graphemes(line)]
        assert sum(widths) <= cells or len(widths) == 1
    assert text.startswith(cut(text, cells))


@pytest.mark.parametrize(("number", "words"), [(0, "0 lines"), (1, "1 line"), (2, "2 lines"), (2000, "2,000 lines")])
def test_counts_are_pluralized(number: int, words: str) -> None:
    assert pluralize(number, "line") == words


def test_parts_are_broken_between_dots_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, parts = io.StringIO(), ["a" * 30, "b" * 30, "c" * 30, "d" * 90]
    assert dotted(parts, stream) == " · ".join(parts)
    monkeypatch.setattr(stream, "isatty", lambda: True)
    assert dotted(parts, stream) == f"{'a' * 30} · {'b' * 30}\n{'c' * 30}\n{'d' * 90}"
    assert dotted([], stream) == ""


def test_a_remark_and_the_end_of_its_line_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two, the thread of the progress line may write, which erases what is there."""
    stream = Mock(isatty=lambda: True, encoding="utf-8")
    monkeypatch.setattr(terminal, "sys", SimpleNamespace(stderr=stream))
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.note("Slow down.")
    [((written,), _)] = stream.write.call_args_list
    assert written.endswith("Slow down.\n")


@pytest.mark.slow
def test_what_a_model_is_good_for_is_below_its_name_where_a_terminal_is_narrow() -> None:
    with Terminal("models", "search", "code") as terminal:
        assert terminal.end() == 0
        lines = terminal.screen.splitlines()
    (place,) = [index for index, line in enumerate(lines) if line.startswith("qwen-coder ")]
    assert lines[place].endswith("Apache-2.0") and re.fullmatch(r" {4}\S.{10,95}", lines[place + 1])
