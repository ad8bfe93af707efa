"""What filters leave of a row, in plain numpy: a full sort, float64, no intervals. Slow and easy to verify; the kernels
are tested against it. Ties are broken by rank: higher logit first, then lower id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Keep = NDArray[np.bool_]
Probabilities = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that are left, by rank: `ids` int64 [n]; `logits` float64 [n], never ascending. `chance` is XTC's
    random number at this position, in [0, 1)."""

    ids: NDArray[np.int64]
    logits: NDArray[np.float64]
    chance: float
    temperature: float = 1.0

    @property
    def probabilities(self) -> Probabilities:
        """The softmax of the logits at the temperature: float64 [n]."""
        weights = np.exp((self.logits - self.logits.max()) / max(self.temperature, 1e-30))
        normalised: Probabilities = weights / weights.sum()
        return normalised

    @property
    def highest_probability(self) -> float:
        return float(self.probabilities[0])

    @property
    def ranks(self) -> NDArray[np.int64]:
        """0, 1, …: int64 [n]."""
        return np.arange(self.ids.size)

    @property
    def surprises(self) -> Probabilities:
        """-log p in nats, a large number where p underflows to 0: float64 [n]."""
        surprises: Probabilities = -np.log(np.maximum(self.probabilities, 1e-300))
        return surprises

    @property
    def entropy(self) -> float:
        """In nats."""
        return float((self.probabilities * self.surprises).sum())

    def kept(self, keep: Keep) -> Candidates:
        """Return those of which `keep` (bool [n]) is true."""
        return replace(self, ids=self.ids[keep], logits=self.logits[keep])

    def at_temperature(self, temperature: float) -> Candidates:
        return replace(self, temperature=temperature)

    def at_least(self, threshold: float) -> Candidates:
        """Keep the tokens that are as likely as the threshold, and the first one in any case."""
        keep = self.probabilities >= threshold
        keep[0] = True
        return self.kept(keep)

    def nearest(self, surprise: float, mass: float) -> Candidates:
        """Keep the tokens whose surprise is closest to this one, until their mass exceeds `mass`. Of two that are as
        close, the likelier one comes first."""
        is_below, ranks, p = self.surprises >= surprise, self.ranks, self.probabilities
        order = np.lexsort((np.where(is_below, ranks, -ranks), is_below, np.abs(self.surprises - surprise)))
        before = np.cumsum(p[order]) - p[order]
        keep = np.zeros(order.size, np.bool_)
        keep[order[: max(1, int(np.count_nonzero(before <= mass)))]] = True
        return self.kept(keep)
