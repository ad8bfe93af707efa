"""What the sampler returns: one token with its log-probabilities."""

from __future__ import annotations

from typing import NamedTuple


class Sampled(NamedTuple):
    """One sampled or scored token. A named tuple because one is created per token, and named tuples are the fastest.

    `logprob` is the raw log-softmax at `token` (before temperature, penalties, bias and bans), a float32 value;
    -inf is possible; NaN if the job requested no log-probabilities (`SamplingParams.logprobs` is None).
    `top` holds the most likely (id, logprob) pairs, best first, ties by lower id; () if none were requested.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
