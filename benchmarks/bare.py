"""The baseline: the engine's compiled graph (of two, the one for all threads) in a bare loop, without scheduler,
sampling or text.

Prompts of the same length are prefilled in the largest chunks, then all rows decode in lockstep with a constant token.
Inputs are written in place, outputs are views. `python -m benchmarks.bare --model storyteller --rows 1 8 32`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure
from benchmarks.interleave import Stepwise, run_to_end
from benchmarks.models import load
from onward.runtimes.openvino.graph import ROWS_INPUT
from onward.runtimes.openvino.kv_cache import KVCache, cache_layers
from onward.runtimes.openvino.library import ov
from onward.runtimes.openvino.model import OpenVINOModel
from onward.runtimes.openvino.step_shape import BLOCK_TOKENS, STEP_SHAPE

CHUNK = STEP_SHAPE.max_prefill_tokens

TOKEN = 300
"""The input of every decode step."""
PADDING_TOKENS = 2


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
    """An infer request of its own on a compiled graph, with its own KV cache. Single-threaded."""

    def __init__(self, compiled: ov.CompiledModel, max_rows: int, max_tokens: int) -> None:
        """Allocate a cache for `max_rows` sequences of `max_tokens` tokens each, prompt and output together."""
        self._request = compiled.create_infer_request()
        self._names = {port.get_any_name() for port in compiled.inputs}
        self._table_blocks = STEP_SHAPE.blocks_for(max_tokens)
        self._cache = KVCache(cache_layers(compiled), max_rows * self._table_blocks)
        self._cache.bind(self._request)
        self._bound: dict[str, NDArray[Any]] = {}

    def run(self, prompts: list[list[int]], out: int, *, padded: bool = False) -> BareRun:
        """Prefill prompts of one length, then decode `out` tokens of each, the first from the prompts' own logits.

        `padded` adds a row of two tokens to the decode steps: about what the engine adds for a request with a seed to
        steps with fewer rows than threads (one token on two threads), so that a row's bits do not depend on its
        neighbours.
        """
        return run_to_end(self.run_stepwise(prompts, out, padded=padded))

    def run_stepwise(self, prompts: list[list[int]], out: int, *, padded: bool = False) -> Stepwise[BareRun]:
        """Do the same as `run`, pausing after each step. Steps of two runs must not be mixed."""
        prefill = 0.0
        for group, first in _groups(prompts):
            for seconds in self._prefill(group, first):
                prefill += seconds
                yield
        steps: list[float] = []
        for seconds in self._decode(len(prompts), len(prompts[0]), out - 1, padded):
            steps.append(seconds)
            yield
        return BareRun(len(prompts), prefill, steps)

    def _prefill(self, group: list[list[int]], first: int) -> Iterator[float]:
        """Prefill whole prompts in one step, or a long one in chunks; yield the seconds of each step.

        The last step computes logits for the last token of each prompt.
        """
        length = len(group[0])
        for start in range(0, length, CHUNK):
            begin = time.perf_counter()
            count = min(CHUNK, length - start)
            last = start + count == length
            tokens = np.array([prompt[start : start + count] for prompt in group], np.int64).ravel()
            self._bind("input_ids", tokens)
            self._bind("position_ids", np.tile(np.arange(start, start + count), len(group)))
            self._bind("past_lens", np.full(len(group), start, np.int32))
            self._bind("subsequence_begins", np.arange(len(group) + 1, dtype=np.int32) * count)
            self._bind_tables(range(first, first + len(group)), start + count, padded=False)
            ends = np.arange(1, len(group) + 1, dtype=np.int32) * count - 1
            self._bind(ROWS_INPUT, np.repeat(ends, 2 if len(group) == 1 else 1) if last else ends[:0])
            self._request.infer(share_outputs=True)
            yield time.perf_counter() - begin

    def _decode(self, rows: int, start: int, count: int, padded: bool) -> Iterator[float]:
        """Run `count` decode steps of `rows` rows, the first at position `start`; yield the seconds of each."""
        extra = PADDING_TOKENS if padded else 0
        sequences = rows + padded
        self._bind("input_ids", np.full(rows + extra, TOKEN, np.int64))
        positions = self._bind("position_ids", np.full(rows + extra, start, np.int64))
        past = self._bind("past_lens", np.full(sequences, start, np.int32))
        begins = np.arange(sequences + 1, dtype=np.int32)
        if padded:
            past[rows:], positions[rows:], begins[-1] = 0, range(extra), rows + extra
        self._bind("subsequence_begins", begins)
        self._bind(ROWS_INPUT, np.arange(rows, dtype=np.int32) if rows > 1 else np.zeros(1 + padded, np.int32))
        for step in range(count):
            begin = time.perf_counter()
            if step == 0 or (start + step) % BLOCK_TOKENS == 0:
                longest = self._bind_tables(range(rows), start + step + 1, padded=padded)
            self._request.infer(share_outputs=True)
            positions[:rows] += 1
            past[:rows] += 1
            longest += 1
            yield time.perf_counter() - begin

    def _bind_tables(self, sequences: range, context: int, *, padded: bool) -> NDArray[Any]:
        """Bind block tables for contexts of `context` tokens; return the array that holds the longest context."""
        needed = STEP_SHAPE.blocks_for(context)
        firsts = np.arange(sequences.start, sequences.stop)[:, None] * self._table_blocks
        table = (firsts + np.arange(needed)).ravel()
        begins = np.arange(len(sequences) + 1) * needed
        if padded:
            table, begins = np.append(table, self._cache.scratch), np.append(begins, begins[-1] + 1)
        self._bind("block_indices", table.astype(np.int32))
        self._bind("block_indices_begins", begins.astype(np.int32))
        return self._bind("max_context_len", np.array(context, np.int32))

    def _bind(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Bind `values` to an input, read in place from now on; do nothing if the graph has no such input."""
        if name in self._names:
            self._bound[name] = values
            self._request.set_tensor(name, ov.Tensor(values, shared_memory=True))
        return values


def _groups(prompts: list[list[int]]) -> Iterator[tuple[list[list[int]], int]]:
    """Yield groups of prompts that fit one step of CHUNK tokens, each with the index of its first prompt."""
    size = max(1, CHUNK // len(prompts[0]))
    for first in range(0, len(prompts), size):
        yield prompts[first : first + size], first


def random_prompts(vocab_size: int, count: int, length: int, seed: int) -> list[list[int]]:
    """Return prompts that no cache has seen, unless `seed` was used before."""
    generator = np.random.default_rng(seed)
    ids: list[list[int]] = generator.integers(min(256, vocab_size - 1), vocab_size, (count, length)).tolist()
    return ids


def compiled_graph(model: OpenVINOModel) -> ov.CompiledModel:
    """Return the graph that `model` runs on all its threads. Accesses private members: no other code needs it."""
    evaluator, *_ = model._open()
    return evaluator.lane.request.get_compiled_model()


def figures_of(loop: BareLoop, model: OpenVINOModel, rows: int, options: argparse.Namespace) -> dict[str, Any]:
    runs = []
    for round_number in range(options.rounds + 1):
        prompts = random_prompts(model.vocab_size, rows, options.prompt, 1000 * rows + round_number)
        runs.append(loop.run(prompts, options.out, padded=options.padded))
    runs = runs[1:]
    return {
        "output_tok_s": measure.median_of([run.output_tokens / run.seconds for run in runs]),
        "decode_tok_s": measure.median_of([rows / run.step_ms * 1e3 for run in runs]),
        "prefill_tok_s": measure.median_of([rows * options.prompt / run.prefill for run in runs]),
        "step_ms": measure.median_of([run.step_ms for run in runs]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare", description=__doc__)
    parser.add_argument("--model", default="storyteller")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--out", type=int, default=64, help="tokens per row, at least 2 (default 64)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, after a warm-up round (default 5)")
    parser.add_argument("--padded", action="store_true", help="decode with the engine's padding row")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    at_start = measure.start()
    model, _ = load(options.model)
    loop = BareLoop(compiled_graph(model), max(options.rows), options.prompt + options.out)
    figures = {str(rows): figures_of(loop, model, rows, options) for rows in options.rows}
    for rows, found in figures.items():
        print(
            f"{rows:>4} rows: {found['output_tok_s']['median']:9.1f} output tok/s · "
            f"decode {found['decode_tok_s']['median']:9.1f} tok/s ({found['step_ms']['median']:.2f} ms per step) · "
            f"prefill {found['prefill_tok_s']['median']:9.1f} tok/s"
        )
    measure.write_report(options.json, "bare", figures, at_start)
    return 0


if __name__ == "__main__":
    measure.run_main(main)
