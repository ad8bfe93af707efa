"""What drafts of a model are worth: how often they are right, and whether they pay."""

from __future__ import annotations

_LEVELS = (-1.05, -0.43, -0.105)
"""Bounds of the draft model's log-probability of a token (35, 65 and 90 %), between which it is right about equally
often."""
_PRIOR_AGREEMENT = (0.25, 0.5, 0.75, 0.95)
_AGREEMENT_WEIGHT = 0.05
_COST_WEIGHT = 0.2
"""Weights of the newest token and round in the moving averages."""


class Agreement:
    """How often the model samples what was drafted, by how likely the draft model considers a token."""

    def __init__(self) -> None:
        self.mean = 0.7
        """Of all tokens."""
        self._by_level = list(_PRIOR_AGREEMENT)

    def level(self, logprob: float) -> int:
        """Return which level a log-probability is in."""
        return sum(logprob >= bound for bound in _LEVELS)

    def expected(self, level: int) -> float:
        """Return the probability that a token of a level is accepted if those before it are."""
        return self._by_level[level]

    def learn(self, levels: list[int], num_accepted: int) -> None:
        """Learn from the levels of an evaluated draft: of those after the first rejected token nothing is known."""
        for index, level in enumerate(levels[: num_accepted + 1]):
            outcome = float(index < num_accepted)
            self.mean += _AGREEMENT_WEIGHT * (outcome - self.mean)
            self._by_level[level] += _AGREEMENT_WEIGHT * (outcome - self._by_level[level])


class Balance:
    """What drafts take and yield lately, in units of the time of a step without one."""

    def __init__(self) -> None:
        self._tokens, self._steps = 2.0, 1.5
        """Of a step with a draft: moving averages."""

    @property
    def saved(self) -> float:
        """How many steps a draft saves."""
        return self._tokens - self._steps

    @property
    def pace(self) -> float:
        """How many steps' time a token takes with drafts."""
        return self._steps / self._tokens

    @property
    def pays(self) -> bool:
        return self.saved > 0.0

    def round(self, num_tokens: int, steps: float) -> None:
        """A step with a draft has yielded so many tokens, and took as long as so many steps without one."""
        self._tokens += _COST_WEIGHT * (num_tokens - self._tokens)
        self._steps += _COST_WEIGHT * (steps - self._steps)
