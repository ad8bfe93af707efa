"""What an engine reports about its jobs: a closed, tagged, encodable set. The events of a step travel together."""

from __future__ import annotations

from typing import Literal

import msgspec

from onward.sampling.outputs import Sampled

EngineFinishReason = Literal["stop", "length"]


class Prefilled(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A job's prompt is computed: sent once per job, before any Decoded.

    `num_cached_tokens` of it came from the prefix cache. `scores` has an entry per prompt token (None for the
    first) when the job asked for prompt log-probabilities.
    """

    job: int
    num_cached_tokens: int
    scores: list[Sampled | None] | None = None


class Decoded(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Tokens that one step sampled for one choice, in order; several where a draft was accepted.

    `finish_reason` is set on the choice's last event: nothing more is computed for it. An end token that finished the
    choice is the last of `tokens`; so are the tokens that spell a stop sequence. `tokens` is empty where nothing was
    to be generated. Both counts are totals of the choice so far: tokens drafted from the job's prediction that were
    sampled, and those that were evaluated in vain.
    """

    job: int
    choice: int
    tokens: list[Sampled]
    finish_reason: EngineFinishReason | None = None
    num_accepted_prediction_tokens: int = 0
    num_rejected_prediction_tokens: int = 0


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """The job ended without finishing its choices: the engine crashed or was stopped. `reason` is for the log."""

    job: int
    reason: str


Event = Prefilled | Decoded | Failed
EVENTS = (Prefilled, Decoded, Failed)
