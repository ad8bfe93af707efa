"""The events that an engine emits about its jobs: a closed set of tagged messages, delivered step by step."""

from __future__ import annotations

from typing import Literal

import msgspec

from onward.sampling.outputs import Sampled

EngineFinishReason = Literal["stop", "length"]
FailureKind = Literal["stopped", "crashed", "lost", "rejected", "poisoned", "constraint"]
"""Why a job failed: its engine was stopped, has crashed, was lost and no other has resumed the job (one may, later),
cannot run this job, or was lost whenever it ran it; or its grammar cannot be used, for a reason that is for the
client."""


class Prefilled(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A job's prompt has been prefilled. Emitted once per job, before any Decoded.

    `num_cached_tokens` of its tokens came from the prefix cache, `num_written_tokens` were added to it; None where that
    is not known. `scores` has an entry per prompt token (None for the first) if the job requested prompt
    log-probabilities. `prefill_seconds`: since the step in which its computation began; 0 where that is not known.
    """

    job: int
    num_cached_tokens: int
    scores: list[Sampled | None] | None = None
    num_written_tokens: int | None = None
    prefill_seconds: float = 0.0


class Decoded(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Tokens that one step sampled for one choice, in order; several where a draft was accepted.

    `finish_reason` is set on the choice's last event. The end token, or the tokens of the stop sequence, that finished
    the choice are the last of `tokens`. `tokens` is empty if the job's `max_tokens` is 0. Both counts are totals of the
    choice so far: tokens drafted from the job's prediction that were accepted, and those that were rejected. `mu` is
    mirostat's state after these tokens, None without mirostat: it depends on logits that a resumed choice does not
    compute again. `num_cached_tokens`: tokens of the prompt that came from a cache, beyond those of Prefilled, where an
    engine reports them at the end.
    """

    job: int
    choice: int
    tokens: list[Sampled]
    finish_reason: EngineFinishReason | None = None
    num_accepted_prediction_tokens: int = 0
    num_rejected_prediction_tokens: int = 0
    mu: float | None = None
    num_cached_tokens: int = 0


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """The job ended before its choices finished. `reason` is for the log, except for that of a `constraint`."""

    job: int
    kind: FailureKind
    reason: str


Event = Prefilled | Decoded | Failed
EVENTS = (Prefilled, Decoded, Failed)
