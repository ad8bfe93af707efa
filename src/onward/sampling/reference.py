"""The sampler in plain numpy: float64, a full sort, no blocks. Slow and obviously right; the kernels are tested
against it. Same random numbers, same total order (higher logit first, then lower id) as the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onward.sampling.choice import ChoiceSampler
from onward.sampling.outputs import Sampled
from onward.sampling.params import SamplingParams
from onward.sampling.rng import uniform

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Decision:
    """A drawn token, and how far (in probability) each comparison on the way to it was from going otherwise.

    An implementation whose sums err by less than `margin` must draw the same token.
    """

    token: int
    margin: float


class ReferenceSampler:
    """The same calls as `sampler.Sampler`."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def sample(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[int],
        choices: Sequence[ChoiceSampler],
        banned: Sequence[frozenset[int] | None],
    ) -> list[Sampled]:
        drawn = []
        for row, choice, ban in zip(rows, choices, banned, strict=True):
            raw = logits[row]
            if not np.isfinite(raw.max()):
                raise RuntimeError(f"the logits are not finite (row {row})")
            token = decide(edited(raw, choice, ban), choice).token
            drawn.append(sampled(raw, token, choice.params.logprobs))
        return drawn

    def score(self, logits: NDArray[np.float32], first_row: int, targets: Sequence[int], top: int) -> list[Sampled]:
        return [sampled(logits[first_row + i], target, top) for i, target in enumerate(targets)]


def most_likely(row: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The `count` first tokens of the total order. Only what reaches the count-th best value is sorted."""
    count = min(count, row.size)
    bound = np.partition(row, row.size - count)[row.size - count]
    candidates = np.flatnonzero(row >= bound)
    return candidates[np.argsort(-row[candidates], kind="stable")][:count]


def log_normaliser(raw: NDArray[np.float32]) -> float:
    """log of the sum of exp(logit)."""
    exact = raw.astype(np.float64)
    return float(exact.max() + np.log(np.exp(exact - exact.max()).sum()))


def sampled(raw: NDArray[np.float32], token: int, top: int | None) -> Sampled:
    """`token` with its raw log-probability and the `top` most likely beside it; with None, no numbers."""
    if top is None:
        return Sampled(token, float("nan"), ())
    logprobs = (raw.astype(np.float64) - log_normaliser(raw)).astype(np.float32)
    best = most_likely(raw, top) if top else ()
    return Sampled(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in best))


def edited(raw: NDArray[np.float32], choice: ChoiceSampler, banned: frozenset[int] | None) -> NDArray[np.float32]:
    """Penalties, then logit_bias, then bans, on a copy. Every step is rounded to float32; finite stays finite."""
    params, row = choice.params, raw.copy()

    def write(token: int, value: float) -> None:
        row[token] = value if value == -np.inf else min(max(value, -_LARGEST), _LARGEST)

    if choice.has_penalties:
        for token, count in zip(choice.counts.ids.tolist(), choice.counts.counts.tolist(), strict=True):
            value = float(row[token])
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
            write(token, value - count * params.frequency_penalty - params.presence_penalty)
    for token, bias in params.logit_bias:
        write(token, float(row[token]) + bias)
    for token in banned or ():
        row[token] = -np.inf
    if row.max() == -np.inf:
        raise RuntimeError("no token is left to draw: all are banned or have a logit of -inf")
    return row


def kept_by_min_p_and_top_k(row: NDArray[np.float32], order: NDArray[np.intp], params: SamplingParams) -> int:
    """How many of the first tokens of `order` remain."""
    kept = row.size
    if params.min_p > 0:
        maximum = row.max()
        with np.errstate(over="ignore"):
            floor = min(maximum, np.float32(maximum + params.temperature * np.log(params.min_p)))
        kept = int(np.count_nonzero(row >= floor))
    return min(kept, params.top_k) if params.top_k > 0 else kept


def decide(row: NDArray[np.float32], choice: ChoiceSampler) -> Decision:
    """Draw from one edited row: sort, cut, then inverse CDFs in id order over ever fewer candidates."""
    params = choice.params
    if params.is_greedy:
        return Decision(int(row.argmax()), float("inf"))
    order = np.lexsort((np.arange(row.size), -row))
    with np.errstate(over="ignore"):
        weights = np.exp((row.astype(np.float64) - float(row.max())) / params.temperature)
    order = order[: kept_by_min_p_and_top_k(row, order, params)]
    ahead = np.cumsum(weights[order]) - weights[order]  # weight strictly above each kept token
    whole = float(weights[order].sum())
    nucleus = order.size if params.top_p >= 1 else int(np.count_nonzero(ahead < params.top_p * whole))
    rank = np.empty(row.size, np.int64)
    rank[order] = np.arange(order.size)
    margin, candidates, attempt = float("inf"), order.size, 0
    while True:
        allowed = np.sort(order[:candidates])
        edges = np.cumsum(weights[allowed])
        goal = uniform(params.seed, choice.choice, choice.position, attempt) * float(edges[-1])
        i = min(int(np.searchsorted(edges, goal, side="right")), allowed.size - 1)
        token = int(allowed[i])
        margin = min(margin, _distance(edges, i, goal) / whole)
        if params.top_p < 1:
            margin = min(margin, abs(float(ahead[rank[token]]) / whole - params.top_p))
        if rank[token] < nucleus:
            return Decision(token, margin)
        candidates, attempt = rank[token], attempt + 1


def _distance(edges: NDArray[np.float64], i: int, goal: float) -> float:
    """From `goal` to the nearer end of step i of a cumulative sum; the sum's own ends cannot be crossed."""
    below = goal - float(edges[i - 1]) if i and edges[i - 1] > 0 else float("inf")
    above = float(edges[i]) - goal if edges[i] < edges[-1] else float("inf")
    return min(below, above)
