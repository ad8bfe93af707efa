"""Random ids of completions and requests (behaviour §1.2), and the header of the seed that was drawn."""

from __future__ import annotations

import secrets
import string

SEED_HEADER = "onward-seed"
"""In a response the seed that was drawn for a request without one; in a request the one that is to be drawn, so that it
has the same answer, in any API, also with several prompts (behaviour §2.10)."""
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
