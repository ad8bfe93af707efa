"""Log-probabilities of a cached block's tokens in compact arrays, which are kept as long as the block."""

from __future__ import annotations

from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onward.sampling.outputs import Sampled

Scores = list[Sampled | None]
"""An entry per prompt token; None for a prompt's first token, which has no log-probability."""


@dataclass(frozen=True, slots=True)
class PackedScores:
    """Scores of n tokens with `top` alternatives each: 8 bytes per token, 4 per rank and 8 per alternative."""

    tokens: NDArray[np.int32]
    """int32 [n]; -1 for an entry that is None."""
    logprobs: NDArray[np.float32]
    """float32 [n]"""
    top_tokens: NDArray[np.int32]
    """int32 [n, top]"""
    top_logprobs: NDArray[np.float32]
    """float32 [n, top]"""
    ranks: NDArray[np.int32] | None = None
    """int32 [n]; None if they were not counted."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def top(self) -> int:
        """Alternatives per token."""
        return int(self.top_tokens.shape[1])

    def has(self, top: int, *, with_ranks: bool) -> bool:
        """Whether the scores can be unpacked with `top` alternatives, and with ranks if they are wanted."""
        return self.top >= top and (self.ranks is not None or not with_ranks)

    def joined(self, other: PackedScores) -> PackedScores:
        """Return all that is known of a block's first tokens: the scores of more tokens, or, where both have as many,
        those with more alternatives, and the ranks of either."""
        if len(self) != len(other):
            return max(self, other, key=len)
        widest, narrow = (self, other) if self.top >= other.top else (other, self)
        return replace(widest, ranks=narrow.ranks if widest.ranks is None else widest.ranks)

    def unpack(self, top: int, *, with_ranks: bool = False) -> Scores:
        """Return the scores with the `top` best alternatives each, as `has` says that they are there."""
        ranks = self.ranks.tolist() if with_ranks and self.ranks is not None else [0] * len(self)
        rows = zip(
            self.tokens.tolist(),
            self.logprobs.tolist(),
            self.top_tokens[:, :top].tolist(),
            self.top_logprobs[:, :top].tolist(),
            ranks,
            strict=True,
        )
        return [
            Sampled(token, logprob, tuple(zip(ids, values, strict=True)), rank) if token >= 0 else None
            for token, logprob, ids, values, rank in rows
        ]


def pack(scores: ReadOnly[Sampled | None], top: int, *, with_ranks: bool = False) -> PackedScores:
    """Pack scores with `top` alternatives each, or fewer if some score has fewer (in a tiny vocabulary)."""
    width = min((len(score.top) for score in scores if score is not None), default=0)
    width = min(width, top)
    count = len(scores)
    packed = PackedScores(
        np.full(count, -1, np.int32),
        np.zeros(count, np.float32),
        np.zeros((count, width), np.int32),
        np.zeros((count, width), np.float32),
        np.array([0 if score is None else score.rank for score in scores], np.int32) if with_ranks else None,
    )
    for index, score in enumerate(scores):
        if score is None:
            continue
        packed.tokens[index] = score.token
        packed.logprobs[index] = score.logprob
        for rank, (token, logprob) in enumerate(score.top[:width]):
            packed.top_tokens[index, rank] = token
            packed.top_logprobs[index, rank] = logprob
    return packed
