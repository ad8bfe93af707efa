"""Microseconds per row from logits to sampled tokens: the kernels, on `--threads` threads, and the numpy reference.

`python -m benchmarks.sampling`. Each figure is the best of several calls, each of which samples from `--rows` rows of
normally distributed logits (standard deviation 3), more than the processor's inner caches hold. The Python part of the
call is included. Normal logits are flatter than a trained model's, so top_p keeps more tokens here.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from benchmarks import measure
from onward.api.openai.parameters import BY_NAME
from onward.sampling.choice import ChoiceSampler
from onward.sampling.filters import OPTIONAL, PARAMETERS
from onward.sampling.masks import Mask, pack_mask
from onward.sampling.params import Dry, Mirostat, SamplingParams
from onward.sampling.reference import ReferenceSampler
from onward.sampling.sampler import Sampler

VOCAB_SIZES = (8192, 151_936)
BIAS = tuple((token, 1.0) for token in range(0, 3000, 10))
EXAMPLES: dict[str, float] = {name: BY_NAME[name].example * PARAMETERS[name].unit for name in OPTIONAL}  # type: ignore[operator]
"""A value of each sampler, in the units of sampling."""
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy, logprobs 5": {"temperature": 0.0, "logprobs": 5},
    "temperature 0.8": {"temperature": 0.8},
    "temperature 0.8, top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "temperature 0.8, top_p 0.95, logprobs 5": {"temperature": 0.8, "top_p": 0.95, "logprobs": 5},
    "top_k 40, top_p 0.95": {"top_k": 40, "top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "300 biases, penalties on 200 tokens": {
        "logit_bias": BIAS,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
    },
    **{f"{name} {EXAMPLES[name]:g}": {"filters": ((name, EXAMPLES[name]),)} for name in OPTIONAL},
    "min_p 0.05, XTC 0.5": {"min_p": 0.05, "filters": (("xtc_probability", 0.5),)},
    "llama-server's defaults": {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "order": ("top_k", "top_p", "min_p", "temperature"),
    },
    "mirostat 2": {"mirostat": Mirostat()},
    "dry_multiplier 0.8": {"dry": Dry(0.8)},
}
MASKED = {"temperature": 0.8, "top_p": 0.95}
MASKS = {"a mask of 0.1 %": 0.001, "a mask of half": 0.5, "a mask of 99.9 %": 0.999}
"""Fractions of the vocabulary that the mask of a grammar allows, in addition to MASKED."""


def sample_us_per_row(
    sampler: Sampler | ReferenceSampler,
    logits: np.ndarray[Any, np.dtype[np.float32]],
    params: dict[str, Any],
    calls: int,
    allowed: float | None = None,
) -> float:
    """Return the microseconds per row of the fastest of `calls` calls of `sample`; `logits` is [rows, vocab_size].
    `allowed`: the fraction of tokens that masks allow, a mask per row; None: no masks."""
    rows = range(len(logits))
    masks = [] if allowed is None else random_masks(logits.shape, allowed)
    choices = [ChoiceSampler(SamplingParams(seed=row, **params), 0) for row in rows]
    for choice in choices:
        for token in range(200):
            choice.accept(7 * token)
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        sampler.sample(logits, rows, choices, [None] * len(choices), masks)
        times.append(time.perf_counter() - start)
    return min(times) / len(logits) * 1e6


def random_masks(shape: tuple[int, ...], allowed: float) -> list[Mask]:
    """Return a mask per row of [rows, vocab_size] that allows this fraction of the tokens."""
    rng = np.random.default_rng(1)
    return [pack_mask(np.flatnonzero(rng.random(shape[1]) < allowed).tolist(), shape[1]) for _ in range(shape[0])]


def score_us_per_row(
    sampler: Sampler | ReferenceSampler, logits: np.ndarray[Any, np.dtype[np.float32]], calls: int
) -> float:
    """Return the microseconds per row of the fastest of `calls` calls of `score`; `logits` is [rows, vocab_size]."""
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        sampler.score(logits, 0, range(len(logits)), 5)
        times.append(time.perf_counter() - start)
    return min(times) / len(logits) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description=__doc__)
    parser.add_argument("--rows", type=int, default=16, help="rows per step (default 16)")
    parser.add_argument("--calls", type=int, default=20, help="timed calls of the kernels (default 20)")
    parser.add_argument("--threads", type=int, default=1, help="threads of the kernels (default 1)")
    parser.add_argument("--without-reference", action="store_true", help="omit the slow numpy column")
    arguments = parser.parse_args()
    for vocab_size in VOCAB_SIZES:
        shape = (arguments.rows, vocab_size)
        logits = (np.random.default_rng(0).standard_normal(shape) * 3).astype(np.float32)
        start = time.perf_counter()
        kernels, reference = Sampler(vocab_size, num_threads=arguments.threads), ReferenceSampler(vocab_size)
        load_seconds = time.perf_counter() - start
        print(f"\nvocabulary {vocab_size:,}, {arguments.rows} rows (kernels loaded in {load_seconds:.2f} s)")
        print(f"{'us per row':42}{'kernels':>10}{'numpy':>12}{'ratio':>8}")
        masked = {f"{name}, top_p 0.95": MASKED for name in MASKS}
        for name, params in {**CASES, **masked, "score, top 5": None}.items():
            allowed = MASKS.get(name.removesuffix(", top_p 0.95"))
            figures = [
                score_us_per_row(sampler, rows, calls)
                if params is None
                else sample_us_per_row(sampler, rows, params, calls, allowed)
                for sampler, rows, calls in ((kernels, logits, arguments.calls), (reference, logits[:2], 2))
                if sampler is kernels or not arguments.without_reference
            ]
            columns = f"{figures[0]:10.1f}"
            if len(figures) > 1:
                columns += f"{figures[1]:12.0f}{figures[1] / figures[0]:8.0f}"
            print(f"{name:42}{columns}")


if __name__ == "__main__":
    measure.run_main(main)
