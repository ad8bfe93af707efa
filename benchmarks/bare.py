"""The baseline: a model's steps in a bare loop, without scheduler, sampling or text.

Prompts of the same length are prefilled in the largest chunks, then all rows decode in lockstep with a constant token.
`python -m benchmarks.bare --model storyteller --rows 1 8 32`; with `--steps`, the milliseconds of single steps by their
number of tokens, which `benchmarks.simulate` has in a table.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.interleave import Stepwise, run_to_end
from benchmarks.measure import BenchmarkError
from benchmarks.models import load
from onward.engine.model import ModelRunner, Row

TOKEN = 300
"""The input of every decode step."""
STEPS = (1, 2, 4, 8, 16, 24, 32, 33, 48, 64, 96, 128, 192, 256, 384, 512)
MAX_DECODE_ROWS = 64
STEP_CONTEXT = 100
"""Tokens of each sequence before a single step."""


@dataclass(frozen=True, slots=True)
class BareRun:
    """Seconds of one run: the prefill of all prompts, and each decode step of `rows` tokens."""

    rows: int
    prefill: float
    steps: list[float]

    @property
    def seconds(self) -> float:
        return self.prefill + sum(self.steps)

    @property
    def output_tokens(self) -> int:
        """The first token of each row comes from the last logits of its prompt."""
        return self.rows * (len(self.steps) + 1)

    @property
    def step_ms(self) -> float:
        """Median of the decode steps."""
        return statistics.median(self.steps) * 1e3 if self.steps else 0.0


class BareLoop:
    """A model's steps without an engine, each sequence in blocks of its own. Single-threaded."""

    def __init__(self, model: ModelRunner, max_tokens: int) -> None:
        """`max_tokens`: of a sequence, prompt and output together."""
        self._model = model
        self._table_blocks = model.shape.blocks_for(max_tokens)

    def run(self, prompts: list[list[int]], out: int) -> BareRun:
        """Prefill prompts of one length, then decode `out` tokens of each, the first from the prompts' own logits."""
        return run_to_end(self.run_stepwise(prompts, out))

    def run_stepwise(self, prompts: list[list[int]], out: int) -> Stepwise[BareRun]:
        """Do the same as `run`, pausing after each step. Steps of two runs must not be mixed."""
        if len(prompts) * self._table_blocks > self._model.blocks:
            raise BenchmarkError(f"the KV cache has {self._model.blocks} blocks, too few for {len(prompts)} sequences")
        prefill = 0.0
        for seconds in self._prefill(prompts):
            prefill += seconds
            yield
        steps: list[float] = []
        for position in range(len(prompts[0]), len(prompts[0]) + out - 1):
            steps.append(self._step([self._row(each, [TOKEN], position, 1) for each in range(len(prompts))]))
            yield
        return BareRun(len(prompts), prefill, steps)

    def _prefill(self, prompts: list[list[int]]) -> Iterator[float]:
        """Prefill as many whole prompts per step as fit, or a long one in chunks; yield the seconds of each step."""
        most, length = self._model.shape.max_prefill_tokens, len(prompts[0])
        size = max(1, most // length)
        for first in range(0, len(prompts), size):
            group = range(first, min(first + size, len(prompts)))
            for start in range(0, length, most):
                end = min(start + most, length)
                outputs = int(end == length)
                yield self._step([self._row(each, prompts[each][start:end], start, outputs) for each in group])

    def fill(self, sequences: int, length: int) -> None:
        """Prefill prompts of one length, for the steps that follow."""
        for _ in self._prefill([[TOKEN] * length] * sequences):
            pass

    def single_step(self, num_tokens: int, start: int, *, outputs: int = 0) -> float:
        """Return the seconds of a step with this many tokens: up to MAX_DECODE_ROWS, one token of each sequence at
        `start`; above that, one prompt. `outputs`: rows of logits per sequence."""
        if num_tokens <= MAX_DECODE_ROWS:
            return self._step([self._row(each, [TOKEN], start, outputs) for each in range(num_tokens)])
        return self._step([self._row(0, [TOKEN] * num_tokens, 0, outputs)])

    def _step(self, rows: list[Row]) -> float:
        begin = time.perf_counter()
        self._model.evaluate(rows)
        return time.perf_counter() - begin

    def _row(self, sequence: int, tokens: list[int], start: int, outputs: int) -> Row:
        first = sequence * self._table_blocks
        table, state = range(first, first + self._table_blocks), self._model.shape.states - 1 - sequence
        return Row(sequence, tokens, start, table, outputs, state=state)  # an engine takes the first states


def random_prompts(vocab_size: int, count: int, length: int, seed: int) -> list[list[int]]:
    """Return prompts that no cache has seen, unless `seed` was used before."""
    generator = np.random.default_rng(seed)
    ids: list[list[int]] = generator.integers(min(256, vocab_size - 1), vocab_size, (count, length)).tolist()
    return ids


def figures_of(loop: BareLoop, model: ModelRunner, rows: int, options: argparse.Namespace) -> dict[str, Any]:
    runs = []
    for round_number in range(options.rounds + 1):
        prompts = random_prompts(model.vocab_size, rows, options.prompt, 1000 * rows + round_number)
        runs.append(loop.run(prompts, options.out))
    runs = runs[1:]
    return {
        "output_tok_s": measure.median_of([run.output_tokens / run.seconds for run in runs]),
        "decode_tok_s": measure.median_of([rows / run.step_ms * 1e3 for run in runs]),
        "prefill_tok_s": measure.median_of([rows * options.prompt / run.prefill for run in runs]),
        "step_ms": measure.median_of([run.step_ms for run in runs]),
    }


def step_figures(model: ModelRunner, sizes: list[int], rounds: int) -> dict[str, Any]:
    """Return milliseconds of steps by their number of tokens, and of a row of logits: medians of rounds, each of which
    measures all of them."""
    loop = BareLoop(model, max(*sizes, STEP_CONTEXT + 1))
    loop.fill(MAX_DECODE_ROWS, STEP_CONTEXT)
    seconds: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for size in sizes if number % 2 else reversed(sizes):
            seconds.setdefault(str(size), []).append(loop.single_step(size, STEP_CONTEXT))
        with_logits, without = (loop.single_step(32, STEP_CONTEXT, outputs=count) for count in (1, 0))
        seconds.setdefault("row of logits", []).append(max(0.0, with_logits - without) / 32)
    return {name: measure.median_of([each * 1e3 for each in found[1:]]) for name, found in seconds.items()}


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("bare", __doc__)
    parser.add_argument("--model", default="storyteller")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--out", type=int, default=64, help="tokens per row, at least 2 (default 64)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, after a warm-up round (default 5)")
    parser.add_argument(
        "--steps", type=int, nargs="*", metavar="TOKENS", help="measure single steps of so many tokens instead"
    )
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    model, _ = load(options.model)
    if options.steps is not None:
        found = step_figures(model, options.steps or list(STEPS), options.rounds)
        for name, each in sorted(found.items(), key=lambda pair: int(pair[0]) if pair[0].isdigit() else 0):
            print(f"{name:>13}: {each['median']:8.3f} ms ({each['least']:.3f} to {each['greatest']:.3f})")
        report(found)
        return
    loop = BareLoop(model, options.prompt + options.out)
    figures = {str(rows): figures_of(loop, model, rows, options) for rows in options.rows}
    for rows, found in figures.items():
        print(
            f"{rows:>4} rows: {found['output_tok_s']['median']:9.1f} output tok/s · "
            f"decode {found['decode_tok_s']['median']:9.1f} tok/s ({found['step_ms']['median']:.2f} ms per step) · "
            f"prefill {found['prefill_tok_s']['median']:9.1f} tok/s"
        )
    report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
