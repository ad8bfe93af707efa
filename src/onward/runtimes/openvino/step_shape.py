"""OpenVINO's facts about steps on a CPU, which the engine schedules by."""

from __future__ import annotations

from onward.engine.model import StepShape

STEP_SHAPE = StepShape(
    block_tokens=32,  # the CPU plug-in's KV block, whatever else is asked for
    min_prefill_tokens=8,  # never a single token: that is the decode kernel, which has other bits
    tile_tokens=64,
    max_prefill_tokens=512,
    imperceptible_seconds=0.010,
)
BLOCK_TOKENS = STEP_SHAPE.block_tokens
MIN_PREFILL_TOKENS = STEP_SHAPE.min_prefill_tokens
