"""Pacing: how many prompt tokens a step prefills beside decodes, so that no decoding sequence waits long."""

from __future__ import annotations

from onward.engine.model import StepShape
from onward.engine.step_cost import StepCost

MAX_STEP_STRETCH = 1.2
"""Time that a step may spend on prefill, as a fraction of a decode-only step: about as much as it spends on decode.
It grows with the number of waiting prompts per decoding sequence: delayed tokens are weighed against delayed first
tokens, and with more decoding sequences later steps yield more. With 1.0, `python -m benchmarks.simulate --clients 64`
shows a server that may remain in a state where few sequences decode and many wait."""
LONG_PROMPT_STRETCH = 1.0
"""The same for a long prompt while no other prompt waits."""
MAX_PREFILL_STEPS = 32
"""After this many successive steps with prompt tokens, one only decodes: if all steps were alike, their durations would
not show what decode and what prefill costs, and a wrong estimate would never be corrected."""


class PrefillPacer:
    """Decides how many prompt tokens a step computes. Engine thread only.

    This never changes a token: a prompt's keys and values have the same bits however it is divided into chunks, as long
    as no chunk is a single token.
    """

    def __init__(self, cost: StepCost, shape: StepShape) -> None:
        self._cost = cost
        self._shape = shape

    def budget(self, num_decoding: int, num_prefilling: int, *, is_short: bool) -> int:
        """Return how many prompt tokens the next step may compute beside `num_decoding` decodes, while
        `num_prefilling` sequences are prefilling or waiting: at least a minimal chunk, but sometimes 0
        (MAX_PREFILL_STEPS). If prompt tokens and decodes together exceed a tile, they fill whole tiles.

        `is_short`: whether a short prompt is prefilling, or none yet. Only a long prompt is computed in chunks of less
        than a tile, and only while no other waits: whole tiles delay the decodes as much in total, only less evenly,
        and yield the first token after fewer steps.
        """
        shape, cost = self._shape, self._cost
        if not num_decoding:
            return shape.max_prefill_tokens
        if not cost.is_known:
            return shape.block_tokens
        if cost.num_prefill_steps >= MAX_PREFILL_STEPS:
            return 0
        decode_only = cost.decode_only(num_decoding)
        if is_short or num_prefilling > 1:
            stretch = MAX_STEP_STRETCH * (1.0 + (num_prefilling - 1) / num_decoding)
            min_tokens = max(shape.min_prefill_tokens, shape.tile_tokens - num_decoding)
        else:
            stretch, min_tokens = LONG_PROMPT_STRETCH, shape.min_prefill_tokens
        seconds = max(stretch * decode_only, shape.imperceptible_seconds - decode_only)
        tokens = min(shape.max_prefill_tokens, max(min_tokens, int(seconds / cost.prefill_token)))
        return self._in_whole_tiles(num_decoding, tokens)

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
