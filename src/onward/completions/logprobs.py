"""The `logprobs` object of a choice (behaviour §2.7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from onward.completions.filters import ContentFilters
from onward.offload import breathe
from onward.protocol.response import Logprobs
from onward.sampling.outputs import Sampled
from onward.text.assembler import TokenRecord
from onward.text.offsets import token_offsets
from onward.text.rendering import render_token

MINUS_INFINITY = -9999.0
"""Represents minus infinity, which JSON lacks."""

TokenBytes = Callable[[int], bytes]
"""Returns the bytes of a token id."""


class LogprobsBuilder:
    """Builds Logprobs objects from token records.

    `num_top` is the request's `logprobs`. With `as_ids`, tokens are named `token_id:N`. Alternatives whose own text is
    flagged by the content filters are left out.
    """

    def __init__(self, num_top: int, as_ids: bool, token_bytes: TokenBytes, filters: ContentFilters) -> None:
        self._num_top = num_top
        self._as_ids = as_ids
        self._token_bytes = token_bytes
        self._filters = filters

    def empty(self) -> Logprobs:
        """Return an object without entries."""
        return Logprobs(tokens=[], token_logprobs=[], top_logprobs=[] if self._num_top else None, text_offset=[])

    def generated(self, records: Sequence[TokenRecord]) -> Logprobs:
        """Return the object for sampled tokens."""
        logprobs = self.empty()
        for record in records:
            self._add(logprobs, record.token, record.token_bytes, record.offset, (record.logprob, record.top))
        return logprobs

    def prompt(self, tokens: Sequence[int], all_bytes: Sequence[bytes], scores: Sequence[Sampled | None]) -> Logprobs:
        """Return the object for an echoed prompt; its first token has no log probability.

        `tokens`, their bytes and their scores have equal lengths; ValueError is raised if not.
        """
        logprobs = self.empty()
        offsets = token_offsets(all_bytes)
        rows = zip(tokens, all_bytes, offsets, scores, strict=True)
        for index, (token, token_bytes, offset, score) in enumerate(rows):
            breathe()
            scored = None if score is None or index == 0 else (score.logprob, score.top)
            self._add(logprobs, token, token_bytes, offset, scored)
        return logprobs

    def _add(
        self,
        logprobs: Logprobs,
        token: int,
        token_bytes: bytes,
        offset: int,
        scored: tuple[float, tuple[tuple[int, float], ...]] | None,
    ) -> None:
        name = self._name(token, token_bytes)
        logprobs.tokens.append(name)
        logprobs.text_offset.append(offset)
        number = alternatives = None
        if scored is not None:
            number = wire_number(scored[0])
            alternatives = self._alternatives(name, number, scored[1]) if self._num_top else None
        logprobs.token_logprobs.append(number)
        if logprobs.top_logprobs is not None:
            logprobs.top_logprobs.append(alternatives)

    def _alternatives(self, name: str, own: float, top: tuple[tuple[int, float], ...]) -> dict[str, float]:
        """Return the token itself, then the alternatives from most to least likely.

        `own` is the token's value in `token_logprobs`. Of alternatives with the same text, the likeliest counts.
        """
        alternatives = {name: own}
        for token, value in top[: self._num_top]:
            token_bytes = self._token_bytes(token)
            if self._filters and self._filters.flag(token_bytes.decode(errors="replace")):
                continue
            other = self._name(token, token_bytes)
            number = wire_number(value)
            if other != name and number > alternatives.get(other, -math.inf):
                alternatives[other] = number
        return alternatives

    def _name(self, token: int, token_bytes: bytes) -> str:
        return f"token_id:{token}" if self._as_ids else render_token(token_bytes)


@lru_cache(maxsize=1 << 14)
def wire_number(value: float) -> float:
    """Return a float32 as the float with the shortest decimal representation; minus infinity as MINUS_INFINITY.

    Cached: requests that score many continuations of one context repeat the context's values.
    """
    if value == -math.inf:
        return MINUS_INFINITY
    return float(str(np.float32(value)))


def extend(whole: Logprobs, part: Logprobs) -> None:
    """Append the entries of `part` to `whole`, in place."""
    whole.tokens += part.tokens
    whole.token_logprobs += part.token_logprobs
    whole.text_offset += part.text_offset
    if whole.top_logprobs is not None and part.top_logprobs is not None:
        whole.top_logprobs += part.top_logprobs
