"""The kernels against the plain numpy reference.

Both use the same random numbers, so they must sample the same token, unless a comparison on the way (the random
number with a cumulative sum, the mass above a token with top_p) is closer to a tie than the rounding error of the
float32 sums. The reference measures that distance (`Decision.margin`), so the exception is as narrow as possible.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.sampling.choice import ChoiceSampler
from onward.sampling.masks import Mask, pack_mask
from onward.sampling.params import SamplingParams
from onward.sampling.reference import ReferenceSampler, decide, edited
from onward.sampling.sampler import Sampler
from tests.examples import examples, slow_but
from tests.sampling.harness import Logits, choice, exact_logprobs, normal, sample_many, sample_one

ROUNDING = 3e-6
"""Upper bound of the error, in probability, of the kernels' float32 sums."""

SIZES = (1, 2, 7, 255, 256, 257, 511, 512, 513, 1500)
SAMPLERS = {size: Sampler(size) for size in SIZES}


@st.composite
def rows_of_logits(draw: st.DrawFn) -> Logits:
    """Rows of many distributions: flat, peaked, with ties, with impossible tokens."""
    size = draw(st.sampled_from(SIZES))
    row = normal(size, scale=draw(st.sampled_from((0.0, 0.1, 1.0, 5.0, 30.0))), seed=draw(st.integers(0, 9999)))
    if draw(st.booleans()):
        row = np.round(row * 2) / np.float32(2)
    impossible = draw(st.sampled_from((0.0, 0.0, 0.3, 0.95)))
    keep = int(draw(st.integers(0, size - 1)))
    hidden = np.random.default_rng(keep).random(size) < impossible
    hidden[keep] = False
    row[hidden] = -np.inf
    return row + np.float32(draw(st.sampled_from((0.0, -40.0, 1000.0))))


def choice_samplers() -> st.SearchStrategy[ChoiceSampler]:
    fractions = st.floats(0, 1) | st.sampled_from((0.0, 1e-9, 0.1, 0.5, 0.9, 0.95, 1.0))
    params = st.builds(
        SamplingParams,
        temperature=st.sampled_from((0.0, 1e-6, 0.1, 0.7, 1.0, 1.0, 2.0)),
        top_p=fractions,
        top_k=st.sampled_from((0, 0, 0, 1, 2, 5, 40, 300, 100_000)),
        min_p=st.sampled_from((0.0, 0.0, 0.01, 0.2, 1.0)) | fractions,
        presence_penalty=st.sampled_from((0.0, 0.0, 2.0, -2.0, 0.3)),
        frequency_penalty=st.sampled_from((0.0, 0.0, 2.0, -2.0, 0.3)),
        repetition_penalty=st.sampled_from((1.0, 1.0, 1.3, 0.01, 100.0)),
        penalty_last_n=st.sampled_from((-1, -1, 0, 2)),
        unpenalized_tokens=st.sampled_from(((), (), (0,))),
        logit_bias=st.sampled_from(((), ((0, 100.0),), ((0, -100.0),), ((0, 1.5),))),
        seed=st.integers(0, 2**64 - 1),
    )
    return st.builds(ChoiceSampler, params, st.integers(0, 127))


def allowing(row: Logits, fraction: float) -> Mask:
    """A mask that allows this fraction of the tokens, in places all or none of 600, and one that is possible."""
    rng = np.random.default_rng(int(row.argmax()))
    allowed = np.repeat(rng.choice((0.0, fraction, 1.0), -(-row.size // 600)), 600)[: row.size]
    return pack_mask({int(row.argmax()), *np.flatnonzero(rng.random(row.size) < allowed).tolist()}, row.size)


@settings(max_examples=examples(400))
@given(
    row=rows_of_logits(),
    state=choice_samplers(),
    accepted=st.lists(st.integers(0, 600), max_size=5),
    ban=st.booleans(),
    allowed=st.sampled_from((None, None, 0.0, 0.02, 0.5, 0.98)),
)
def test_the_kernels_sample_what_the_reference_samples(
    row: Logits, state: ChoiceSampler, accepted: list[int], ban: bool, allowed: float | None
) -> None:
    for token in accepted:
        state.accept(token % row.size)
    mask = None if allowed is None else allowing(row, allowed)
    banned = frozenset({int(row.argmax())}) if ban and np.isfinite(edited(row, state, None, mask)).sum() > 1 else None
    [sampled] = SAMPLERS[row.size].sample(row.reshape(1, -1), [0], [state], [banned], [mask])
    token, final = sampled.token, edited(row, state, banned, mask)
    decision = decide(final, state)
    if decision.margin > ROUNDING:
        assert token == decision.token
    assert final[token] > -np.inf
    assert_inside_the_kept_set(final, token, state.params)


def assert_inside_the_kept_set(row: Logits, token: int, params: SamplingParams) -> None:
    """Check with a full sort and float64 sums, up to rounding of the sums."""
    if params.temperature == 0 or params.top_p == 0:
        assert token == int(row.argmax())
        return
    order = np.lexsort((np.arange(row.size), -row)).tolist()
    rank = order.index(token)
    with np.errstate(over="ignore"):
        logprobs = exact_logprobs(row, params.temperature)
    assert params.top_k <= 0 or rank < params.top_k
    if params.min_p > 0:
        assert logprobs[token] - logprobs.max() >= np.log(params.min_p) - 1e-5 * (1 + 1 / params.temperature)
    kept = np.exp(logprobs[order])[: params.top_k or None]
    if params.min_p > 0:
        kept = kept[kept >= params.min_p * kept[0] * (1 - 1e-9)]
    assert rank == 0 or kept[:rank].sum() < params.top_p * kept.sum() * (1 + 1e-5) + ROUNDING


@pytest.mark.parametrize(
    "params",
    slow_but(
        [{"top_p": 0.25, "top_k": 512}, {"min_p": 1.0}],
        [{}, {"top_p": 0.5}, {"top_p": 0.25, "top_k": 512}, {"top_k": 100}, {"min_p": 1.0}, {"temperature": 0.3}],
    ),
)
def test_tokens_are_equal_without_exception_where_sums_are_exact(params: dict[str, Any]) -> None:
    row = np.full(2048, -np.inf, np.float32)
    row[::2] = 3.25  # 1024 tokens of weight 1: every sum is a whole number, and top_p cuts between two of them
    tokens = sample_many(Sampler(2048), row, 400, seed=11, **params)
    assert tokens.tolist() == sample_many(ReferenceSampler(2048), row, 400, seed=11, **params).tolist()


@pytest.mark.slow
def test_a_large_vocabulary_agrees_too() -> None:
    logits = normal(151_936, rows=4)
    kernels = Sampler(151_936)
    checked = 0
    for seed, row in enumerate(logits):
        for params in (
            {"top_p": 0.95, "temperature": 0.8},
            {"top_k": 2000},
            {"min_p": 0.02, "top_p": 0.9},
            {},
        ):
            state = choice(seed=seed, **params)
            decision = decide(row, state)
            if decision.margin > ROUNDING:
                assert sample_one(kernels, row, state).token == decision.token
                checked += 1
    assert checked >= 8
