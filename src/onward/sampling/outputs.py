"""What the sampler returns: one token with its log-probabilities, or why there is none."""

from __future__ import annotations

from typing import NamedTuple

NOT_FINITE = -1
"""Instead of a token: the row of logits has none that is a finite number, or has NaN or +inf."""
NO_TOKEN_LEFT = -2
"""Instead of a token: all are banned or have a logit of -inf."""
FAILURES = {
    NOT_FINITE: "the model computed logits that are not finite numbers",
    NO_TOKEN_LEFT: "no token is left to sample: all are banned or have a logit of -inf",
}
"""In words, for the log."""


class Sampled(NamedTuple):
    """One sampled or scored token. A named tuple because one is created per token, and named tuples are the fastest.

    `logprob` is the raw log-softmax at `token` (before temperature, penalties, bias and bans), a float32 value;
    -inf is possible; NaN if the job requested no log-probabilities (`SamplingParams.logprobs` is None).
    Where no token can be sampled, `token` is NOT_FINITE or NO_TOKEN_LEFT, and the rest is NaN and ().
    `top` holds the most likely (id, logprob) pairs, best first, ties by lower id; () if none were requested.
    `rank` is the token's place in that order of the whole vocabulary, from 1; 0 where it was not counted.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    rank: int = 0
