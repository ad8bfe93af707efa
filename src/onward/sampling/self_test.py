"""Draws from fixed logits, whose bits are known: every machine must sample them (kernels.self_test says why)."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from onward.kernels.self_test_result import SelfTest
from onward.sampling.choice import ChoiceSampler
from onward.sampling.params import Mirostat, SamplingParams
from onward.sampling.sampler import Sampler

EXPECTED = "86c017f3a955a99e38b8cf992aea8d683acf5953828cf54fb29690806e51f82c"
"""The digest that every machine finds. Changes only together with SAMPLING_REVISION."""

_SIZE = 1000
_PARAMS = (
    SamplingParams(temperature=1.0, logprobs=2),
    SamplingParams(temperature=0.8, top_p=0.9, top_k=200, logprobs=1),
    SamplingParams(temperature=1.2, min_p=0.01, filters=(("typical_p", 0.8),)),
    SamplingParams(mirostat=Mirostat(2)),
)
_DRAWS = 5


def run_self_test() -> SelfTest:
    """Sample on this machine. Raises kernels.executable_memory.NoExecutableMemory."""
    return SelfTest("sampling kernels", digest_of(Sampler(_SIZE, num_threads=1)), EXPECTED)


def digest_of(sampler: Sampler) -> str:
    """Return the digest of tokens, log-probabilities and states of mirostat. `sampler`: of _SIZE tokens."""
    logits, total = _logits(), sha256()
    for draw in range(_DRAWS):
        choices = [ChoiceSampler(params, draw) for params in _PARAMS]
        for each in sampler.sample(logits, range(len(_PARAMS)), choices, [None] * len(_PARAMS)):
            total.update(repr((each.token, each.logprob, each.top)).encode())
        total.update(repr([each.next_mu for each in choices]).encode())
    return total.hexdigest()


def _logits() -> NDArray[np.float32]:
    """Return float32 [len(_PARAMS), _SIZE]: sums of four pseudo-random numbers, exact in float32."""
    words = np.arange(4 * len(_PARAMS) * _SIZE, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (words >> np.uint64(52)).astype(np.float32).reshape(4, len(_PARAMS), _SIZE)
    logits: NDArray[np.float32] = (numbers.sum(axis=0) - np.float32(8192)) / np.float32(1024)
    return logits
