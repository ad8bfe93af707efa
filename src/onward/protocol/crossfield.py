"""Rules that tie fields together; each field alone is already right."""

from __future__ import annotations

from onward.protocol import refusals
from onward.protocol.request import CompletionRequest


def check_together(request: CompletionRequest) -> CompletionRequest:
    """The request itself, when its fields go together.

    `best_of` below `n` and a stream of the best candidates are refused (spec/completions §2.5), as is asking
    for more tokens at least than at most. `best_of` up to `n` streams: it chooses nothing.
    """
    best_of = request.best_of
    if best_of is not None and best_of < request.n:
        raise refusals.best_of_below_n(request.n, best_of)
    if best_of is not None and best_of > request.n and request.stream:
        raise refusals.best_of_streamed(request.n, best_of)
    if request.min_tokens > request.max_tokens:
        raise refusals.above_maximum("min_tokens", "integer", request.max_tokens, request.min_tokens)
    return request
