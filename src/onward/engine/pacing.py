"""What steps cost, learnt from how long they take; and how many prompt tokens a step may read beside running
decodes, so that nobody's next token waits long."""

from __future__ import annotations

from onward.engine.model import BLOCK_TOKENS, CHUNK_TOKENS

MOST_PROMPT_TOKENS = 512
"""Prompt tokens a step when nothing decodes: larger steps read no faster, and only delay a cancel."""
TILE = 64
"""Tokens that matrix kernels compute together: a step of one tile and a token takes nearly as long as two tiles."""
BRIEF = 1024
"""A prompt of so many tokens at most is read a whole tile at a time, however few write: it delays them no longer in
all, only less evenly, and gets its first token after fewer steps. What counts is what of it is unread; for the line in
which it waits (scheduler.py), what was when it came."""
STRETCH = 1.2
"""How much longer a step may become by reading one prompt, as a share of a plain decode step: about as much time for
reading as for writing. The more wait beside it, the longer it may become: each delayed token of one writer is weighed
against the first token of those who have none yet, and a writer more makes the next steps worth more. With 1.0,
`python -m benchmarks.simulate --clients 64` shows a server that may stay where few write and many wait."""
GENTLE = 1.0
"""The same for a long prompt that nobody waits behind."""
UNNOTICED = 0.010
"""Seconds that a step may take however short plain ones are: nobody sees such a pause, and fewer steps cost less."""
MEMORY = 0.06
"""Weight of the newest step in what is known of all steps."""
SMOOTHING = 0.2
"""Weight of the newest step in what changes of rows cost, and steps that read nothing."""
STALE = 32
"""After so many steps that all read, one does not: where every step has as many tokens as the last, nothing tells what
writing costs and what reading, and the pacer would go by a guess."""
USUAL_ROW = 0.1
"""What one more decode row adds to a step of one, as a share, as long as nothing better is known."""
USUAL_CHANGE = 0.5
"""What a step costs more when it has another number of rows than the one before (a runtime prepares its kernels
again), as a share of a step of one, as long as nothing better is known."""
MOST_LATE = 3.0
"""A step counts as at most so many times longer or shorter than was expected: others may have had the processor."""
TRUST = 4.0
"""How much the rows of recent steps must vary (as a variance) before their durations outweigh USUAL_ROW."""
TRUST_TOKENS = 256.0
"""The same for prompt tokens, and what was known of them before."""


class StepCost:
    """Seconds of a step: a base, so much for each decode row and for each prompt token, and more where a step has
    another number of rows than the one before.

    Fitted to recent steps by least squares, drawn towards what is usual where recent steps were much the same.
    Nothing decided by it ever changes a token, only when it comes.
    """

    def __init__(self) -> None:
        self.rows_before = 0
        """Rows of the step before, if that only decoded; else 0."""
        self.steps_reading = 0
        """How many steps the last one that read nothing is ago."""
        self._rows = self._tokens = self._seconds = 0.0
        """Running means: of decode rows, of prompt tokens, of seconds."""
        self._rows_rows = self._rows_tokens = self._tokens_tokens = self._rows_seconds = self._tokens_seconds = 0.0
        """Their running covariances."""
        self._quiet_rows = self._quiet_seconds = 0.0
        """Running means of the steps that read nothing."""
        self._change: float | None = None
        self._usual_token: float | None = None

    @property
    def known(self) -> bool:
        """Whether a step has been seen."""
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
        return USUAL_CHANGE * self.decode(1) if self._change is None else self._change

    def decode(self, rows: int) -> float:
        """Seconds of a step of so many decode rows that reads nothing."""
        return self._expected(rows, 0)

    def quiet(self, rows: float) -> float:
        """As `decode`, but by the last steps that read nothing: what steps that read took more, counts as reading."""
        if not self._quiet_seconds:
            return self._expected(rows, 0)
        return max(self._quiet_seconds + self.row * (rows - self._quiet_rows), 0.1 * self._quiet_seconds)

    @property
    def reading(self) -> float:
        """Seconds that one more prompt token adds where prompts are read now: the more, the longer they are."""
        if self._tokens < 1.0:
            return self.prompt_token
        return max(self.prompt_token, (self._seconds - self.quiet(self._rows)) / self._tokens)

    def observe(self, prompt_tokens: int, rows: int, seconds: float) -> None:
        """A step that read so many prompt tokens beside so many decode rows took so long."""
        before, self.rows_before = self.rows_before, 0 if prompt_tokens else rows
        self.steps_reading = self.steps_reading + 1 if prompt_tokens else 0
        if not prompt_tokens:
            self._learn_quiet(rows, seconds)
        if not self.known:
            self._rows, self._tokens, self._seconds = float(rows), float(prompt_tokens), seconds
        elif prompt_tokens or before == rows:
            self._fit(rows, prompt_tokens, seconds)
        elif not before:
            self._fit(rows, 0, seconds - (self._change or 0.0))
        else:
            self._fit_change(rows, seconds)

    def _learn_quiet(self, rows: int, seconds: float) -> None:
        """Learn from a step that read nothing. Beside prompts there is one in STALE steps, so one that was held up must
        not count in full. The first may be as short as it likes: what is expected of it is a guess by steps that read.
        """
        weight = 1.0
        if self.known:
            expected = self.quiet(rows)
            seconds = min(seconds, expected * MOST_LATE)
            if self._quiet_seconds:
                weight, seconds = SMOOTHING, max(seconds, expected / MOST_LATE)
        self._quiet_rows += weight * (rows - self._quiet_rows)
        self._quiet_seconds += weight * (seconds - self._quiet_seconds)

    def _fit_change(self, rows: int, seconds: float) -> None:
        """Learn from a decode step that followed one with another number of rows. What it took beyond belief does not
        count."""
        expected, change = self.decode(rows), self.change
        extra = min(max(seconds - expected, 0.0), 2.0 * expected)
        self._fit(rows, 0, seconds - change)
        self._change = change + SMOOTHING * (extra - change)

    def _fit(self, rows: int, tokens: int, seconds: float) -> None:
        expected = self._expected(rows, tokens)
        seconds = min(max(seconds, expected / MOST_LATE), expected * MOST_LATE)
        more_rows, more_tokens, late = rows - self._rows, tokens - self._tokens, seconds - self._seconds
        self._rows += MEMORY * more_rows
        self._tokens += MEMORY * more_tokens
        self._seconds += MEMORY * late
        kept, new = 1 - MEMORY, MEMORY * (1 - MEMORY)
        self._rows_rows = kept * self._rows_rows + new * more_rows * more_rows
        self._rows_tokens = kept * self._rows_tokens + new * more_rows * more_tokens
        self._tokens_tokens = kept * self._tokens_tokens + new * more_tokens * more_tokens
        self._rows_seconds = kept * self._rows_seconds + new * more_rows * late
        self._tokens_seconds = kept * self._tokens_seconds + new * more_tokens * late
        if self._tokens_tokens > TRUST_TOKENS:
            self._usual_token = self.prompt_token

    def _expected(self, rows: float, tokens: float) -> float:
        row, token = self._slopes()
        seconds = self._seconds + row * (rows - self._rows) + token * (tokens - self._tokens)
        return max(seconds, 0.1 * self._seconds)

    def _slopes(self) -> tuple[float, float]:
        """Seconds a decode row, seconds a prompt token: least squares, with TRUST observations of the usual."""
        width = 1.0 + USUAL_ROW * (max(0.0, self._rows - 1.0) + self._tokens)
        usual = self._seconds * USUAL_ROW / width
        usual_token = usual if self._usual_token is None else self._usual_token
        rows, tokens = self._rows_rows + TRUST, self._tokens_tokens + TRUST_TOKENS
        by_rows = self._rows_seconds + TRUST * usual
        by_tokens = self._tokens_seconds + TRUST_TOKENS * usual_token
        both = self._rows_tokens
        determinant = rows * tokens - both * both
        row = (by_rows * tokens - by_tokens * both) / determinant
        token = (by_tokens * rows - by_rows * both) / determinant
        return max(row, 0.1 * usual), max(token, 0.1 * usual_token)


class PrefillPacer:
    """Decides how many prompt tokens a step reads. The result never changes any token: a prompt has the
    same bits however it is cut, as long as no chunk is a single token."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost

    def budget(self, writers: int, readers: int, *, brief: bool) -> int:
        """Prompt tokens that the next step may read beside `writers` decodes, when `readers` sequences are read
        or wait to be: at least CHUNK_TOKENS, or 0 now and then (see STALE). More than a tile of both together are
        whole tiles.

        `brief`: whether a prompt that is being read has at most BRIEF tokens, or none is being read yet. Only a long
        one that nobody waits behind is read on in chunks of less than a tile.
        """
        if not writers:
            return MOST_PROMPT_TOKENS
        cost = self._cost
        if not cost.known:
            return BLOCK_TOKENS
        if cost.steps_reading >= STALE:
            return 0
        quiet = cost.quiet(writers)
        if brief or readers > 1:
            stretch, least = STRETCH * (1.0 + (readers - 1) / writers), max(CHUNK_TOKENS, TILE - writers)
        else:
            stretch, least = GENTLE, CHUNK_TOKENS
        tokens = int(max(stretch * quiet, UNNOTICED - quiet) / cost.reading)
        return _in_whole_tiles(writers, min(MOST_PROMPT_TOKENS, max(least, tokens)))


def _in_whole_tiles(writers: int, tokens: int) -> int:
    """About so many prompt tokens, such that a step of more than a tile has whole tiles (one that would be a quarter
    full is filled: it costs most of a whole one), and that the numbers of tokens which steps have are few: a
    runtime prepares its kernels for each."""
    total = writers + tokens
    if total > TILE:
        grain, whole = TILE, (total + TILE * 3 // 4) // TILE * TILE
    else:
        grain, whole = CHUNK_TOKENS, total // CHUNK_TOKENS * CHUNK_TOKENS
    return whole - writers + (grain if whole - writers < CHUNK_TOKENS else 0)
