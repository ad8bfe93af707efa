"""What `--precision` and `--weights` cost and save: distance from exact log-probabilities, accuracy, speed, size.

`python -m benchmarks.precision FILE.gguf…` prints a table per model. Log-probabilities of the tokens of prose, code and
passages of `data/`, in pieces of 512, are compared with those that `--precision exact` computes in float32 from the
file's own weights. With `--peer`, llama-server computes them too: from the same file and token ids, with its own
defaults; with `--ir`, OpenVINO in float32, from an IR folder of the same model. Speed is the engine's graph alone:
decode steps of 1, 8 and 32 sequences after 128 tokens, and the prefill of 512. All variants of a model are loaded at
once and take turns, so that their ratios hold on a machine whose speed drifts; each needs memory for its weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import CLOZE, DATA, Pair, Scored, Scorer, cloze_hits, encoded, read_items
from benchmarks.families import OTHER_RULE, STORYTELLER
from benchmarks.llama_server import Slots, serve_peer
from benchmarks.measure import run_main, warn_if_busy
from benchmarks.models import find_model
from benchmarks.peer_build import SERVER, find
from onward.engine.model import ModelRunner, Row, Tokenizer
from onward.errors import SetupError
from onward.runtimes.base import LoadedModel, RuntimeOptions
from onward.runtimes.table import load_model
from onward.values import Precision, WeightForm

PIECE = 512
"""Tokens whose log-probabilities are computed together."""
CONTEXT = 128
"""Tokens in front of the decode steps that are timed."""
ROWS = (1, 8, 32)
FORMS: tuple[WeightForm, ...] = ("auto", "exact", "int8", "int4")
KV_MEMORY = 600_000_000
FORCED = 1e6
"""Added to a logit for sampling alone: llama-server states what it samples by the logits from before that."""


@dataclass(slots=True)
class Variant:
    """One way to load a model, and what was measured of it. Times are seconds of single steps."""

    precision: Precision
    weights: WeightForm
    folder: str = ""
    """Of the same model in another format, if not the model's own files are to be loaded."""
    logprobs: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    accuracy: float = 0.0
    decode: dict[int, list[float]] = field(default_factory=lambda: {rows: [] for rows in ROWS})
    prefill: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        if self.precision == "exact":
            return "exact" + (", OpenVINO" if self.folder else "")
        return f"fast, {self.weights}"


def variants(forms: Sequence[WeightForm], folders: Sequence[str]) -> list[Variant]:
    """Return the exact variant, `fast` with these forms of weights, and the folders, exactly."""
    fast = [Variant("fast", form) for form in forms]
    return [Variant("exact", "auto"), *fast, *(Variant("exact", "auto", folder) for folder in folders)]


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


def peer_logprobs(program: Path, file: Path, pieces: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Return what `token_logprobs` does, by llama-server: a request per token, after what its cache has. NaN for a
    token that ends inside a character, which it does not state. Raises PeerError if it does not start."""
    slots = Slots(1, PIECE + 1, threads=1, caching=True)
    with serve_peer(program, file, slots, OTHER_RULE if file == STORYTELLER else ()) as server:
        url = server.url.removesuffix("/v1") + "/completion"
        found = [_peer_logprob(url, piece[:end], piece[end]) for piece in pieces for end in range(1, len(piece))]
    return np.array(found)


def _peer_logprob(url: str, prompt: Sequence[int], token: int) -> float:
    """Return the log-probability of a token after a prompt."""
    body = {
        "prompt": prompt, "n_predict": 1, "cache_prompt": True, "n_probs": 1, "logit_bias": [[token, FORCED]],
    }  # fmt: skip
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        stated = json.load(response).get("completion_probabilities")
    if not stated:
        return np.nan
    assert stated[0]["id"] == token, "the bias did not force the token"
    return float(stated[0]["logprob"])


def model_scorer(model: ModelRunner, tokenizer: Tokenizer) -> Scorer:
    """Return a function that scores continuations by the model alone."""

    def score(pairs: Sequence[Pair]) -> list[Scored]:
        return [_scored(model, *encoded(tokenizer.encode, pair)) for pair in pairs]

    return score


def _scored(model: ModelRunner, tokens: list[int], count: int) -> Scored:
    after = last_logprobs(model, tokens[:-1], count)
    own = after[np.arange(count), tokens[-count:]]
    return Scored(float(own.sum()), bool((own >= after.max(axis=1)).all()))


def prepare(model: ModelRunner) -> None:
    """Prefill the sequences that are decoded later, and compile all kernels."""
    for row in range(max(ROWS)):
        model.evaluate([_row(model, row, range(300, 300 + CONTEXT), 0)])
    for rows in ROWS:
        decode_seconds(model, rows, 300)
    prefill_seconds(model)


def _row(model: ModelRunner, row: int, tokens: Sequence[int], start: int) -> Row:
    """Return the tokens of one of the sequences that are decoded."""
    blocks = model.shape.blocks_for(CONTEXT + 1)
    return Row(row, list(tokens), start, range(row * blocks, (row + 1) * blocks), 1, state=row)


def decode_seconds(model: ModelRunner, rows: int, token: int) -> float:
    """Return the seconds of a step that decodes one token of each of `rows` sequences."""
    batch = [_row(model, row, [token], CONTEXT) for row in range(rows)]
    begin = time.perf_counter()
    model.evaluate(batch)
    return time.perf_counter() - begin


def prefill_seconds(model: ModelRunner) -> float:
    """Return the seconds of a step that prefills a prompt. Overwrites nothing that decode steps read."""
    first = max(ROWS) * model.shape.blocks_for(CONTEXT + 1)
    tokens = list(range(400, 400 + PIECE))
    begin = time.perf_counter()
    model.evaluate([Row(0, tokens, 0, range(first, first + model.shape.blocks_for(PIECE)), 1, state=max(ROWS))])
    return time.perf_counter() - begin


def time_in_turns(models: Sequence[tuple[Variant, ModelRunner]], rounds: int) -> None:
    """Time decode and prefill steps of all models in turns."""
    for _, model in models:
        prepare(model)
    for number in range(rounds):
        for rows in ROWS:
            for variant, model in models:
                variant.decode[rows].append(decode_seconds(model, rows, 301 + number))
        for variant, model in models if number % 4 == 0 else ():
            variant.prefill.append(prefill_seconds(model))


def measure(name: str, options: argparse.Namespace) -> str:
    """Load a model in all variants, and measure them. Returns a table."""
    found = find_model(name)
    tokenizer = found.files.load_tokenizer()
    pieces = pieces_of_text(tokenizer, options.tokens)
    items = read_items(options.passages, options.num_passages)
    loaded: list[tuple[Variant, LoadedModel]] = []
    for variant in variants(options.weights, options.ir):
        files = find_model(variant.folder).files if variant.folder else found.files
        how = RuntimeOptions(precision=variant.precision, weights=variant.weights, kv_memory=KV_MEMORY)
        try:
            each = load_model(files, how, lambda line: None)
        except SetupError as problem:  # weights that are quantised already are held in no other form
            print(f"{variant.name} is left out: {problem}", file=sys.stderr)
            continue
        variant.logprobs = token_logprobs(each.model, pieces)
        variant.accuracy = statistics.fmean(cloze_hits(items, model_scorer(each.model, tokenizer)))
        loaded.append((variant, each))
    if options.rounds:
        time_in_turns([(variant, each.model) for variant, each in loaded], options.rounds)
    for _, each in loaded:
        each.model.close()
    peer = peer_logprobs(find(SERVER, options.llama_server), found.files.paths()[0], pieces) if options.peer else None
    return table([variant for variant, _ in loaded], peer)


def table(measured: Sequence[Variant], peer: NDArray[np.float64] | None) -> str:
    """Return a Markdown table. Speed is a ratio to the first of the `fast` variants; that one has tokens per second.
    `peer`: log-probabilities by llama-server."""
    base = next(variant for variant in measured if variant.precision == "fast")
    exact = measured[0].logprobs
    lines = [
        "| precision, weights | mean difference | 95 % | greatest | of the mean | passages "
        "| decode 1 / 8 / 32 | prefill |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for variant in measured:
        decode = [_speed(variant.decode[rows], base.decode[rows], rows, variant is base) for rows in ROWS]
        prefill = _speed(variant.prefill, base.prefill, PIECE, variant is base)
        cells = f"{variant.accuracy:.1%} | {' / '.join(decode)} | {prefill}"
        lines.append(f"| {variant.name} | {_distance(variant.logprobs - exact)} | {cells} |")
    if peer is not None:
        lines.append(f"| llama-server | {_distance((peer - exact)[~np.isnan(peer)])} | | | |")
    return "\n".join(lines)


def _distance(difference: NDArray[np.float64]) -> str:
    """Return four cells."""
    size = np.abs(difference)
    return f"{size.mean():.4f} | {np.quantile(size, 0.95):.3f} | {size.max():.2f} | {difference.mean():+.4f}"


def _speed(times: Sequence[float], base: Sequence[float], num_tokens: int, is_base: bool) -> str:
    if not times:
        return "–"
    seconds = statistics.median(times)
    return f"{num_tokens / seconds:,.0f} tok/s" if is_base else f"{statistics.median(base) / seconds:.2f}×"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a name of the catalogue that was pulled, or a file")
    parser.add_argument("--tokens", type=int, default=2000, help="tokens whose probabilities are compared")
    parser.add_argument("--rounds", type=int, default=24, help="timed steps of each size; 0: none (default 24)")
    parser.add_argument("--passages", type=Path, default=CLOZE, help="passages in the format of LAMBADA")
    parser.add_argument("--num-passages", type=int, help="how many of them (default: all)")
    parser.add_argument("--weights", nargs="+", default=list(FORMS), choices=FORMS, help="of `fast` (default: all)")
    parser.add_argument("--ir", nargs="*", default=[], metavar="FOLDER", help="the same model as OpenVINO IR")
    parser.add_argument("--peer", action="store_true", help="also llama-server, for GGUF files")
    parser.add_argument("--llama-server", type=Path, help="default: the one on PATH, else built into .peers")
    options = parser.parse_args()
    warn_if_busy()
    for name in options.models:
        print(f"\n{name}, {options.tokens:,} tokens\n")
        print(measure(name, options), flush=True)


if __name__ == "__main__":
    run_main(main)
