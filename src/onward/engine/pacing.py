"""What steps cost, learnt from how long they take; and how many prompt tokens a step may read beside running
decodes, so that nobody's next token waits long."""

from __future__ import annotations

from onward.engine.model import BLOCK_TOKENS

MOST = 512
"""Prompt tokens a step when nothing decodes: larger steps read no faster, and only delay a cancel."""
STRETCH = 1.4
"""How much longer a step may become by reading prompts, as a share of a plain decode step, when no more sequences
wait to be read than write. The more wait, the longer it may become: each delayed token of one writer is
weighed against the first token of those who have none yet."""
SMOOTHING = 0.2
"""Weight of the newest measurement in the running averages."""
USUAL_ROW = 0.1
"""What one more decode row adds to a step of one, as a share, as long as nothing better is known."""
USUAL_CHANGE = 0.5
"""What a step costs more when it has another number of rows than the one before (a runtime prepares its kernels
again), as a share of a step of one, as long as nothing better is known."""
MOST_LATE = 3.0
"""A step counts as at most so many times longer or shorter than was expected: others may have had the processor."""
TRUST = 4.0
"""How much the rows of recent steps must vary (as a variance) before their durations outweigh USUAL_ROW."""


class StepCost:
    """Seconds of a step that only decodes, as a straight line over its rows, and what a change of their number adds;
    and seconds of each prompt token that a step reads.

    The line is fitted to recent steps by least squares, drawn towards the usual slope where recent steps had much the
    same number of rows. Nothing decided by it ever changes a token, only when it comes.
    """

    def __init__(self) -> None:
        self._rows = 0.0
        self._seconds = 0.0
        self._variance = 0.0
        self._covariance = 0.0
        self.rows_before = 0
        """Rows of the step before, if that only decoded; else 0."""
        self._change: float | None = None
        self.prompt_token = 0.0
        """Seconds that each prompt token adds; 0 when nothing is known."""

    @property
    def known(self) -> bool:
        """Whether a decode step has been seen."""
        return self._seconds > 0.0

    @property
    def row(self) -> float:
        """Seconds that one more row adds."""
        usual = self._seconds * USUAL_ROW / (1.0 + USUAL_ROW * max(0.0, self._rows - 1.0))
        slope = (self._covariance + TRUST * usual) / (self._variance + TRUST)
        return min(max(slope, 0.1 * usual), self._seconds / max(1.0, self._rows))

    @property
    def change(self) -> float:
        """Seconds that a step adds whose rows are not `rows_before`."""
        return USUAL_CHANGE * self.decode(1) if self._change is None else self._change

    def decode(self, rows: int) -> float:
        """Seconds of a step of so many decode rows."""
        return max(self._seconds + self.row * (rows - self._rows), 0.1 * self._seconds)

    def observe(self, prompt_tokens: int, rows: int, seconds: float) -> None:
        """A step that read so many prompt tokens beside so many decode rows took so long."""
        before, self.rows_before = self.rows_before, 0 if prompt_tokens else rows
        if prompt_tokens:
            extra = seconds - (self.decode(rows) if rows and self.known else 0.0)
            if extra > 0:
                self.prompt_token = _blend(self.prompt_token, extra / prompt_tokens)
        elif not self.known:
            self._rows, self._seconds = float(rows), seconds
        elif before == rows:
            self._fit(rows, seconds)
        elif not before:
            self._fit(rows, seconds - (self._change or 0.0))
        else:
            self._fit_change(rows, seconds)

    def _fit_change(self, rows: int, seconds: float) -> None:
        """Learn from a decode step that followed one with another number of rows. What it took beyond belief does not
        count."""
        expected, change = self.decode(rows), self.change
        extra = min(max(seconds - expected, 0.0), 2.0 * expected)
        self._fit(rows, seconds - change)
        self._change = change + SMOOTHING * (extra - change)

    def _fit(self, rows: int, seconds: float) -> None:
        expected = self.decode(rows)
        seconds = min(max(seconds, expected / MOST_LATE), expected * MOST_LATE)
        off, late = rows - self._rows, seconds - self._seconds
        self._rows += SMOOTHING * off
        self._seconds += SMOOTHING * late
        self._variance = (1 - SMOOTHING) * (self._variance + SMOOTHING * off * off)
        self._covariance = (1 - SMOOTHING) * (self._covariance + SMOOTHING * off * late)


class PrefillPacer:
    """Decides how many prompt tokens a step reads. The result never changes any token: chunks are multiples of a
    block, and those give the same bits however a prompt is cut."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost

    def budget(self, writers: int, readers: int) -> int:
        """Prompt tokens that the next step may read beside `writers` decodes, when `readers` sequences are read
        or wait to be: a multiple of a block."""
        if not writers:
            return MOST
        cost = self._cost
        if not cost.known or not cost.prompt_token:
            return 2 * BLOCK_TOKENS
        stretch = STRETCH * max(1.0, readers / writers)
        tokens = int(stretch * cost.decode(writers) / cost.prompt_token)
        return min(MOST, max(BLOCK_TOKENS, tokens // BLOCK_TOKENS * BLOCK_TOKENS))


def _blend(average: float, value: float) -> float:
    return value if not average else average + SMOOTHING * (value - average)
