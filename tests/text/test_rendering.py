from hypothesis import given
from hypothesis import strategies as st

from onward.text.rendering import render_token


def unrender(name: str) -> bytes:
    """As clients decode it: \\xNN escapes and literal characters after `bytes:`."""
    return name.removeprefix("bytes:").encode().decode("unicode_escape").encode("latin-1")


@given(st.binary(min_size=1))
def test_nothing_is_lost(piece: bytes) -> None:
    name = render_token(piece)
    if name.startswith("bytes:") and not piece.startswith(b"bytes:"):
        assert unrender(name) == piece
    else:
        assert name.encode() == piece


def test_part_of_a_character_is_written_in_escapes() -> None:
    assert render_token("🙂".encode()[:2]) == "bytes:\\xf0\\x9f"
    assert render_token(b" \xe2\x80") == "bytes: \\xe2\\x80"


def test_text_is_written_as_it_is() -> None:
    assert render_token(" naïve".encode()) == " naïve"
