"""The bytes of byte-level entries, which are decoded together, against a loop over their characters."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from onward.model_files.token_bytes import ModelPart, Pipeline, byte_characters, bytes_function
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
