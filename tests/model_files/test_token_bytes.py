"""The bytes of byte-level entries, which are decoded together, against a loop over their characters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.model_files.token_bytes import ModelPart, Pipeline, UnknownDecoder, byte_characters, bytes_function
from tests.examples import UNICODE, examples

STAND_INS = byte_characters()
characters = st.sampled_from(sorted(STAND_INS)) | UNICODE
texts = st.text(st.sampled_from(sorted(STAND_INS)), max_size=6) | st.text(characters, max_size=6)
entries = st.lists(texts, max_size=8)


def one(entry: str) -> bytes:
    """As the library decodes an entry: literally, if any of its characters stands for no byte."""
    found = [STAND_INS.get(character) for character in entry]
    return entry.encode() if None in found else bytes(byte for byte in found if byte is not None)


@settings(max_examples=examples(300))
@given(tokens=entries)
def test_byte_level_entries_have_the_bytes_of_their_characters(tokens: list[str]) -> None:
    bytes_of = bytes_function(Pipeline(ModelPart(), decoder={"type": "ByteLevel"}))
    assert bytes_of(tokens) == [one(token) for token in tokens]
    assert bytes_of(list(STAND_INS)) == [bytes([byte]) for byte in STAND_INS.values()]


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
@pytest.mark.parametrize(("repeats", "is_refused"), [(2, False), (6, True)])
def test_rules_that_make_texts_endless_are_refused(part: str, repeats: int, is_refused: bool) -> None:
    """Six rules that write thirty letters for one make a gigabyte of a letter."""
    rules = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 30}] * repeats
    pipeline = Pipeline(ModelPart(), **{part: {"type": "Sequence", f"{part}s": rules}})
    if is_refused:
        with pytest.raises(UnknownDecoder, match="a thousand times as long"):
            bytes_function(pipeline)
    else:
        bytes_function(pipeline)
