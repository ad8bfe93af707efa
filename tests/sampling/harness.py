"""Helpers for the sampling tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.sampling.choice import ChoiceSampler
from onward.sampling.outputs import Sampled
from onward.sampling.params import SamplingParams
from onward.sampling.reference import ReferenceSampler
from onward.sampling.sampler import Sampler

AnySampler = Sampler | ReferenceSampler
Logits = NDArray[np.float32]


def as_row(values: Sequence[float]) -> Logits:
    return np.array(values, np.float32)


def normal(size: int, *, scale: float = 3.0, seed: int = 0, rows: int | None = None) -> Logits:
    """Return logits as of a trained model: float32 [size], or [rows, size]."""
    shape = size if rows is None else (rows, size)
    logits: Logits = (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)
    return logits


def choice(*, number: int = 0, accepted: Sequence[int] = (), **params: Any) -> ChoiceSampler:
    sampler = ChoiceSampler(SamplingParams(**params), number)
    for token in accepted:
        sampler.accept(token)
    return sampler


def sample_one(sampler: AnySampler, row: Logits, state: ChoiceSampler, banned: frozenset[int] | None = None) -> Sampled:
    [sampled] = sampler.sample(row.reshape(1, -1), [0], [state], [banned])
    return sampled


def sample_many(
    sampler: AnySampler,
    row: Logits,
    times: int,
    *,
    accepted: Sequence[int] = (),
    banned: frozenset[int] | None = None,
    **params: Any,
) -> NDArray[np.int64]:
    """Return the tokens that `times` choices sample from one row: int64 [times]."""
    choices = [choice(number=number, accepted=accepted, **params) for number in range(times)]
    sampled = sampler.sample(row.reshape(1, -1), [0] * times, choices, [banned] * times)
    return np.array([each.token for each in sampled])


def support(sampler: AnySampler, row: Logits, **params: Any) -> set[int]:
    """Return the tokens that 300 samples hit: all possible ones, where each has a probability above a few percent."""
    return set(sample_many(sampler, row, 300, **params).tolist())


def exact_logprobs(row: Logits, temperature: float = 1.0) -> NDArray[np.float64]:
    """Return the log-softmax of a row in float64."""
    exact = row.astype(np.float64) / temperature
    shifted: NDArray[np.float64] = exact - exact.max()
    logprobs: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return logprobs
