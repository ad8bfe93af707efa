"""The chain of samplers: in numpy against plain loops over sorted lists as the papers and other servers describe them,
and in the kernels against numpy."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onward
from onward.sampling.chains import ORDER_BITS
from onward.sampling.filters import COMMON, DEFAULT_ORDER, FILTERS, OPTIONAL, PARAMETERS
from onward.sampling.outputs import NO_TOKEN_LEFT, NOT_FINITE
from onward.sampling.params import SamplingParams
from onward.sampling.reference import ReferenceSampler, filtered
from onward.sampling.rng import XTC_ATTEMPT, uniform
from onward.sampling.sampler import Sampler
from tests.examples import slow_but
from tests.samplers import SAMPLERS, Plain, by_probability, entropy, plain_top_a, plain_typical
from tests.samplers import Sampler as PlainSampler
from tests.sampling.harness import choice, exact_logprobs, normal, sample_many, sample_one

SIZE = 300
KERNELS = Sampler(SIZE)


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@given(scale=st.sampled_from((0.5, 2.0, 5.0)), seed=st.integers(0, 500), which=st.integers(0, 2))
def test_each_sampler_keeps_what_a_plain_loop_keeps(sampler: PlainSampler, scale: float, seed: int, which: int) -> None:
    value = sampler.values[which]
    row = normal(SIZE, scale=scale, seed=seed)
    plain = dict(enumerate(np.exp(exact_logprobs(row, 0.8)).tolist()))
    params = SamplingParams(temperature=0.8, filters=sampler.filters(value))
    kept = filtered(row, params, chance=0.0).ids.tolist()
    assert set(kept) == sampler.keeps(plain, value)
    assert kept == sorted(kept, key=lambda token: (-row[token], token))


SOURCE = Path(onward.__file__).parent
DECLARATION = {
    "sampling/filters.py",
    "completions/request.py",
    "api/extension_parameters.py",
    "client/parameters.py",
}
OTHERS = {"engines/upstreams/llama_server.py", "sampling/self_test.py"}
"""What says which samplers another server has, as tables of `api` do; and the self-test, which draws with one."""


def names_in(path: Path) -> set[str]:
    """The words of a module's code and texts, without comments and docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            words.update(re.findall(r"\w+", node.value))
        for attribute in ("id", "attr", "arg", "name"):
            if isinstance(name := getattr(node, attribute, None), str):
                words.add(name)
    return words


@pytest.mark.slow
def test_a_samplers_name_stands_only_where_it_is_declared_and_in_code_about_other_servers() -> None:
    names = {*SAMPLERS, *(name for sampler in SAMPLERS.values() for name in sampler.parameters)}
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        is_of_others = place in OTHERS or (place.startswith("api/") and place not in DECLARATION)
        if not is_of_others and (here := names & names_in(path)):
            found[place] = here
    assert set(found) == DECLARATION, found


def test_the_table_has_the_samplers_and_neutral_values_that_tests_know() -> None:
    assert set(FILTERS) == {*SAMPLERS, *COMMON}
    for sampler in SAMPLERS.values():
        for name, (_, _, default) in sampler.parameters.items():
            assert max(0, default) == PARAMETERS[name].neutral
    assert len(FILTERS) < 1 << ORDER_BITS and len(FILTERS) * ORDER_BITS <= 64


def test_samplers_act_one_after_the_other_on_what_is_left() -> None:
    row = normal(SIZE, scale=2.0, seed=3)
    params = SamplingParams(top_k=20, top_p=0.9, filters=(("typical_p", 0.8), ("top_a", 0.3)))
    left = dict(enumerate(np.exp(exact_logprobs(row)).tolist()))

    def renormalised(tokens: set[int] | list[int]) -> Plain:
        total = sum(left[token] for token in tokens)
        return {token: left[token] / total for token in sorted(tokens)}

    plain = renormalised(by_probability(left)[:20])
    order, total = by_probability(plain), 0.0
    nucleus = [token for token in order if (total := total + plain[token]) - plain[token] < 0.9]
    plain = renormalised(plain_typical(renormalised(nucleus), 0.8))
    assert set(filtered(row, params, 0.0).ids.tolist()) == plain_top_a(plain, 0.3)


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_kernels_and_reference_sample_the_same_tokens(sampler: PlainSampler) -> None:
    row = normal(SIZE)
    options: dict[str, Any] = {
        "filters": sampler.filters(sampler.values[1]), "seed": 5, "frequency_penalty": 0.5, "logit_bias": ((3, 2.0),),
        "banned_tokens": (9,),
    }  # fmt: skip
    tokens = sample_many(KERNELS, row, 100, accepted=(1, 1), **options)
    assert tokens.tolist() == sample_many(ReferenceSampler(SIZE), row, 100, accepted=(1, 1), **options).tolist()
    assert len(set(tokens.tolist())) > 1 and 9 not in tokens


def random_options(generator: np.random.Generator) -> dict[str, Any]:
    """Return parameters in which each sampler acts with a probability of about a third, in a random order."""

    def some(low: float, high: float, off: float) -> float:
        return float(generator.uniform(low, high)) if generator.random() < 0.35 else off

    order = tuple(generator.permutation(DEFAULT_ORDER).tolist()) if generator.random() < 0.5 else DEFAULT_ORDER
    ranges = {
        "top_n_sigma": (0.5, 3), "typical_p": (0.05, 1), "tfs": (0.3, 1), "epsilon_cutoff": (0, 0.02),
        "eta_cutoff": (0, 0.02), "xtc_probability": (0, 1), "dynatemp_range": (0, 2),
    }  # fmt: skip
    filters = {name: some(*ranges.get(name, (0, 1)), PARAMETERS[name].neutral) for name in OPTIONAL} | {
        "xtc_threshold": float(generator.uniform(0, 0.3)),
        "dynatemp_exponent": float(generator.uniform(0.5, 2)),
    }
    return {
        "filters": tuple(filters.items()), "order": order, "seed": int(generator.integers(2**63)),
        "temperature": some(0.2, 3, 1.0), "top_p": some(0.05, 1, 1), "min_p": some(0, 0.5, 0),
        "top_k": int(some(1, 200, 0)),
    }  # fmt: skip


@pytest.mark.parametrize("case", slow_but(range(12), range(150)))
def test_kernels_and_reference_agree_in_any_order(case: int) -> None:
    generator = np.random.default_rng(case)
    row = normal(SIZE, scale=float(generator.uniform(0.3, 5)), seed=case)
    if case % 3 == 0:
        row = np.round(row).astype(np.float32)  # ties, and negative zeros
    options = random_options(generator)
    tokens = sample_many(KERNELS, row, 40, **options).tolist()
    assert tokens == sample_many(ReferenceSampler(SIZE), row, 40, **options).tolist(), options


def test_the_order_decides_what_is_left() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1] + [1e-9] * (SIZE - 4), np.float32))
    hot: dict[str, Any] = {"temperature": 100.0, "top_p": 0.6, "seed": 3}
    first, last = ("temperature", "top_p"), ("top_p", "temperature")
    assert max(sample_many(KERNELS, row, 300, order=first, **hot)) > 3  # nearly uniform over the vocabulary
    assert set(sample_many(KERNELS, row, 300, order=last, **hot).tolist()) == {0, 1}
    assert max(sample_many(KERNELS, row, 300, order=("temperature",), **hot)) > 3  # no top_p at all
    assert max(sample_many(KERNELS, row, 300, order=(), temperature=0.01)) > 0  # nothing acts


def test_a_dynamic_temperature_follows_the_entropy() -> None:
    sharp = np.log(np.array([0.999] + [0.001 / (SIZE - 1)] * (SIZE - 1), np.float32))
    flat = np.zeros(SIZE, np.float32)
    for row, exponent in ((sharp, 1.0), (flat, 2.0), (normal(SIZE), 0.5)):
        params = SamplingParams(filters=(("dynatemp_range", 0.5), ("dynatemp_exponent", exponent)))
        plain = dict(enumerate(np.exp(exact_logprobs(row)).tolist()))
        expected = 0.5 + (entropy(plain) / math.log(SIZE)) ** exponent
        assert filtered(row, params, 0.0).temperature == pytest.approx(expected)


def test_frequencies_are_those_of_the_tokens_that_are_left() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05] + [1e-9] * (SIZE - 4), np.float32))
    tokens = sample_many(KERNELS, row, 4000, filters=(("xtc_probability", 1.0), ("xtc_threshold", 0.2)))
    shares = np.bincount(tokens, minlength=SIZE) / 4000
    assert shares[:4] == pytest.approx([0, 0.6, 0.3, 0.1], abs=0.03)


def test_xtc_acts_with_its_probability_by_the_seed_and_position() -> None:
    row = np.log(np.array([0.6, 0.4] + [1e-30] * (SIZE - 2), np.float32))
    filters = (("xtc_probability", 0.5), ("xtc_threshold", 0.1))
    for number in range(50):
        token = sample_one(KERNELS, row, choice(number=number, seed=1, filters=filters)).token
        if uniform(1, number, 0, XTC_ATTEMPT) < 0.5:
            assert token == 1


def test_filters_change_neither_greedy_choices_nor_rows_without_a_token() -> None:
    row = normal(SIZE)
    filters = (("typical_p", 0.1), ("xtc_probability", 1.0), ("xtc_threshold", 0.0))
    assert sample_one(KERNELS, row, choice(temperature=0.0, filters=filters)).token == int(row.argmax())
    state = choice(filters=filters, allowed_tokens=(4,), banned_tokens=(4,))
    assert sample_one(KERNELS, row, state).token == NO_TOKEN_LEFT
    assert sample_one(KERNELS, np.full(SIZE, np.nan, np.float32), choice(filters=filters)).token == NOT_FINITE


def test_log_probabilities_are_those_of_the_raw_distribution() -> None:
    row = normal(SIZE)
    sampled = sample_one(KERNELS, row, choice(filters=(("typical_p", 0.5),), logprobs=1))
    assert sampled.logprob == pytest.approx(exact_logprobs(row)[sampled.token], abs=1e-5)
