from hypothesis import given
from hypothesis import strategies as st
from tests.examples import UNICODE

from onward.text.decoding import Utf8Decoder, render_token


def split(data: bytes, sizes: list[int]) -> list[bytes]:
    parts = []
    for size in sizes:
        parts.append(data[:size])
        data = data[size:]
    return [*parts, data]


@given(st.text(UNICODE), st.lists(st.integers(0, 5)))
def test_joined_results_are_the_text(text: str, sizes: list[int]) -> None:
    decoder = Utf8Decoder()
    assert "".join(decoder.feed(part) for part in split(text.encode(), sizes)) == text
    assert decoder.pending == b""


@given(st.binary(), st.lists(st.integers(0, 5)))
def test_any_bytes_decode_as_at_once_except_for_an_incomplete_end(data: bytes, sizes: list[int]) -> None:
    decoder = Utf8Decoder()
    joined = "".join(decoder.feed(part) for part in split(data, sizes))
    whole = data[: len(data) - len(decoder.pending)].decode("utf-8", "replace")
    assert joined == whole


@given(st.binary(min_size=1))
def test_the_number_of_characters_before_the_next_byte_is_known_before_it_is_fed(data: bytes) -> None:
    decoder = Utf8Decoder()
    fed = len(decoder.feed(data[:-1]))
    assert fed + decoder.num_chars_before(data[-1:]) == len(data.decode("utf-8", "replace")) - 1


def test_a_split_character_is_returned_when_it_is_complete() -> None:
    decoder = Utf8Decoder()
    parts = [decoder.feed(bytes([byte])) for byte in "🙂".encode()]
    assert parts == ["", "", "", "🙂"]


def test_an_incomplete_character_is_not_returned() -> None:
    decoder = Utf8Decoder()
    assert decoder.feed("a🙂".encode()[:-1]) == "a"
    assert decoder.pending == "🙂".encode()[:-1]


def test_a_pending_character_is_completed() -> None:
    assert Utf8Decoder("é".encode()[:1]).feed("é".encode()[1:] + b"t") == "ét"


def test_invalid_bytes_become_replacement_characters() -> None:
    assert Utf8Decoder().feed(b"a\xffb") == "a�b"


def unrender(name: str) -> bytes:
    """Decode a name as clients do: \\xNN escapes and literal characters after `bytes:`."""
    return name.removeprefix("bytes:").encode().decode("unicode_escape").encode("latin-1")


@given(st.binary(min_size=1))
def test_nothing_is_lost(token_bytes: bytes) -> None:
    name = render_token(token_bytes)
    if name.startswith("bytes:") and not token_bytes.startswith(b"bytes:"):
        assert unrender(name) == token_bytes
    else:
        assert name.encode() == token_bytes


def test_part_of_a_character_is_escaped() -> None:
    assert render_token("🙂".encode()[:2]) == "bytes:\\xf0\\x9f"
    assert render_token(b" \xe2\x80") == "bytes: \\xe2\\x80"
    assert render_token(b"\xff~\x7f\\") == "bytes:\\xff~\\x7f\\x5c"


def test_text_is_not_changed() -> None:
    assert render_token(" naïve".encode()) == " naïve"
