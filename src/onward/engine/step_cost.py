"""What steps cost, learnt from how long they take. Decides nothing about tokens, only about when they come."""

from __future__ import annotations

COST_EWMA_WEIGHT = 0.06
"""Weight of the newest step in the running means of all steps."""
CHANGE_EWMA_WEIGHT = 0.2
"""Weight of the newest step in what a change of rows costs, and in the means of decode-only steps."""
PRIOR_ROW_FRACTION = 0.1
"""What one more decode row adds to a step of one, as a fraction, as long as nothing better is known."""
PRIOR_CHANGE_FRACTION = 0.5
"""What a step costs more when it has another number of rows than the one before (a runtime prepares its kernels
again), as a fraction of a step of one, as long as nothing better is known."""
MAX_OUTLIER_RATIO = 3.0
"""A step counts as at most so many times longer or shorter than expected: others may have had the processor."""
PRIOR_ROW_VARIANCE = 4.0
"""How much the rows of recent steps must vary before their durations outweigh PRIOR_ROW_FRACTION."""
PRIOR_TOKEN_VARIANCE = 256.0
"""The same for prompt tokens, and what was known of them before."""


class StepCost:
    """Seconds of a step: a base, so much per decode row and per prompt token, and more where a step has another number
    of rows than the one before.

    Fitted to recent steps by least squares, drawn towards the priors where recent steps were much the same. Engine
    thread only.
    """

    def __init__(self) -> None:
        self.rows_before = 0
        """Rows of the step before, if that only decoded; else 0."""
        self.num_prefill_steps = 0
        """Consecutive steps that computed prompt tokens, the last step included; 0 after a decode-only step."""
        self._rows = self._tokens = self._seconds = 0.0
        """Running means of decode rows, prompt tokens, seconds."""
        self._rows_rows = self._rows_tokens = self._tokens_tokens = self._rows_seconds = self._tokens_seconds = 0.0
        """Their running covariances."""
        self._decode_only_rows = self._decode_only_seconds = 0.0
        """Running means of the steps that computed no prompt tokens."""
        self._change: float | None = None
        self._prior_token: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether a step has been observed."""
        return self._seconds > 0.0

    @property
    def row(self) -> float:
        """Seconds that one more decode row adds."""
        return self._slopes()[0]

    @property
    def prompt_token(self) -> float:
        """Seconds that one more prompt token adds."""
        return self._slopes()[1]

    @property
    def change(self) -> float:
        """Seconds that a step adds whose rows are not `rows_before`."""
        return PRIOR_CHANGE_FRACTION * self.decode(1) if self._change is None else self._change

    def decode(self, num_rows: int) -> float:
        """Seconds of a step of so many decode rows without prompt tokens."""
        return self._expected(num_rows, 0)

    def decode_only(self, num_rows: float) -> float:
        """As `decode`, but by the last decode-only steps: what other steps took more counts as prefill."""
        if not self._decode_only_seconds:
            return self._expected(num_rows, 0)
        expected = self._decode_only_seconds + self.row * (num_rows - self._decode_only_rows)
        return max(expected, 0.1 * self._decode_only_seconds)

    @property
    def prefill_token(self) -> float:
        """Seconds that one more prompt token adds beside the prompts of recent steps: the more, the longer they are."""
        if self._tokens < 1.0:
            return self.prompt_token
        return max(self.prompt_token, (self._seconds - self.decode_only(self._rows)) / self._tokens)

    def observe(self, num_prompt_tokens: int, num_rows: int, seconds: float) -> None:
        """Learn from a step that computed so many prompt tokens beside so many decode rows."""
        before, self.rows_before = self.rows_before, 0 if num_prompt_tokens else num_rows
        self.num_prefill_steps = self.num_prefill_steps + 1 if num_prompt_tokens else 0
        if not num_prompt_tokens:
            self._fit_decode_only(num_rows, seconds)
        if not self.is_known:
            self._rows, self._tokens, self._seconds = float(num_rows), float(num_prompt_tokens), seconds
        elif num_prompt_tokens or before == num_rows:
            self._fit(num_rows, num_prompt_tokens, seconds)
        elif not before:
            self._fit(num_rows, 0, seconds - (self._change or 0.0))
        else:
            self._fit_change(num_rows, seconds)

    def _fit_decode_only(self, num_rows: int, seconds: float) -> None:
        """Learn from a decode-only step. Beside prompts these are few, so one that was held up must not count in full.
        The first may be as short as it likes: what is expected of it is an estimate from steps with prompt tokens.
        """
        weight = 1.0
        if self.is_known:
            expected = self.decode_only(num_rows)
            seconds = min(seconds, expected * MAX_OUTLIER_RATIO)
            if self._decode_only_seconds:
                weight, seconds = CHANGE_EWMA_WEIGHT, max(seconds, expected / MAX_OUTLIER_RATIO)
        self._decode_only_rows += weight * (num_rows - self._decode_only_rows)
        self._decode_only_seconds += weight * (seconds - self._decode_only_seconds)

    def _fit_change(self, num_rows: int, seconds: float) -> None:
        """Learn from a decode step that followed one with another number of rows. Outliers do not count."""
        expected, change = self.decode(num_rows), self.change
        extra = min(max(seconds - expected, 0.0), 2.0 * expected)
        self._fit(num_rows, 0, seconds - change)
        self._change = change + CHANGE_EWMA_WEIGHT * (extra - change)

    def _fit(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        expected = self._expected(num_rows, num_tokens)
        seconds = min(max(seconds, expected / MAX_OUTLIER_RATIO), expected * MAX_OUTLIER_RATIO)
        more_rows, more_tokens = num_rows - self._rows, num_tokens - self._tokens
        more_seconds = seconds - self._seconds
        self._rows += COST_EWMA_WEIGHT * more_rows
        self._tokens += COST_EWMA_WEIGHT * more_tokens
        self._seconds += COST_EWMA_WEIGHT * more_seconds
        old, new = 1 - COST_EWMA_WEIGHT, COST_EWMA_WEIGHT * (1 - COST_EWMA_WEIGHT)
        self._rows_rows = old * self._rows_rows + new * more_rows * more_rows
        self._rows_tokens = old * self._rows_tokens + new * more_rows * more_tokens
        self._tokens_tokens = old * self._tokens_tokens + new * more_tokens * more_tokens
        self._rows_seconds = old * self._rows_seconds + new * more_rows * more_seconds
        self._tokens_seconds = old * self._tokens_seconds + new * more_tokens * more_seconds
        if self._tokens_tokens > PRIOR_TOKEN_VARIANCE:
            self._prior_token = self.prompt_token

    def _expected(self, num_rows: float, num_tokens: float) -> float:
        row, token = self._slopes()
        seconds = self._seconds + row * (num_rows - self._rows) + token * (num_tokens - self._tokens)
        return max(seconds, 0.1 * self._seconds)

    def _slopes(self) -> tuple[float, float]:
        """Seconds per decode row, seconds per prompt token: least squares, the priors weighted by their variances."""
        width = 1.0 + PRIOR_ROW_FRACTION * (max(0.0, self._rows - 1.0) + self._tokens)
        prior_row = self._seconds * PRIOR_ROW_FRACTION / width
        prior_token = prior_row if self._prior_token is None else self._prior_token
        rows, tokens = self._rows_rows + PRIOR_ROW_VARIANCE, self._tokens_tokens + PRIOR_TOKEN_VARIANCE
        by_rows = self._rows_seconds + PRIOR_ROW_VARIANCE * prior_row
        by_tokens = self._tokens_seconds + PRIOR_TOKEN_VARIANCE * prior_token
        both = self._rows_tokens
        determinant = rows * tokens - both * both
        row = (by_rows * tokens - by_tokens * both) / determinant
        token = (by_tokens * rows - by_rows * both) / determinant
        return max(row, 0.1 * prior_row), max(token, 0.1 * prior_token)
