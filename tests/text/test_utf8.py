from hypothesis import given
from hypothesis import strategies as st

from onward.text.utf8 import Utf8Decoder


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(st.text(), st.lists(st.integers(0, 5)))
def test_pieces_joined_are_the_whole_text(text: str, sizes: list[int]) -> None:
    decoder = Utf8Decoder()
    assert "".join(decoder.feed(piece) for piece in cut(text.encode(), sizes)) == text
    assert decoder.pending == b""


@given(st.binary(), st.lists(st.integers(0, 5)))
def test_any_bytes_decode_as_they_would_in_one_go_but_for_an_unfinished_end(data: bytes, sizes: list[int]) -> None:
    decoder = Utf8Decoder()
    joined = "".join(decoder.feed(piece) for piece in cut(data, sizes))
    whole = data[: len(data) - len(decoder.pending)].decode("utf-8", "replace")
    assert joined == whole


@given(st.binary(min_size=1))
def test_how_many_characters_end_before_the_next_byte_is_known_before_it_is_fed(data: bytes) -> None:
    decoder = Utf8Decoder()
    fed = len(decoder.feed(data[:-1]))
    assert fed + decoder.before(data[-1:]) == len(data.decode("utf-8", "replace")) - 1


def test_a_split_character_comes_out_when_it_is_complete() -> None:
    decoder = Utf8Decoder()
    pieces = [decoder.feed(bytes([byte])) for byte in "🙂".encode()]
    assert pieces == ["", "", "", "🙂"]


def test_an_unfinished_character_is_never_shown() -> None:
    decoder = Utf8Decoder()
    assert decoder.feed("a🙂".encode()[:-1]) == "a"
    assert decoder.pending == "🙂".encode()[:-1]


def test_a_character_begun_before_is_finished() -> None:
    assert Utf8Decoder("é".encode()[:1]).feed("é".encode()[1:] + b"t") == "ét"


def test_bytes_that_cannot_be_text_become_replacement_characters() -> None:
    assert Utf8Decoder().feed(b"a\xffb") == "a�b"
