"""The header of the seed that was drawn: what it does to a request, and how OpenAPI describes it (behaviour §2.10)."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from onward.completions.request import MAX_RANDOM_SEED, CompletionRequest
from onward.errors import InvalidRequest

SEED_HEADER = "onward-seed"
"""In a response the seed that was drawn for a request without one; in a request the one that is to be drawn, so that it
has the same answer, in any API, also with several prompts."""
SEED_OF_RESPONSE: dict[str, Any] = {
    SEED_HEADER: {
        "description": "For a request without a seed, the one that was drawn: the same request with this header has "
        "the same answer.",
        "schema": {"type": "integer"},
    }
}
"""In OpenAPI, among the headers of a response."""
SEED_OF_REQUEST: dict[str, Any] = {
    "name": SEED_HEADER,
    "in": "header",
    "description": "The header of an earlier response to the same request, whose answer is wanted again. Only for a "
    "request without a seed.",
    "schema": {"type": "integer", "minimum": 0, "maximum": MAX_RANDOM_SEED},
}
"""In OpenAPI, a parameter of a request."""


def with_seed_header(request: CompletionRequest, value: str | None) -> CompletionRequest:
    """Return the request with the seed from its header in place of the one that was drawn; None without the header.
    Raises InvalidRequest."""
    if value is None:
        return request
    if request.seed is not None:
        raise InvalidRequest(f"The request has a seed: leave out the header {SEED_HEADER}, or the seed.")
    if not (value.isascii() and value.isdecimal() and len(value) < 20 and int(value) <= MAX_RANDOM_SEED):
        raise InvalidRequest(
            f"The header {SEED_HEADER} is {value[:64]!r}: it must be the one of a response, an integer from 0 to "
            f"{MAX_RANDOM_SEED}."
        )
    return structs.replace(request, random_seed=int(value))
