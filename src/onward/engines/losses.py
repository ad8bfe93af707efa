"""What follows when an engine is lost: whether its jobs are resumed, tried with care, or ended.

Work that is lost together (a job of a child process, a flight of a cluster, a choice of an upstream) has one `Losses`.
A loss for which the work may be the cause is a strike. Any event that is delivered clears both: whoever makes progress
is not the cause.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

NEVER = sys.maxsize


@dataclass(frozen=True, slots=True)
class LossPolicy:
    """What a number of losses in a row, without an event between them, means.

    From `suspect_strikes` strikes on, or `suspect_losses` losses of any kind, work may be the cause, and is tried
    together with nothing else that is suspected: what ends engines is found, and what was lost along with it is not
    blamed. From `max_strikes` on it is not tried again; nor from `max_losses` on, as no engine answers.
    """

    suspect_strikes: int = NEVER
    suspect_losses: int = NEVER
    max_strikes: int = NEVER
    max_losses: int = NEVER


class Losses:
    """The losses in a row of one piece of work. Not thread-safe."""

    __slots__ = ("_policy", "num_losses", "num_strikes")

    def __init__(self, policy: LossPolicy) -> None:
        self._policy = policy
        self.num_strikes = self.num_losses = 0

    def lost(self, *, is_strike: bool = True) -> None:
        """Its engine was lost, or gave it back. `is_strike`: the work may be why."""
        self.num_strikes += is_strike
        self.num_losses += 1

    def progressed(self) -> None:
        """It has delivered an event."""
        self.num_strikes = self.num_losses = 0

    @property
    def is_suspect(self) -> bool:
        """Whether it may be the cause."""
        policy = self._policy
        return self.num_strikes >= policy.suspect_strikes or self.num_losses >= policy.suspect_losses

    @property
    def is_struck_out(self) -> bool:
        """Whether it is considered the cause, and is not tried again."""
        return self.num_strikes >= self._policy.max_strikes

    @property
    def is_unanswered(self) -> bool:
        """Whether no engine answers it, whatever the cause."""
        return self.num_losses >= self._policy.max_losses
