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


LIGATURES = [("\N{LATIN SMALL LIGATURE FI}", "fi"), ("ß", "ss"), ("…", "..."), ("æ", "ae"), ("œ", "oe"), ("ĳ", "ij")]


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
@pytest.mark.parametrize(
    ("rules", "is_refused"),
    [
        (2 * [("a", "a" * 30)], False),
        (6 * [("a", "a" * 30)], True),  # a gigabyte of a letter
        (30 * [("", "a")], True),  # before each letter, and at the end
        (3 * LIGATURES, False),
        ([("a", "b" * 40), ("c", "d" * 40), ("b", "cc")], False),
        ([("a", "b" * 40), ("b", "c" * 40), ("c", "dd")], True),
        ([("ab", "b" * 2000)], True),
    ],
)
def test_rules_that_make_texts_endless_are_refused(part: str, rules: list[tuple[str, str]], is_refused: bool) -> None:
    steps = [{"type": "Replace", "pattern": {"String": old}, "content": new} for old, new in rules]
    pipeline = Pipeline(ModelPart(), **{part: {"type": "Sequence", f"{part}s": steps}})
    if is_refused:
        with pytest.raises(UnknownDecoder, match="a thousand times as long"):
            bytes_function(pipeline)
    else:
        bytes_function(pipeline)


@pytest.mark.parametrize("step", [{"type": "BPEDecoder", "suffix": ""}, {"type": "Metaspace", "replacement": ""}])
def test_a_space_between_all_letters_again_and_again_is_refused(step: dict[str, str]) -> None:
    with pytest.raises(UnknownDecoder, match="a thousand times as long"):
        bytes_function(Pipeline(ModelPart(), decoder={"type": "Sequence", "decoders": 30 * [step]}))
