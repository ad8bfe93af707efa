"""Pacing: how many prompt tokens a step prefills beside running decodes, so that nobody's next token waits long."""

from __future__ import annotations

from onward.engine.model import StepShape
from onward.engine.step_cost import StepCost

MAX_STEP_STRETCH = 1.2
"""How much longer prefill may make a step, as a fraction of a decode-only step: about as much time for prefill as for
decode. The more prompts wait beside it, the longer: each delayed token of a decoding sequence is weighed against the
first tokens of those that have none yet, and one more decoding sequence makes the next steps worth more. With 1.0,
`python -m benchmarks.simulate --clients 64` shows a server that may stay where few decode and many wait."""
LONG_PROMPT_STRETCH = 1.0
"""The same for a long prompt that nobody waits behind."""
MAX_PREFILL_STEPS = 32
"""After so many steps with prompt tokens one decodes only: where every step has as many tokens as the last, nothing
tells what decode costs and what prefill, and the pacer would follow an estimate."""


class PrefillPacer:
    """Decides how many prompt tokens a step computes. The result never changes any token: a prompt has the same bits
    however it is cut, as long as no chunk is a single token. Engine thread only."""

    def __init__(self, cost: StepCost, shape: StepShape) -> None:
        self._cost = cost
        self._shape = shape

    def budget(self, num_decoding: int, num_prefilling: int, *, is_short: bool) -> int:
        """Prompt tokens that the next step may compute beside `num_decoding` decodes, when `num_prefilling` sequences
        are prefilling or waiting to be: at least a minimal chunk, or 0 now and then (MAX_PREFILL_STEPS). More than a
        tile of both together are whole tiles.

        `is_short`: whether a prompt that is prefilling is short, or none is prefilling yet. Only a long one that nobody
        waits behind is computed in chunks of less than a tile: a tile at a time delays the others no longer in all,
        only less evenly, and yields the first token after fewer steps.
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
        """About so many prompt tokens, such that a step of more than a tile has whole tiles (one that would be a
        quarter full is filled: it costs most of a whole one), and that steps have few different sizes: a runtime
        prepares its kernels for each."""
        tile, min_tokens = self._shape.tile_tokens, self._shape.min_prefill_tokens
        total = num_decoding + tokens
        if total > tile:
            grain, whole = tile, (total + tile * 3 // 4) // tile * tile
        else:
            grain, whole = min_tokens, total // min_tokens * min_tokens
        return whole - num_decoding + (grain if whole - num_decoding < min_tokens else 0)
