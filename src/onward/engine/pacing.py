"""How many prompt tokens a step may read beside running decodes, so that nobody's next token waits long."""

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


class PrefillPacer:
    """Learns from step durations what decoding and reading cost. The result never changes any token, only when
    it comes: chunks are multiples of a block, and those give the same bits however a prompt is cut."""

    def __init__(self) -> None:
        self._decode_seconds = 0.0
        self._seconds_per_token = 0.0

    def observe(self, prompt_tokens: int, writers: int, seconds: float) -> None:
        """A step that read so many prompt tokens beside so many decodes took so long."""
        if not prompt_tokens:
            self._decode_seconds = _blend(self._decode_seconds, seconds)
            return
        extra = seconds - (self._decode_seconds if writers else 0.0)
        if extra > 0:
            self._seconds_per_token = _blend(self._seconds_per_token, extra / prompt_tokens)

    def budget(self, writers: int, readers: int) -> int:
        """Prompt tokens that the next step may read beside `writers` decodes, when `readers` sequences are read
        or wait to be: a multiple of a block."""
        if not writers:
            return MOST
        if not self._decode_seconds or not self._seconds_per_token:
            return 2 * BLOCK_TOKENS
        stretch = STRETCH * max(1.0, readers / writers)
        tokens = int(stretch * self._decode_seconds / self._seconds_per_token)
        return min(MOST, max(BLOCK_TOKENS, tokens // BLOCK_TOKENS * BLOCK_TOKENS))


def _blend(average: float, value: float) -> float:
    return value if not average else average + SMOOTHING * (value - average)
