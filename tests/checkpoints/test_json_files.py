"""JSON files of models: what Python writes and JSON does not have, and sizes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from onward.checkpoints.json_files import _NO_NUMBERS, MAX_JSON_ENTRIES, read_object
from onward.errors import CheckpointError


def test_numbers_without_end_and_no_numbers_are_texts_of_their_names(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": [Infinity, -Infinity, NaN, 1], "Infinity": "NaN, \\" NaN"}', encoding="utf-8")
    assert read_object(path) == {"a": ["Infinity", "-Infinity", "NaN", 1], "Infinity": 'NaN, " NaN'}


def test_a_text_that_never_ends_is_searched_once() -> None:
    """Anew from each quote in it, that would take an hour for a megabyte."""
    text = b'"' + 5 * b'\\"'
    assert _NO_NUMBERS.findall(b'{"a": Infinity, ' + text) == [b'"a"', b"Infinity", text]


def test_a_text_of_a_million_characters_is_searched_in_as_much_memory_as_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": NaN, "b": "' + 500_000 * b'\\"' + b'"}')
    tracemalloc.start()
    try:
        assert read_object(path)["b"] == 500_000 * '"'
        assert tracemalloc.get_traced_memory()[1] < 10 * path.stat().st_size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" + b"0," * MAX_JSON_ENTRIES + b"0]", "has more entries than any model's"),
        (b'{"a": "' + 9 * b"a" + b'"}', "has more than 0 MB"),
        (b"[1]", "is not a JSON object"),
        (b'{"a": 1e999}', "Number out of range"),
        (b"{", "is not valid JSON"),
    ],
)
def test_a_file_that_cannot_be_used_is_reported_in_one_message(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_object(path, max_bytes=10 if words.startswith("has more than 0") else 2_000_000)
    assert str(path) in str(caught.value)
