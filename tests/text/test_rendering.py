from hypothesis import given
from hypothesis import strategies as st

from onward.text.rendering import render_token


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
