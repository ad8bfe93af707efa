"""Random ids of completions and requests (behaviour §1.2)."""

from __future__ import annotations

import secrets
import string

_ALPHABET = string.ascii_letters + string.digits
_LENGTH = 29


def completion_id() -> str:
    """Return `cmpl-` and 29 random letters and digits. All chunks of a stream share one id."""
    number = secrets.randbelow(len(_ALPHABET) ** _LENGTH)
    characters = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[digit])
    return "cmpl-" + "".join(characters)


def request_id() -> str:
    """Return `req_` and 32 random hexadecimal digits, for the `x-request-id` header."""
    return "req_" + secrets.token_hex(16)
