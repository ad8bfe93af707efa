"""What steps of a draft model take: measured when it is loaded, before anybody waits for it, and by each one since.

At load, steps of one token, of tokens of a prompt and of rows of one token each are measured. How those compare is
taken to stay as it is; how much longer than at load all of them take follows from the last steps, whatever these
computed.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable

from onward.engine.pacing import RECOVERY_WEIGHT

MEASURED_ROUNDS = 3
"""Of which the shortest counts: the first may have to read the weights from a disk."""
_NUM_RECENT = 3
"""Steps that show how long steps take now: a single slow one may have waited for other processes, two did not."""
FORGET_WEIGHT = 1e-4
"""By how much each step of the model that is drafted for brings back the costs at load, where no draft shows others: a
draft model that was slow for a while would else be unaffordable for good, and one that stays slow is tried so seldom
that it hardly matters."""
_LEAST_SECONDS = 1e-9
"""Of anything measured: a clock may not show it."""


class DraftCost:
    """Seconds of steps of a draft model. Engine thread only."""

    def __init__(self, token: float = math.inf, prompt_token: float = 0.0, row: float = 0.0) -> None:
        """`token`: of a step of one token at load; `prompt_token`, `row`: what each further token of a prompt, and each
        further row of one token, added. By default nothing is affordable."""
        self._token, self._prompt_token, self._row = (max(each, _LEAST_SECONDS) for each in (token, prompt_token, row))
        self._recent = deque([1.0] * _NUM_RECENT, _NUM_RECENT)
        """How many times as long as at load the last steps took."""
        self._usual = self._most = 1.0
        """The median of those; and the last one, which approaches the median if none follows."""

    @classmethod
    def measured(cls, seconds_of: Callable[[int, int], float], num_tokens: int) -> DraftCost:
        """Return the costs of a model. `seconds_of`: computes a step of so many prompt tokens and rows, and returns its
        seconds; it is called with at most `num_tokens`, at least 2."""
        steps = ((num_tokens, 0), (0, num_tokens), (0, 1))
        rounds = [[seconds_of(*step) for step in steps] for _ in range(MEASURED_ROUNDS)]
        of_prompt, of_rows, token = map(min, zip(*rounds, strict=True))
        num_further = num_tokens - 1
        return cls(token, (of_prompt - token) / num_further, (of_rows - token) / num_further)

    @property
    def token(self) -> float:
        """Seconds that a drafted token takes."""
        return self._usual * self._token

    @property
    def most_token(self) -> float:
        """The same at most, by the last steps."""
        return self._most * self._token

    def affordable(self, seconds: float, num_prompt_tokens: int, num_rows: int, *, from_end: bool = False) -> int:
        """Return how many of so many tokens of a prompt, and rows after them, can be computed in the time, at most: the
        first ones, or `from_end` the last ones."""
        left = seconds / self._most - self._token
        parts = [(num_prompt_tokens, self._prompt_token), (num_rows, self._row)]
        total = 0
        for wanted, each in reversed(parts) if from_end else parts:
            found = min(wanted, int(max(0.0, left) / each))
            total, left = total + found, left - found * each
            if found < wanted:
                break
        return total

    def observe(self, num_prompt_tokens: int, num_rows: int, seconds: float) -> None:
        """A step of so many prompt tokens and rows, at least one, has taken so long."""
        added = num_prompt_tokens * self._prompt_token + num_rows * self._row
        added -= self._prompt_token if num_prompt_tokens else self._row
        self._recent.append(seconds / (self._token + added))
        self._usual = statistics.median(self._recent)
        self._most = max(self._usual, self._recent[-1])

    def recover(self) -> None:
        """A step of the model that is drafted for has ended: what the last drafts took says less by now."""
        self._recent = deque((each + FORGET_WEIGHT * (1.0 - each) for each in self._recent), _NUM_RECENT)
        self._usual = statistics.median(self._recent)
        self._most += RECOVERY_WEIGHT * (self._usual - self._most)
