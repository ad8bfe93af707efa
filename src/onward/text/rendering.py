"""The text of single tokens in `logprobs.tokens` (behaviour §2.7)."""

from __future__ import annotations


def render_token(token_bytes: bytes) -> str:
    """Return a token's text, or `bytes:` and escapes if its bytes are not valid UTF-8 on their own.

    In the escaped form printable ASCII is kept, all other bytes and the backslash are written as `\\xNN`.
    """
    try:
        return token_bytes.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(
            chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x5C else f"\\x{byte:02x}" for byte in token_bytes
        )
