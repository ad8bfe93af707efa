"""Pacing: what steps cost, and how many prompt tokens a step prefills along with decodes, so that none waits long."""

from __future__ import annotations

from onward.engine.model import StepShape

COST_EWMA_WEIGHT = 0.06
"""Weight of the newest step in the moving averages over all steps."""
CHANGE_EWMA_WEIGHT = 0.2
"""Weight of the newest step in the cost of a change of rows, and in the moving averages over decode-only steps."""
PRIOR_ROW_FRACTION = 0.1
"""Cost of one more decode row as a fraction of a step of one row, before it was measured."""
DOUBT_WEIGHT = 0.005
"""By how much each decode-only step lowers the doubt about what was not measured."""
RECOVERY_WEIGHT = 0.02
"""By how much each step with as many rows as before brings back what only other steps show: the cost of a change to no
more than its prior, and the highest cost of a row to the usual one. An outlier would else keep steps from having more
rows."""
MAX_OUTLIER_RATIO = 3.0
"""A step counts as at most this many times longer or shorter than expected: other processes may have delayed it."""
PRIOR_ROW_VARIANCE = 4.0
"""Variance of the rows of recent steps at which the measured cost of a row outweighs PRIOR_ROW_FRACTION."""
PRIOR_TOKEN_VARIANCE = 256.0
"""The same for prompt tokens and the estimate of their cost before."""
MIN_ROW_FRACTION = 0.01
"""Least cost of additional rows as a fraction of the step without them, where their sum is measured."""
MIN_TOKEN_FRACTION = 0.01
"""Least cost of a prompt token as a fraction of that of a decode row."""
MIN_ESTIMATE_FRACTION = 0.1
"""No estimate is less than this fraction of the average or the prior that it departs from: steps that hardly differ
determine the slopes badly."""

MAX_STEP_STRETCH = 2.0
"""Duration of a step with prompt tokens, at most, as a multiple of a decode-only step of all its sequences, those that
prefill or wait included: while prompts are prefilled, no stream gets its tokens at much less than half its later pace.
It refers to all of them so that few decoding sequences beside many prompts do not make budgets small, which would keep
them few. The less it is, the later first tokens come. `python -m benchmarks.simulate` shows both."""
MAX_PREFILL_STEPS = 32
"""After this many successive steps with prompt tokens, one only decodes: if all steps were alike, their durations would
not show what decode and what prefill costs, and a wrong estimate would never be corrected."""


class _Most:
    """What something costs at most: the highest of late at once, and less with each step that does not show it, down
    to the usual cost."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        """None before it was measured."""
        self._usual = 0.0
        """Moving average."""

    def begin(self, seconds: float) -> None:
        """It is estimated to cost so much."""
        self.seconds = self._usual = seconds

    def observe(self, seconds: float, estimate: float) -> None:
        """It has cost so much. `estimate`: what is usual, if this is the first time."""
        before = self.seconds
        if before is None:
            before, self._usual = seconds, estimate
        self.seconds = max(seconds, (before + seconds) / 2)
        self._usual += CHANGE_EWMA_WEIGHT * (seconds - self._usual)

    def recover(self) -> None:
        """A step has not shown it."""
        if self.seconds is not None:
            self.seconds += RECOVERY_WEIGHT * (self._usual - self.seconds)


class StepCost:
    """A linear model of the duration of a step, in seconds: a base, a cost per decode row and per prompt token, and an
    extra cost if the number of rows differs from that of the step before.

    Fitted to recent steps by least squares; where those hardly vary, the estimates stay close to the priors. Engine
    thread only.
    """

    def __init__(self, prior_change_fraction: float = 0.0) -> None:
        """`prior_change_fraction`: see `StepShape.change_fraction`."""
        self.rows_before = 0
        """Rows of the last step if it was decode-only, else 0."""
        self.num_prefill_steps = 0
        """Successive steps with prompt tokens up to the last one; 0 after a decode-only step."""
        self._rows = self._tokens = self._seconds = 0.0
        """Moving averages of decode rows, prompt tokens and seconds."""
        self._rows_rows = self._rows_tokens = self._tokens_tokens = self._rows_seconds = self._tokens_seconds = 0.0
        """Their moving covariances."""
        self._decode_only_rows = self._decode_only_seconds = 0.0
        """Moving averages over decode-only steps."""
        self._single = 0.0
        """Moving average of the steps of one row that follow another one; 0 before the first step of one row."""
        self._first_single: float | None = None
        """How long the first one took; None before it, and after the second."""
        self._prior_change_fraction = prior_change_fraction
        self._change: float | None = None
        self._doubt = 1.0
        """From 1, with each decode-only step nearer to 0."""
        self._most_row, self._most_first_row = _Most(), _Most()
        """What a row has added to steps that had more of them than the one before: each of them, and a single one."""
        self._prior_token: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether a step has been observed."""
        return self._seconds > 0.0

    @property
    def is_decode_known(self) -> bool:
        """Whether a decode-only step has been observed."""
        return self._decode_only_seconds > 0.0

    @property
    def is_plain_known(self) -> bool:
        """Whether more than one step of one row has been observed."""
        return self._single > 0.0 and self._first_single is None

    @property
    def row(self) -> float:
        """Seconds that one more decode row adds."""
        return self._slopes()[0]

    @property
    def most_row(self) -> float:
        """Seconds that one more row adds at most, by the last steps that had more rows than the one before; until
        there was one, see `unmeasured`."""
        return self.unmeasured(self.row) if self._most_row.seconds is None else self._most_row.seconds

    def most_added(self, num_rows: int) -> float:
        """Return the seconds that so many more rows add at most, at least one. The first may add more than each of many
        does: other experts are read for it, or it needs another kernel."""
        most_row, first = self.most_row, self._most_first_row.seconds
        return max(most_row, self.unmeasured(self.row) if first is None else first) + (num_rows - 1) * most_row

    def unmeasured(self, usual: float) -> float:
        """Return the seconds to expect at most of what usually takes `usual` ones, and at most as many as a step of one
        row: that at first, and less with each step, so that it is measured at last where all texts are short."""
        return usual + self._doubt * max(0.0, self.plain(1) - usual)

    @property
    def prompt_token(self) -> float:
        """Seconds that one more prompt token adds."""
        return self._slopes()[1]

    @property
    def change(self) -> float:
        """Extra seconds of a decode-only step whose number of rows is not `rows_before`."""
        return self._prior_change_fraction * self.decode(1) if self._change is None else self._change

    def round_trip(self, num_rows: int) -> float:
        """Return the extra seconds of a decode-only step that has another number of rows than usual, and of the one
        after it with the usual `num_rows` again."""
        return self.change * (2.0 if self.rows_before == num_rows else 1.0)

    def decode(self, num_rows: int) -> float:
        """Return the expected seconds of a decode-only step, by all recent steps."""
        return self._expected(num_rows, 0)

    def decode_only(self, num_rows: float) -> float:
        """As `decode`, but by decode-only steps alone: the additional time of other steps counts as prefill."""
        if not self._decode_only_seconds:
            return self._expected(num_rows, 0)
        expected = self._decode_only_seconds + self.row * (num_rows - self._decode_only_rows)
        return max(expected, MIN_ESTIMATE_FRACTION * self._decode_only_seconds)

    def plain(self, num_rows: int) -> float:
        """As `decode_only`, but for the single row of a lone sequence by such steps alone: those with drafts, which
        have more rows, say nothing of it."""
        return self._single if num_rows == 1 and self._single else self.decode_only(num_rows)

    @property
    def prefill_token(self) -> float:
        """Seconds per prompt token of recent steps; attention makes it higher the longer their prompts are."""
        if self._tokens < 1.0:
            return self.prompt_token
        return max(self.prompt_token, (self._seconds - self.decode_only(self._rows)) / self._tokens)

    def observe(self, num_prompt_tokens: int, num_rows: int, seconds: float) -> None:
        """Update the model with a step of so many prompt tokens and decode rows that took `seconds`."""
        before, self.rows_before = self.rows_before, 0 if num_prompt_tokens else num_rows
        self.num_prefill_steps = self.num_prefill_steps + 1 if num_prompt_tokens else 0
        if not num_prompt_tokens:
            self._doubt *= 1.0 - DOUBT_WEIGHT
            self._fit_single(before, num_rows, seconds)
            self._fit_most_row(before, num_rows, seconds)
            if before == num_rows and self._change is not None:
                prior = self._prior_change_fraction * self.decode(1)
                self._change += RECOVERY_WEIGHT * min(0.0, prior - self._change)
            self._fit_decode_only(num_rows, seconds)
        if not self.is_known:
            self._rows, self._tokens, self._seconds = float(num_rows), float(num_prompt_tokens), seconds
        elif num_prompt_tokens or before == num_rows:
            self._fit(num_rows, num_prompt_tokens, seconds)
        elif not before:
            self._fit(num_rows, 0, seconds - (self._change or 0.0))
        else:
            self._fit_change(num_rows, seconds)

    def _fit_single(self, rows_before: int, num_rows: int, seconds: float) -> None:
        """Update the average over steps of one row, unless the number of rows has changed. Outliers are limited.

        The first one may follow prompt tokens: if all others had drafts, what a step takes without any would be guessed
        from theirs. What is an outlier is not known of it: it is limited by what prompt tokens took, until there is
        another one.
        """
        if num_rows != 1 or (rows_before != 1 if self._single else rows_before > 1):
            return
        if not self._single:
            self._single, self._first_single = min(seconds, self.decode_only(1) * MAX_OUTLIER_RATIO), seconds
            return
        if self._first_single is not None:
            self._single, self._first_single = min(seconds, self._first_single), None
            return
        seconds = min(max(seconds, self._single / MAX_OUTLIER_RATIO), self._single * MAX_OUTLIER_RATIO)
        self._single += CHANGE_EWMA_WEIGHT * (seconds - self._single)

    def _fit_most_row(self, rows_before: int, num_rows: int, seconds: float) -> None:
        """Update the cost of a row with a step that had more of them than the one before: the highest one at once."""
        if not 0 < rows_before < num_rows:
            self._most_row.recover()
            self._most_first_row.recover()
            return
        base, num_added = self.plain(rows_before), num_rows - rows_before
        added = max(seconds - base - (self._change or 0.0), MIN_ROW_FRACTION * base)
        longest = self.plain(1)  # else each in a step of its own would take less time
        self._most_row.observe(min(added / num_added, longest), self.row)
        if num_added == 1 or self._most_first_row.seconds is None:  # several show at least that it costs no more
            self._most_first_row.observe(min(added, longest), self.row)

    def _fit_decode_only(self, num_rows: int, seconds: float) -> None:
        """Update the averages over decode-only steps. While prompts are prefilled these are rare, so outliers are
        limited.

        The first may be as short as it is: what is expected of it was estimated from steps with prompt tokens.
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
        """Update the model with a decode-only step after one with another number of rows. Outliers are limited."""
        expected, change = self.decode(num_rows), self.change
        extra = min(max(seconds - expected, 0.0), 2.0 * expected)
        self._fit(num_rows, 0, seconds - change)
        self._change = change + CHANGE_EWMA_WEIGHT * (extra - change)

    def _fit(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """Update the moving averages and covariances. Outliers are limited."""
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
        if self._most_row.seconds is None and self._rows_rows > 4.0 * PRIOR_ROW_VARIANCE:
            self._most_row.begin(self.row)
        if self._tokens_tokens > PRIOR_TOKEN_VARIANCE:
            self._prior_token = self.prompt_token
        elif num_tokens and self._prior_token is not None and self.is_decode_known:
            # Steps are too much alike to show it by themselves: an estimate from a slow first step would keep them
            # small, and itself.
            measured = (seconds - self.decode_only(num_rows)) / num_tokens
            measured = max(measured, MIN_TOKEN_FRACTION * self.row)
            self._prior_token += COST_EWMA_WEIGHT * (measured - self._prior_token)

    def _expected(self, num_rows: float, num_tokens: float) -> float:
        """Return the seconds that the model predicts."""
        row, token = self._slopes()
        seconds = self._seconds + row * (num_rows - self._rows) + token * (num_tokens - self._tokens)
        return max(seconds, MIN_ESTIMATE_FRACTION * self._seconds)

    def _slopes(self) -> tuple[float, float]:
        """Return seconds per decode row and per prompt token: least squares, priors weighted by their variances."""
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
        return max(row, MIN_ESTIMATE_FRACTION * prior_row), max(token, MIN_ESTIMATE_FRACTION * prior_token)


class PrefillPacer:
    """Decides how many prompt tokens a step computes. Engine thread only.

    This never changes a token: a prompt's keys and values have the same bits however it is divided into chunks, as long
    as no chunk is a single token.
    """

    def __init__(self, cost: StepCost, shape: StepShape) -> None:
        self._cost = cost
        self._shape = shape

    def budget(self, num_decoding: int, num_prefilling: int, *, is_short: bool) -> int:
        """Return how many prompt tokens the next step may compute with `num_decoding` decodes, while
        `num_prefilling` sequences are prefilling, or waiting for a free row: at least a minimal chunk, but 0 if decode
        has not been measured yet, or not for MAX_PREFILL_STEPS steps. If prompt tokens and decodes together exceed a
        tile, they fill whole tiles.

        `is_short`: whether a short prompt is prefilling, or none yet. Only a long prompt is computed in chunks of less
        than a tile, and only while no other waits: whole tiles delay the decodes as much in total, only less evenly,
        and yield the first token after fewer steps.
        """
        shape, cost = self._shape, self._cost
        if not num_decoding:
            return shape.max_prefill_tokens
        if not cost.is_decode_known or cost.num_prefill_steps >= MAX_PREFILL_STEPS:
            return 0
        longest = max(MAX_STEP_STRETCH * cost.decode_only(num_decoding + num_prefilling), shape.imperceptible_seconds)
        affordable = int((longest - cost.decode_only(num_decoding)) / cost.prefill_token)
        is_lone = num_prefilling <= 1 and not is_short
        min_tokens = max(shape.min_prefill_tokens, 0 if is_lone else shape.tile_tokens - num_decoding)
        return self._in_whole_tiles(num_decoding, min(shape.max_prefill_tokens, max(min_tokens, affordable)))

    def _in_whole_tiles(self, num_decoding: int, tokens: int) -> int:
        """Round a number of prompt tokens so that a step of more than a tile consists of whole tiles, and that steps
        have few different sizes, for each of which a runtime prepares kernels.

        A tile that would be at least a quarter full is filled: it costs nearly as much as a full one.
        """
        tile, min_tokens = self._shape.tile_tokens, self._shape.min_prefill_tokens
        total = num_decoding + tokens
        if total > tile:
            grain, whole = tile, (total + tile * 3 // 4) // tile * tile
        else:
            grain, whole = min_tokens, total // min_tokens * min_tokens
        return whole - num_decoding + (grain if whole - num_decoding < min_tokens else 0)
