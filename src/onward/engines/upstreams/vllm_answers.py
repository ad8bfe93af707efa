"""What vLLM answers, as records: token ids, and log-probabilities by names of tokens."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from onward.engines.upstreams.answers import MAX_LOGPROB_ERROR, Malformed, UpstreamAnswer, cached_tokens, logprob
from onward.sampling.outputs import Sampled

TOKEN_PREFIX = "token_id:"
NO_LOGPROB = -9999.0
"""What it sends for -inf."""


class VLLMLogprobs(msgspec.Struct):
    """With tokens as `token_id:ID`."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]


class VLLMRank(msgspec.Struct):
    rank: int


class VLLMChoice(msgspec.Struct):
    index: int = 0
    token_ids: list[int] | None = None
    logprobs: VLLMLogprobs | None = None
    prompt_logprobs: list[dict[str, VLLMRank] | None] | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    """With details where the server was started with `--enable-prompt-tokens-details`."""

    prompt_tokens_details: _PromptDetails | None = None


class VLLMCompletion(UpstreamAnswer, kw_only=True):
    """An answer in one piece, or a chunk of a stream: without a choice if it only has the usage."""

    choices: list[VLLMChoice]
    usage: _Usage | None = None

    def num_cached(self, num_prompt: int) -> int | None:
        """Return how many of so many tokens of the prompt were in the cache, None where it is not said. Raises
        Malformed."""
        details = None if self.usage is None else self.usage.prompt_tokens_details
        return None if details is None else cached_tokens(details.cached_tokens, num_prompt)

    @property
    def is_progress(self) -> bool:
        for choice in self.choices:  # noqa: SIM110  # a generator for each event takes three times as long
            if choice.token_ids:  # an end is none: any number of them may follow
                return True
        return False

    def choice(self) -> VLLMChoice:
        """Return the only choice. Raises Malformed."""
        if len(self.choices) != 1:
            raise Malformed(f"{len(self.choices)} choices")
        if self.choices[0].index:
            raise Malformed(f"choice {self.choices[0].index}")
        return self.choices[0]


def ranked(scored: list[Sampled | None], entries: list[dict[str, VLLMRank] | None] | None) -> list[Sampled | None]:
    """Return prompt tokens with their ranks: that in `top`, or for others vLLM's own. Raises Malformed."""
    if entries is None or len(entries) != len(scored):
        raise Malformed("the ranks of another number of tokens")
    found: list[Sampled | None] = []
    for one, entry in zip(scored, entries, strict=True):
        if one is None:
            found.append(None)
            continue
        places = {token: place for place, (token, _) in enumerate(one.top, 1)}
        own = (entry or {}).get(str(one.token))
        if own is None:
            raise Malformed("a token without its rank")
        found.append(one._replace(rank=places.get(one.token) or own.rank))
    return found


def distribution_of(entries: dict[str, float], vocab_size: int) -> NDArray[np.float32]:
    """Return log-probabilities by token, float32 [vocabulary]. Raises Malformed."""
    ids = np.fromiter((_id(name) for name in entries), np.int64, len(entries))
    values = np.fromiter(entries.values(), np.float32, len(entries))
    if (values > MAX_LOGPROB_ERROR).any():
        raise Malformed(f"the log-probability {values.max():g}")
    known = ids < vocab_size
    if np.count_nonzero(known) < vocab_size // 2:
        raise Malformed(f"the log-probabilities of {len(entries)} tokens instead of all")
    found = np.full(vocab_size, -np.inf, np.float32)
    found[ids[known]] = np.where(values[known] > NO_LOGPROB, values[known], -np.inf)
    return found


def scored(
    ids: list[int], logprobs: VLLMLogprobs | None, num_top: int, *, first_is_none: bool = False
) -> list[Sampled | None]:
    """Return tokens with their log-probabilities; None for a first one that has none. Raises Malformed for those of
    others."""
    if logprobs is None or logprobs.tokens != [f"{TOKEN_PREFIX}{token}" for token in ids]:
        raise Malformed("the log-probabilities of other tokens")
    values, tops = logprobs.token_logprobs, logprobs.top_logprobs
    if not len(values) == len(tops) == len(ids):
        raise Malformed("another number of log-probabilities than of tokens")
    found: list[Sampled | None] = []
    for index, (token, value, top) in enumerate(zip(ids, values, tops, strict=True)):
        if value is None and first_is_none and index == 0:
            found.append(None)
            continue
        entries = sorted(
            ((_id(name), logprob(other)) for name, other in (top or {}).items()),
            key=lambda entry: (-entry[1], entry[0]),
        )
        found.append(Sampled(token, logprob(value), tuple(entries[:num_top])))
    return found


def _id(name: str) -> int:
    """Return the id in `token_id:ID`. Raises Malformed."""
    digits = name.removeprefix(TOKEN_PREFIX)
    if not (name.startswith(TOKEN_PREFIX) and digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise Malformed("an alternative that is not a token id")
    return int(digits)
