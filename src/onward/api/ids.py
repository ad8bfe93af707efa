"""Random ids of completions and requests (behaviour §1.2)."""

from __future__ import annotations

import os
import string

_ALPHABET = (string.ascii_letters + string.digits).encode()
_CHARACTERS = bytes(_ALPHABET[byte % len(_ALPHABET)] for byte in range(256))
"""The character of each byte. Eight of the 62 are a little more likely: an id has 172.5 random bits, not 172.7."""
_LENGTH = 29


def completion_id() -> str:
    """Return `cmpl-` and 29 random letters and digits. All chunks of a stream share one id."""
    return "cmpl-" + os.urandom(_LENGTH).translate(_CHARACTERS).decode()


def request_id() -> str:
    """Return `req_` and 32 random hexadecimal digits, for the `x-request-id` header."""
    return "req_" + os.urandom(16).hex()
