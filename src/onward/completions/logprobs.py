"""The `logprobs` object: tokens as strings, numbers as the wire wants them (spec/completions §2.7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from onward.completions.filters import ContentFilters
from onward.protocol.response import Logprobs
from onward.sampling.outputs import Sampled
from onward.text.assembler import TokenRecord
from onward.text.offsets import token_offsets
from onward.text.rendering import render_token

NO_PROBABILITY = -9999.0
"""Stands for minus infinity, which JSON cannot say."""

PieceOf = Callable[[int], bytes]


class LogprobsWriter:
    """Writes records as a Logprobs object. `top` is the request's `logprobs`; `as_ids` writes every token as
    `token_id:N`; `piece_of` gives a token's bytes. Alternatives whose own text is flagged are left out."""

    def __init__(self, top: int, as_ids: bool, piece_of: PieceOf, filters: ContentFilters) -> None:
        self._top = top
        self._as_ids = as_ids
        self._piece_of = piece_of
        self._filters = filters

    def empty(self) -> Logprobs:
        return Logprobs(tokens=[], token_logprobs=[], top_logprobs=[] if self._top else None, text_offset=[])

    def generated(self, records: Sequence[TokenRecord]) -> Logprobs:
        """The object for drawn tokens."""
        logprobs = self.empty()
        for record in records:
            self._add(logprobs, record.token, record.piece, record.offset, (record.logprob, record.top))
        return logprobs

    def prompt(self, tokens: Sequence[int], pieces: Sequence[bytes], scores: Sequence[Sampled | None]) -> Logprobs:
        """The object for an echoed prompt: the first token has no log-probability."""
        logprobs = self.empty()
        offsets = token_offsets(pieces)
        for index, (token, piece, offset, score) in enumerate(zip(tokens, pieces, offsets, scores, strict=True)):
            known = None if score is None or index == 0 else (score.logprob, score.top)
            self._add(logprobs, token, piece, offset, known)
        return logprobs

    def _add(
        self,
        logprobs: Logprobs,
        token: int,
        piece: bytes,
        offset: int,
        known: tuple[float, tuple[tuple[int, float], ...]] | None,
    ) -> None:
        name = self._name(token, piece)
        logprobs.tokens.append(name)
        logprobs.text_offset.append(offset)
        number = alternatives = None
        if known is not None:
            number = wire_number(known[0])
            alternatives = self._alternatives(name, number, known[1]) if self._top else None
        logprobs.token_logprobs.append(number)
        if logprobs.top_logprobs is not None:
            logprobs.top_logprobs.append(alternatives)

    def _alternatives(self, name: str, own: float, top: tuple[tuple[int, float], ...]) -> dict[str, float]:
        """The token itself first, then the others, best first; of two others with one text the likelier counts.

        `own` is what the wire says of the token itself.
        """
        alternatives = {name: own}
        for token, value in top[: self._top]:
            piece = self._piece_of(token)
            if self._filters and self._filters.hide(piece.decode(errors="replace")):
                continue
            other = self._name(token, piece)
            number = wire_number(value)
            if other != name and number > alternatives.get(other, -math.inf):
                alternatives[other] = number
        return alternatives

    def _name(self, token: int, piece: bytes) -> str:
        return f"token_id:{token}" if self._as_ids else render_token(piece)


@lru_cache(maxsize=1 << 14)
def wire_number(value: float) -> float:
    """A float32 as the float that prints shortest, the same for the same value everywhere.

    Remembers the last ones: whoever scores many continuations of a context is told the context's numbers each time.
    """
    if value == -math.inf:
        return NO_PROBABILITY
    return float(str(np.float32(value)))


def extend(whole: Logprobs, part: Logprobs) -> None:
    """Append `part` to `whole` (modified)."""
    whole.tokens += part.tokens
    whole.token_logprobs += part.token_logprobs
    whole.text_offset += part.text_offset
    if whole.top_logprobs is not None and part.top_logprobs is not None:
        whole.top_logprobs += part.top_logprobs
