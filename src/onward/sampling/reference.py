"""The sampler in plain numpy: float64, a full sort, no blocks. Slow and easy to verify; the kernels are tested
against it. Same random numbers and same ranking (higher logit first, then lower id) as the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onward.sampling.candidates import Candidates
from onward.sampling.choice import ChoiceSampler
from onward.sampling.filters import FILTERS
from onward.sampling.masks import Mask, unpack_mask
from onward.sampling.outputs import NO_TOKEN_LEFT, NOT_FINITE, Sampled
from onward.sampling.params import Mirostat, SamplingParams
from onward.sampling.rng import XTC_ATTEMPT, uniform

_MAX_LOGIT = float(np.finfo(np.float32).max)
SLOPE_TOKENS = 100
"""Version 1 of mirostat reads the slope from this many of the most likely tokens."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A sampled token, and how far (in probability) the closest comparison was from selecting another one.

    An implementation whose sums have an error below `margin` must sample the same token.
    """

    token: int
    margin: float


class ReferenceSampler:
    """The same calls, results and errors as `sampler.Sampler`, except that arguments are not checked."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def sample(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[int],
        choices: Sequence[ChoiceSampler],
        banned: Sequence[frozenset[int] | None],
        masks: Sequence[Mask | None] = (),
    ) -> list[Sampled]:
        """Sample one token from logits[rows[i]] for each choices[i]; `logits` is float32 [num_rows, vocab_size]."""
        results = []
        for row, choice, ban, mask in zip(rows, choices, banned, masks or [None] * len(rows), strict=True):
            raw = logits[row]
            if not np.isfinite(raw.max()):
                results.append(Sampled(NOT_FINITE, float("nan"), ()))
                continue
            final = edited(raw, choice, ban, mask)
            if final.max() == -np.inf:
                results.append(Sampled(NO_TOKEN_LEFT, float("nan"), ()))
                continue
            results.append(sampled(raw, _token(final, choice), choice.params.logprobs))
        return results

    def score(
        self,
        logits: NDArray[np.float32],
        first_row: int,
        targets: Sequence[int],
        top: int,
        *,
        with_ranks: bool = False,
    ) -> list[Sampled]:
        """Score targets[i] by logits[first_row + i]; `logits` is float32 [num_rows, vocab_size]."""
        scored = [sampled(logits[first_row + i], target, top) for i, target in enumerate(targets)]
        if not with_ranks:
            return scored
        return [one._replace(rank=rank_of(logits[first_row + i], one.token)) for i, one in enumerate(scored)]


def _token(row: NDArray[np.float32], choice: ChoiceSampler) -> int:
    """Return a token sampled from one edited row (float32 [vocab_size])."""
    params = choice.params
    if params.mirostat is not None:
        return draw_mirostat(row, choice, params.mirostat)
    if params.needs_ranking:
        return draw_from_chain(row, choice)
    return decide(row, choice).token


def draw_from_chain(row: NDArray[np.float32], choice: ChoiceSampler) -> int:
    """Return a token sampled from what the chain leaves of an edited row (float32 [vocab_size])."""
    params = choice.params
    if params.is_greedy:
        return int(row.argmax())
    left = filtered(row, params, uniform(params.seed, choice.choice, choice.position, XTC_ATTEMPT))
    edges = np.cumsum(left.probabilities)
    goal = uniform(params.seed, choice.choice, choice.position, 0) * float(edges[-1])
    return int(left.ids[min(int(np.searchsorted(edges, goal, side="right")), edges.size - 1)])


def filtered(row: NDArray[np.float32], params: SamplingParams, chance: float) -> Candidates:
    """Return the tokens that all filters of the chain leave. XTC acts if `chance`, a number in [0, 1), is below its
    probability."""
    ids = np.flatnonzero(row > -np.inf)
    order = ids[np.argsort(-row[ids], kind="stable")]
    left = Candidates(order, row[order].astype(np.float64), chance)
    for each in map(FILTERS.__getitem__, params.chain):
        left = each.reference(left, *(params.value(one.name) for one in each.parameters))
    return left


def draw_mirostat(row: NDArray[np.float32], choice: ChoiceSampler, mirostat: Mirostat) -> int:
    """Return a token sampled from an edited row (float32 [vocab_size]), and write the choice's `next_mu`."""
    params, mu = choice.params, choice.mu
    assert mu is not None
    if params.is_greedy:
        return int(row.argmax())
    ids = np.flatnonzero(row > -np.inf)
    ids = ids[np.argsort(-row[ids], kind="stable")]
    logits = row[ids].astype(np.float64) / max(params.temperature, 1e-30)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    count = np.count_nonzero(-np.log2(p) <= mu) if mirostat.version == 2 else _zipf_count(p, mu, row.size)
    p = p[: max(1, count)] / p[: max(1, count)].sum()
    edges = np.cumsum(p)
    goal = uniform(params.seed, choice.choice, choice.position, 0) * float(edges[-1])
    index = min(int(np.searchsorted(edges, goal, side="right")), p.size - 1)
    choice.next_mu = float(mu - mirostat.eta * (-np.log2(p[index]) - mirostat.tau))
    return int(ids[index])


def _zipf_count(p: NDArray[np.float64], mu: float, vocab_size: int) -> int:
    """Return how many tokens version 1 keeps of those with these probabilities, highest first."""
    first = p[:SLOPE_TOKENS]
    if first.size < 2:
        return 1
    t = np.log([(i + 2) / (i + 1) for i in range(first.size - 1)])
    b = np.log(first[:-1] / first[1:])
    s = float((t * b).sum() / (t * t).sum())
    epsilon = s - 1
    with np.errstate(over="ignore"):
        k = np.power((epsilon * np.power(2.0, mu)) / (1 - np.power(float(vocab_size), -epsilon)), 1 / s)
    return int(min(k, vocab_size))


def most_likely(row: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Return the first `count` tokens of the ranking of `row` (float32 [vocab_size]): intp [min(count, vocab_size)].

    Only tokens that are at least as good as the count-th best are sorted.
    """
    count = min(count, row.size)
    bound = np.partition(row, row.size - count)[row.size - count]
    candidates = np.flatnonzero(row >= bound)
    return candidates[np.argsort(-row[candidates], kind="stable")][:count]


def rank_of(row: NDArray[np.float32], token: int) -> int:
    """Return the place of `token` in the ranking of `row` (float32 [vocab_size]), from 1."""
    return int((np.lexsort((np.arange(row.size), -row)) == token).argmax()) + 1


def log_normalizer(raw: NDArray[np.float32]) -> float:
    """Return the log of the sum of exp(logit) over `raw` (float32 [vocab_size])."""
    exact = raw.astype(np.float64)
    return float(exact.max() + np.log(np.exp(exact - exact.max()).sum()))


def sampled(raw: NDArray[np.float32], token: int, top: int | None) -> Sampled:
    """Return `token` with its raw log-probability and the `top` most likely tokens; with None, without numbers.

    `raw` is float32 [vocab_size].
    """
    if top is None:
        return Sampled(token, float("nan"), ())
    logprobs = (raw.astype(np.float64) - log_normalizer(raw)).astype(np.float32)
    best = most_likely(raw, top) if top else ()
    return Sampled(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in best))


def edited(
    raw: NDArray[np.float32], choice: ChoiceSampler, banned: frozenset[int] | None, mask: Mask | None = None
) -> NDArray[np.float32]:
    """Return a copy of `raw` (float32 [vocab_size]) with penalties, then logit_bias, then the bans and masks of the
    step and of the choice applied.

    Every step is rounded to float32; finite logits stay finite.
    """
    params, row = choice.params, raw.copy()

    def write(ids: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        row[ids] = np.where(values == -np.inf, values, np.clip(values, -_MAX_LOGIT, _MAX_LOGIT))

    if choice.has_penalties:
        ids = choice.counts.ids
        values = row[ids].astype(np.float64)
        values = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        write(ids, values - choice.counts.counts * params.frequency_penalty - params.presence_penalty)
    for ids, values in ((choice.bias_ids, choice.bias_values), choice.repetitions()):
        write(ids, row[ids].astype(np.float64) + values)
    row[[*(banned or ()), *choice.bans()]] = -np.inf
    if params.allowed_tokens:
        kept = row[list(params.allowed_tokens)]
        row[:] = -np.inf
        row[list(params.allowed_tokens)] = kept
    if mask is not None:
        row[~unpack_mask(mask, row.size)] = -np.inf
    return row


def num_kept(row: NDArray[np.float32], params: SamplingParams) -> int:
    """Return how many of the highest-ranked tokens of `row` (float32 [vocab_size]) min_p and top_k keep."""
    kept = row.size
    if params.min_p > 0:
        maximum = row.max()
        with np.errstate(over="ignore"):
            threshold = min(maximum, np.float32(maximum + params.temperature * np.log(params.min_p)))
        kept = int(np.count_nonzero(row >= threshold))
    return min(kept, params.top_k) if params.top_k > 0 else kept


def decide(row: NDArray[np.float32], choice: ChoiceSampler) -> Decision:
    """Sample from one edited row (float32 [vocab_size]): sort, filter, then inverse CDFs in id order.

    Every rejected attempt leaves fewer candidates.
    """
    params = choice.params
    if params.is_greedy:
        return Decision(int(row.argmax()), float("inf"))
    order = np.lexsort((np.arange(row.size), -row))
    with np.errstate(over="ignore"):
        weights = np.exp((row.astype(np.float64) - float(row.max())) / params.temperature)
    order = order[: num_kept(row, params)]
    mass_above = np.cumsum(weights[order]) - weights[order]  # per kept token, strictly above it
    total_mass = float(weights[order].sum())
    nucleus = order.size if params.top_p >= 1 else int(np.count_nonzero(mass_above < params.top_p * total_mass))
    rank = np.empty(row.size, np.int64)
    rank[order] = np.arange(order.size)
    margin, num_candidates, attempt = float("inf"), order.size, 0
    while True:
        candidates = np.sort(order[:num_candidates])
        edges = np.cumsum(weights[candidates])
        goal = uniform(params.seed, choice.choice, choice.position, attempt) * float(edges[-1])
        i = min(int(np.searchsorted(edges, goal, side="right")), candidates.size - 1)
        token = int(candidates[i])
        margin = min(margin, _distance(edges, i, goal) / total_mass)
        if params.top_p < 1:
            margin = min(margin, abs(float(mass_above[rank[token]]) / total_mass - params.top_p))
        if rank[token] < nucleus:
            return Decision(token, margin)
        num_candidates, attempt = rank[token], attempt + 1


def _distance(edges: NDArray[np.float64], i: int, goal: float) -> float:
    """Return the distance from `goal` to the nearer edge of step i of a cumulative sum (float64 [n]).

    The first and the last edge of the whole sum do not count, because no goal is beyond them.
    """
    below = goal - float(edges[i - 1]) if i and edges[i - 1] > 0 else float("inf")
    above = float(edges[i]) - goal if edges[i] < edges[-1] else float("inf")
    return min(below, above)
