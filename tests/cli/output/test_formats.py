"""Results in every format, and figures in words."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from onward.cli.output.formats import amount, render
from onward.cli.output.live import LiveText, Stats, alternatives, coloured_text
from onward.cli.output.terminal import Style, text_width, visible
from onward.cli.request.yaml12 import load

VALUE = {"choices": [{"text": "é\x1b[31m\n", "index": 0, "logprobs": None}], "usage": {"total_tokens": 3}}


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


@pytest.mark.parametrize("format", ["auto", "json", "jsonl", "raw"])
def test_json_formats_carry_the_value(format: str) -> None:
    text = render(VALUE, format=format)
    assert json.loads(text) == VALUE
    assert ("\n" in text) == (format in ("auto", "json"))


def test_raw_is_what_was_sent() -> None:
    assert render({"a": 1.0}, format="raw", raw='{"a" :1.0}') == '{"a" :1.0}'
    assert render({"a": [1]}, format="raw", raw='{"a" :[1]}', transform="a") == "[1]"


def test_yaml_carries_the_value_in_its_order() -> None:
    text = render(VALUE, format="yaml")
    assert load(text) == VALUE
    assert text.startswith("choices:")


def test_colours_change_nothing_but_colours() -> None:
    coloured = render(VALUE | {"n": -1.5e3, "b": True}, format="json", colour=True)
    assert coloured != plain(coloured)
    assert json.loads(plain(coloured)) == VALUE | {"n": -1.5e3, "b": True}


def test_pretty_is_a_box_of_paths_and_values() -> None:
    text = render(VALUE, format="pretty")
    assert text.startswith("╭") and text.endswith("╯")
    assert re.search(r"│ choices\.0\.index\s+│ 0\s+│", text)
    assert re.search(r"│ usage\.total_tokens\s+│ 3\s+│", text)
    assert "\x1b" not in text


def test_pretty_wraps_long_values_and_aligns_wide_characters() -> None:
    text = render({"a": "x" * 150, "名前": "日本\nline"}, format="pretty")
    assert {text_width(line) for line in text.split("\n")} == {100}
    assert text.count("x") == 150
    assert re.search(r"│ 名前 │ 日本 +│\n│      │ line +│", text)
    assert render(1, format="pretty") == "╭──┬───╮\n│  │ 1 │\n╰──┴───╯"


def test_raw_strings_are_escaped_on_a_terminal_only() -> None:
    assert render(VALUE, format="json", transform="choices.0.text", raw_strings=True) == "é\x1b[31m\n"
    shown = render(VALUE, format="json", transform="choices.0.text", raw_strings=True, terminal=True)
    assert shown == "é\\x1b[31m\n"


def test_text_cannot_control_the_terminal() -> None:
    assert visible("a\x1b[2J\x07\x9b\x7f\rb\tc\n") == "a\\x1b[2J\\x07\\x9b\\x7f\\x0db\tc\n"


def live(fields: dict[str, Any], *parts: dict[str, Any], bare: bool = False) -> str:
    written: list[str] = []
    text = LiveText(written.append, Style(False), fields, bare=bare)
    for part in parts:
        text.add({"choices": [part]})
    text.finish()
    return "".join(written)


def part(index: int, text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": finish_reason}


def test_interleaved_choices_are_printed_one_after_another() -> None:
    shown = live({"prompt": "P", "n": 2}, part(1, "c"), part(0, "a"), part(1, "d", "stop"), part(0, "b", "stop"))
    assert shown == "── Choice 1 of 2 ──\nPab\n\n── Choice 2 of 2 ──\nPcd\n"


def test_the_first_choice_is_live() -> None:
    written: list[str] = []
    text = LiveText(written.append, Style(False), {"prompt": "P", "n": 2})
    text.add({"choices": [part(1, "later")]})
    assert written == []
    text.add({"choices": [part(0, "now")]})
    assert "".join(written).endswith("Pnow")


def test_prompts_of_a_batch_have_headings() -> None:
    shown = live({"prompt": ["A", [1, 2]]}, part(0, "a", "stop"), part(1, "b", "stop"))
    assert shown == "── Prompt 1 of 2 ──\nAa\n\n── Prompt 2 of 2 ──\n[2 tokens] b\n"


def test_an_echoed_prompt_is_printed_once_and_dimmed() -> None:
    written: list[str] = []
    text = LiveText(written.append, Style(True), {"prompt": "Once", "echo": True})
    text.add({"choices": [part(0, "On"), part(0, "ce upon", "stop")]})
    text.finish()
    assert "".join(written) == "\x1b[2mOn\x1b[0m\x1b[2mce\x1b[0m upon\n"


def test_a_suffix_follows_its_completion() -> None:
    assert live({"prompt": "a", "suffix": "c"}, part(0, "b", "stop")) == "abc\n"


def test_off_a_terminal_several_texts_have_the_old_headings() -> None:
    shown = live({"prompt": "P", "n": 2}, part(0, "a", "stop"), part(1, "b\n", "stop"), bare=True)
    assert shown == "===== Completion 0 =====\na\n===== Completion 1 =====\nb\n"


LOGPROBS = {
    "tokens": [" a", "b\n"],
    "token_logprobs": [None, -0.01],
    "top_logprobs": [None, {"b\n": -0.01, "c": -5.0, " d": -6.0}],
}


def test_alternatives_are_listed_with_probabilities() -> None:
    assert alternatives(LOGPROBS, Style(False)).strip() == "␣a      –\nb⏎  99.0%  c 0.7%  ␣d 0.2%"


def test_tokens_are_coloured_by_probability_when_they_spell_the_text() -> None:
    assert coloured_text(" ab\n", LOGPROBS, Style(True)) == " a\x1b[38;5;40mb\n\x1b[0m"
    assert coloured_text("else", LOGPROBS, Style(True)) == "else"


def test_stats_show_tokens_speed_and_first_token() -> None:
    times = iter([10.0, 10.5, 12.5])
    stats = Stats(clock=lambda: next(times), streamed=True)
    stats.add({"choices": [{"finish_reason": None}]})
    usage = {"prompt_tokens": 4, "completion_tokens": 21, "prompt_tokens_details": {"cached_tokens": 3}}
    stats.add({"choices": [{"finish_reason": "length"}], "usage": usage})
    assert stats.summary() == (
        "prompt 4 tokens (3 cached) · completion 21 tokens · 10.0 tok/s · first token after 0.50 s · "
        "total 2.50 s · finish reason: length"
    )


def test_stats_without_usage_say_how_to_get_it() -> None:
    stats = Stats()
    stats.add({"choices": [{"finish_reason": "stop"}]})
    assert "--stream-options.include-usage" in stats.summary()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.000_001, "0.000001"), (2.5, "2.5"), (10.0, "10"), (123_456_789.123_456, "123456789.123456")],
)
def test_amounts_of_money_are_plain_numbers(value: float, text: str) -> None:
    assert amount(value) == text
