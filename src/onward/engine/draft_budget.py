"""What the drafts of a sequence may cost: so little that it takes hardly longer than without them, whatever its text.

A draft is only evaluated if the sequence can afford that all of it is rejected. What it can afford is a share of the
time that its prompt and its tokens so far have taken, or would have taken without drafts, and what drafts have saved.
So the bound holds at each of its tokens: how many more there will be is not known, since a text may stop at any.
"""

from __future__ import annotations

MAX_LOSS_FRACTION = 0.022
"""By how much drafts may lengthen the time of a sequence. The rest up to 1/0.97 is for errors of the estimates, and for
the time in which drafts are looked for."""
MAX_SAVED_STEPS = 8.0
"""Of the time that drafts have saved, at most that of so many steps may be lost again: a text that is no longer as
predictable as it was soon takes as long as without drafts."""
MAX_STAKE_FRACTION = 0.5
"""Of what a sequence can afford, at most this share is risked by more than one drafted token: where a text is mostly
predictable, one rejected draft does not end drafts for long."""


class DraftBudget:
    """The budget of one sequence, in seconds. Of a step that decodes several sequences, each has an equal share of the
    time that the step takes without drafts. Engine thread only."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def available(self, share: float) -> float:
        """Return how many seconds drafts of the sequence may add to a step in which its own next token takes `share`
        seconds."""
        return self.seconds + MAX_LOSS_FRACTION * share

    def prefilled(self, seconds: float) -> None:
        """A part of the prompt has been computed."""
        self.seconds += MAX_LOSS_FRACTION * seconds

    def decoded(self, num_tokens: int, share: float, added: float) -> None:
        """A step has yielded so many tokens, each of which takes `share` seconds without drafts; the sequence's drafts
        have added so many seconds to the step."""
        earned = (max(0, num_tokens - 1) + MAX_LOSS_FRACTION * num_tokens) * share - added
        self.seconds = min(self.seconds + earned, max(self.seconds, MAX_SAVED_STEPS * share))
