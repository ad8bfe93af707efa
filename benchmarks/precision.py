"""What `--precision` and `--weights` cost and save: distance from exact log-probabilities, accuracy, speed, size.

`python -m benchmarks.precision FILE.gguf…` prints a table per model. Log-probabilities of the tokens of prose, code and
passages of `data/`, in pieces of 512, are compared with those that `--precision exact` computes in float32 from the
file's own weights. Speed is the engine's graph alone: decode steps of 1, 8 and 32 sequences behind 128 tokens, and the
prefill of 512. All variants of a model are loaded at once and take turns, so that their ratios hold on a machine whose
speed drifts; a model needs about ten times its file's size of memory.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import CLOZE, DATA, Pair, Scored, Scorer, cloze_hits, encoded, read_items
from benchmarks.measure import run_main, warn_if_busy
from benchmarks.models import find_model
from onward.engine.model import ModelRunner, Row, Tokenizer
from onward.errors import SetupError
from onward.runtimes.base import LoadedModel
from onward.runtimes.options import RuntimeOptions
from onward.runtimes.table import load_model
from onward.values import Precision, WeightForm

PIECE = 512
"""Tokens whose log-probabilities are computed together."""
CONTEXT = 128
"""Tokens in front of the decode steps that are timed."""
ROWS = (1, 8, 32)
KV_MEMORY = 600_000_000


@dataclass(slots=True)
class Variant:
    """One way to load a model, and what was measured of it. Times are seconds of single steps."""

    precision: Precision
    weights: WeightForm
    logprobs: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    accuracy: float = 0.0
    decode: dict[int, list[float]] = field(default_factory=lambda: {rows: [] for rows in ROWS})
    prefill: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.precision if self.precision == "exact" else f"fast, {self.weights}"


def variants() -> list[Variant]:
    """Return all variants, the exact one first."""
    forms: tuple[WeightForm, ...] = ("auto", "exact", "int8", "int4")
    return [Variant("exact", "auto"), *(Variant("fast", form) for form in forms)]


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return log-probabilities [tokens, vocabulary] of logits of the same shape."""
    shifted = np.asarray(logits, np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def last_logprobs(model: ModelRunner, tokens: Sequence[int], count: int) -> NDArray[np.float64]:
    """Return log-probabilities [count, vocabulary] of what may follow each of the last tokens of one prompt."""
    blocks = range(model.shape.blocks_for(len(tokens)))
    return log_softmax(model.evaluate([Row(0, tokens, 0, blocks, count)]))


def token_logprobs(model: ModelRunner, pieces: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Return the log-probability of each token but the first of each piece."""
    found = [last_logprobs(model, piece, len(piece))[np.arange(len(piece) - 1), piece[1:]] for piece in pieces]
    return np.concatenate(found)


def pieces_of_text(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Return about `count` tokens of prose, code and passages in pieces, each with the start token that is needed."""
    texts = [path.read_text(encoding="utf-8") for path in (DATA / "prose.txt", DATA / "before.py.txt")]
    texts += [f"{item['context']} {item['continuation']}" for item in read_items(CLOZE)]
    start = tokenizer.encode("", add_special_tokens=True)
    tokens = tokenizer.encode("\n\n".join(texts), add_special_tokens=False)[:count]
    step = PIECE - len(start)
    return [[*start, *tokens[begin : begin + step]] for begin in range(0, len(tokens), step)]


def model_scorer(model: ModelRunner, tokenizer: Tokenizer) -> Scorer:
    """Return what scores continuations by the model alone."""

    def score(pairs: Sequence[Pair]) -> list[Scored]:
        return [_scored(model, *encoded(tokenizer.encode, pair)) for pair in pairs]

    return score


def _scored(model: ModelRunner, tokens: list[int], count: int) -> Scored:
    behind = last_logprobs(model, tokens[:-1], count)
    own = behind[np.arange(count), tokens[-count:]]
    return Scored(float(own.sum()), bool((own >= behind.max(axis=1)).all()))


def prepare(model: ModelRunner, per_sequence: int) -> None:
    """Prefill the sequences that are decoded later, `per_sequence` blocks each, and compile all kernels."""
    prompt = list(range(300, 300 + CONTEXT))
    for row in range(max(ROWS)):
        model.evaluate([Row(row, prompt, 0, range(row * per_sequence, (row + 1) * per_sequence), 1)])
    for rows in ROWS:
        decode_seconds(model, rows, per_sequence, 300)
    prefill_seconds(model)


def decode_seconds(model: ModelRunner, rows: int, per_sequence: int, token: int) -> float:
    """Return the seconds of a step that decodes one token of each of `rows` sequences."""
    batch = [Row(row, [token], CONTEXT, range(row * per_sequence, (row + 1) * per_sequence), 1) for row in range(rows)]
    begin = time.perf_counter()
    model.evaluate(batch)
    return time.perf_counter() - begin


def prefill_seconds(model: ModelRunner) -> float:
    """Return the seconds of a step that prefills a prompt. Overwrites nothing that decode steps read."""
    first = max(ROWS) * model.shape.blocks_for(CONTEXT + 1)
    tokens = list(range(400, 400 + PIECE))
    begin = time.perf_counter()
    model.evaluate([Row(0, tokens, 0, range(first, first + model.shape.blocks_for(PIECE)), 1)])
    return time.perf_counter() - begin


def time_in_turns(models: Sequence[tuple[Variant, ModelRunner]], rounds: int) -> None:
    """Time decode and prefill steps of all models in turns."""
    per_sequence = models[0][1].shape.blocks_for(CONTEXT + 1)
    for _, model in models:
        prepare(model, per_sequence)
    for number in range(rounds):
        for rows in ROWS:
            for variant, model in models:
                variant.decode[rows].append(decode_seconds(model, rows, per_sequence, 301 + number))
        for variant, model in models if number % 4 == 0 else ():
            variant.prefill.append(prefill_seconds(model))


def measure(name: str, count: int, rounds: int, passages: Path, num_passages: int | None) -> list[Variant]:
    """Load a model in all variants, and measure them."""
    found = find_model(name)
    tokenizer = found.files.load_tokenizer()
    pieces, items = pieces_of_text(tokenizer, count), read_items(passages, num_passages)
    loaded: list[tuple[Variant, LoadedModel]] = []
    for variant in variants():
        options = RuntimeOptions(precision=variant.precision, weights=variant.weights, kv_memory=KV_MEMORY)
        try:
            each = load_model(found.files, options, lambda line: None)
        except SetupError as problem:  # weights that are quantised already are held in no other form
            print(f"{variant.name} is left out: {problem}", file=sys.stderr)
            continue
        variant.logprobs = token_logprobs(each.model, pieces)
        variant.accuracy = statistics.fmean(cloze_hits(items, model_scorer(each.model, tokenizer)))
        loaded.append((variant, each))
    time_in_turns([(variant, each.model) for variant, each in loaded], rounds)
    for _, each in loaded:
        each.model.close()
    return [variant for variant, _ in loaded]


def table(measured: Sequence[Variant]) -> str:
    """Return a Markdown table. Speed is a ratio to the first of the `fast` variants; that one has tokens per second."""
    base = next(variant for variant in measured if variant.precision == "fast")
    exact = measured[0].logprobs
    lines = [
        "| precision, weights | mean difference | 95 % | greatest | of the mean | passages "
        "| decode 1 / 8 / 32 | prefill |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for variant in measured:
        difference = variant.logprobs - exact
        size = np.abs(difference)
        mean, high, greatest = size.mean(), np.quantile(size, 0.95), size.max()
        decode = [_speed(variant.decode[rows], base.decode[rows], rows, variant is base) for rows in ROWS]
        lines.append(
            f"| {variant.name} | {mean:.4f} | {high:.3f} | {greatest:.2f} "
            f"| {difference.mean():+.4f} | {variant.accuracy:.0%} | {' / '.join(decode)} "
            f"| {_speed(variant.prefill, base.prefill, PIECE, variant is base)} |"
        )
    return "\n".join(lines)


def _speed(times: Sequence[float], base: Sequence[float], num_tokens: int, is_base: bool) -> str:
    seconds = statistics.median(times)
    return f"{num_tokens / seconds:,.0f} tok/s" if is_base else f"{statistics.median(base) / seconds:.2f}×"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a name of the catalogue that was pulled, or a file")
    parser.add_argument("--tokens", type=int, default=2000, help="tokens whose probabilities are compared")
    parser.add_argument("--rounds", type=int, default=24, help="timed steps of each size (default 24)")
    parser.add_argument("--passages", type=Path, default=CLOZE, help="passages in the format of LAMBADA")
    parser.add_argument("--num-passages", type=int, help="how many of them (default: all)")
    arguments = parser.parse_args()
    warn_if_busy()
    for name in arguments.models:
        print(f"\n{name}, {arguments.tokens:,} tokens\n")
        print(table(measure(name, arguments.tokens, arguments.rounds, arguments.passages, arguments.num_passages)))
    return 0


if __name__ == "__main__":
    run_main(main)
