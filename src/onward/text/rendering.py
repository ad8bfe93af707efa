"""How a token's bytes are written in `logprobs.tokens` (spec/completions §2.7)."""

from __future__ import annotations


def render_token(piece: bytes) -> str:
    """A token's text; bytes that are no UTF-8 of their own as `bytes:` and escapes, so that nothing is lost.

    Printable ASCII inside such a token stands for itself, all other bytes (and the backslash) as `\\xNN`.
    """
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(
            chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x5C else f"\\x{byte:02x}" for byte in piece
        )
