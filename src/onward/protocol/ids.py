"""Names for what is answered (spec/completions §1.2)."""

from __future__ import annotations

import secrets
import string

_ALPHABET = string.ascii_letters + string.digits
_LENGTH = 29


def completion_id() -> str:
    """`cmpl-` and 29 letters and digits; one for all chunks of a stream."""
    number = secrets.randbelow(len(_ALPHABET) ** _LENGTH)
    characters = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[digit])
    return "cmpl-" + "".join(characters)


def request_id() -> str:
    """`req_` and 32 hexadecimal digits, for the `x-request-id` header."""
    return "req_" + secrets.token_hex(16)
