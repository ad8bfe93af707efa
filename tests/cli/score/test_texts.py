"""The texts of a file, and errors in it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from onward.cli.score.texts import InputText, read_texts
from onward.errors import SetupError


def texts(tmp_path: Path, content: str | bytes, form: Any = "auto", name: str = "in.txt") -> list[InputText]:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_texts(path, form)


def test_a_file_is_one_text_with_its_line_breaks(tmp_path: Path) -> None:
    assert texts(tmp_path, "a\r\n\nb\n") == [InputText("1", "a\r\n\nb\n")]


def test_lines_are_numbered_as_in_the_file_and_blank_ones_are_skipped(tmp_path: Path) -> None:
    assert texts(tmp_path, "\ufeffa \r\n\n b", "lines") == [InputText("1", "a "), InputText("3", " b")]


def test_json_lines_are_strings_or_objects(tmp_path: Path) -> None:
    pair, other = '{"id": "x", "context": "c", "continuation": "d"}', '{"id": 7, "prompt": "", "completion": "e"}'
    lines = f'"a"\n\n{{"text": "b", "other": 1}}\n{pair}\n{other}\n'
    expected = [InputText("1", "a"), InputText("3", "b"), InputText("x", "d", "c"), InputText("7", "e", "")]
    assert texts(tmp_path, lines, name="in.jsonl") == texts(tmp_path, lines, "jsonl") == expected


@pytest.mark.parametrize(
    ("content", "form", "problem"),
    [
        (b"", "text", "in.txt contains no text."),
        (b"\n \n", "lines", "in.txt contains no text."),
        (b"a\xff", "text", "in.txt is not UTF-8 text (invalid start byte at byte 1)."),
        (b"{", "jsonl", "in.txt line 1 is not JSON"),
        (b"1", "jsonl", "in.txt line 1 is neither a string nor an object with the key `text`."),
        (b"{}", "jsonl", "in.txt line 1 has none of the keys text, continuation, completion"),
        (b'{"text": 1}', "jsonl", "in.txt line 1: `text` is not a string."),
        (b'{"text": "a", "completion": "b"}', "jsonl", "has both `text` and `completion`"),
        (b'{"text": "a", "id": true}', "jsonl", "`id` is neither a string nor an integer."),
        (b'{"text": "a", "id": 2}\n"b"', "jsonl", "texts 1 and 2 have the same id, '2'"),
        (b'{"text": ""}', "jsonl", "text 1 is empty"),
        (b"[" * 100_000, "jsonl", "in.txt line 1 is not JSON"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, content: bytes, form: Any, problem: str) -> None:
    with pytest.raises(SetupError) as error:
        texts(tmp_path, content, form)
    assert problem in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"none\.txt cannot be read: No such file"):
        read_texts(tmp_path / "none.txt", "auto")


def test_a_digest_distinguishes_a_context_from_none_and_from_the_text() -> None:
    several = {
        InputText("1", "ab").digest,
        InputText("1", "b", "a").digest,
        InputText("1", "ab", "").digest,
        InputText("1", "a").digest,
    }
    assert len(several) == 4 and InputText("1", "ab").digest == InputText("2", "ab").digest


def test_a_terminal_is_read_only_if_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever forgets the file would wait for nothing."""
    typed = io.TextIOWrapper(io.BytesIO(b"A fox."), encoding="utf-8")
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", typed)
    with pytest.raises(click.UsageError, match="Pass a FILE of texts"):
        read_texts(None, "auto")
    assert [each.text for each in read_texts(Path("-"), "auto")] == ["A fox."]
