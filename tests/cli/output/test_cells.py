"""Widths of texts in terminal cells."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onward.cli.output.cells import cut, pad, width, wrap

TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=40)


def test_wide_characters_take_two_cells_and_combining_ones_none() -> None:
    assert [width(text) for text in ("abc", "日本", "e\u0301", "a\u200bb", "")] == [3, 4, 1, 2, 0]


def test_padding_is_in_cells() -> None:
    assert pad("日本", 6) == "日本  "
    assert pad("too long", 3) == "too long"


def test_a_wide_character_is_not_divided() -> None:
    assert cut("日本語", 5) == "日本"
    assert list(wrap("日本語", 5)) == ["日本", "語"]
    assert list(wrap("日本", 1)) == ["日", "本"]


def test_lines_and_tabs() -> None:
    assert list(wrap("ab\n\ncd\te", 80)) == ["ab", "", "cd      e"]
    assert cut("", 10) == ""


@given(TEXTS, st.integers(2, 20))
def test_wrapping_loses_nothing_and_no_line_is_too_wide(text: str, cells: int) -> None:
    lines = list(wrap(text, cells))
    assert "".join(lines) == text
    assert all(width(line) <= cells for line in lines)
    assert text.startswith(cut(text, cells))
