"""The same logits are sampled to the same bits on every processor: a hash that is compared wherever the tests run."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import pytest

from onward.kernels.compiler import compile_object, undefined_symbols
from onward.kernels.targets import FORMS, Target
from onward.sampling.kernels import module_text, run_of
from onward.sampling.masks import pack_mask
from onward.sampling.params import Dry, Mirostat
from onward.sampling.sampler import Sampler
from tests.kernels.emulated import executable_forms, linked
from tests.samplers import SAMPLERS
from tests.samplers import Sampler as PlainSampler
from tests.sampling.harness import choice

SIZE = 3100
GOLDEN = "e0bd4ab8a5fd427780391ca49e6b2bf562e0e4446b1706f85ebc2c23058e0346"
"""Changes only together with SAMPLING_REVISION."""

CASES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.9},
    {"min_p": 0.05},
    {"temperature": 0.7, "min_p": 0.01, "top_k": 600},
    {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1, "logit_bias": ((5, 3.0), (6, -1.0))},
    {"dry": Dry(0.8)},
    {"allowed_tokens": tuple(range(0, SIZE, 7))},
    {"mirostat": Mirostat(1, 3.0, 0.2)},
    {"mirostat": Mirostat(2), "temperature": 0.9},
    *({"temperature": 0.9, "filters": filters} for filters in (
        (("typical_p", 0.7),), (("tfs", 0.9),), (("top_a", 0.2),), (("top_n_sigma", 1.5),),
        (("epsilon_cutoff", 0.001),), (("eta_cutoff", 0.002),), (("dynatemp_range", 0.5), ("dynatemp_exponent", 0.8)),
        (("xtc_probability", 0.6), ("xtc_threshold", 0.02)),
    )),
    {"temperature": 0.9, "order": ("top_k", "top_p", "min_p", "temperature")},
]  # fmt: skip


def logits_of(num_rows: int) -> Any:
    """Return logits without a library's functions: sums of random whole numbers, which are nearly normal; some -inf."""
    words = np.arange(8 * num_rows * SIZE, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    small = ((words ^ (words >> np.uint64(27))) >> np.uint64(48)).astype(np.int64).reshape(8, num_rows, SIZE)
    logits = ((small.sum(axis=0) - (8 << 15)) / 2.0**14).astype(np.float32)
    logits[:, ::31] = -np.inf
    return logits


def digest(sampler: Sampler, num_draws: int, cases: list[dict[str, Any]] = CASES) -> str:
    """Return a digest of all bits of tokens, log-probabilities, ranks and mirostat's states."""
    logits, summary = logits_of(len(cases)), hashlib.sha256()
    mask = pack_mask(range(0, SIZE, 3), SIZE)
    for seed in range(num_draws):
        choices = [choice(seed=seed, accepted=range(seed), logprobs=3, **case) for case in cases]
        masks = [mask if i % 4 == 3 and not choices[i].params.allowed_tokens else None for i in range(len(cases))]
        for each in sampler.sample(logits, range(len(cases)), choices, [None] * len(cases), masks):
            numbers = [each.logprob, *(value for _, value in each.top)]
            summary.update(struct.pack("<q4f3q", each.token, *numbers, *(token for token, _ in each.top)))
        states = [each.next_mu for each in choices if each.next_mu is not None]
        summary.update(struct.pack(f"<{len(states)}d", *states))
    for each in sampler.score(logits, 0, range(1, len(cases)), 2, with_ranks=True):
        summary.update(struct.pack("<qfq", each.token, each.logprob, each.rank))
    return summary.hexdigest()


def sampler_cases(sampler: PlainSampler) -> list[dict[str, Any]]:
    return [{"temperature": 0.9, "filters": sampler.filters(value)} for value in sampler.values]


def test_this_processor_samples_the_bits_of_every_other() -> None:
    assert digest(Sampler(SIZE), 20) == GOLDEN


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_each_sampler_has_the_bits_of_every_other_processor(sampler: PlainSampler) -> None:
    assert digest(Sampler(SIZE), 20, sampler_cases(sampler)) == sampler.bits


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(executable_forms()))
def test_every_form_samples_the_same_bits(form: str) -> None:
    target = FORMS[form]
    sampler = Sampler(SIZE)
    sampler._kernel = run_of(linked([compile_object(module_text(target.isa), target)], target))
    assert digest(sampler, 20) == GOLDEN


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", [each for each in FORMS.values() if each.architecture == "aarch64"], ids=lambda t: t.cpu
)
def test_the_sampler_is_compiled_for_arm_without_calls_into_a_library(target: Target) -> None:
    data = compile_object(module_text(target.isa), target)
    assert undefined_symbols(data) <= {"memcpy", "memset", "_GLOBAL_OFFSET_TABLE_"}
