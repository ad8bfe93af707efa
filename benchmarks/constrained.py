"""Cost and gain of constrained output: one engine, in alternating rounds, with jobs of each kind.

`free` is text without a constraint, `masked` the same beside a grammar that allows nearly everything, so that only its
masks cost, and `json` text by a schema, whose forced parts are drafted. Tokens per second as ratios to `free`, and the
microseconds that a mask and a taken token take by themselves. `python -m benchmarks.constrained --clients 1 8 32`.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.models import load
from onward.constraints.grammar import json_schema_grammar, regex_grammar
from onward.constraints.matcher import MaskBuffer, TokenTrie
from onward.constraints.tokens import LibraryTokens
from onward.engine.events import Decoded
from onward.engine.job import Job
from onward.engine.model import Model, Tokenizer
from onward.engine.step import Engine
from onward.runtimes.tokenizer import HuggingFaceTokenizer
from onward.sampling.masks import pack_mask, unpack_mask
from onward.sampling.params import SamplingParams
from onward.sampling.sampler import Sampler
from onward.text.assembler import TextRules

SCHEMA = {
    "type": "object",
    "properties": {
        "identifier": {"type": "integer", "minimum": 0, "maximum": 99999},
        "description": {"type": "string", "maxLength": 24},
        "availability": {"enum": ["in stock", "on order", "discontinued"]},
        "dimensions": {
            "type": "object",
            "properties": {name: {"type": "number"} for name in ("width", "height", "depth")},
            "required": ["width", "height", "depth"],
            "additionalProperties": False,
        },
        "categories": {"type": "array", "items": {"enum": ["kitchen", "garden", "office"]}, "maxItems": 3},
    },
    "required": ["identifier", "description", "availability", "dimensions", "categories"],
    "additionalProperties": False,
}
GRAMMARS = {"free": "", "masked": regex_grammar(r"(.|\n)+"), "json": json_schema_grammar(SCHEMA, whitespace=None)}
PROMPT_TOKENS = 32


class Arms:
    """One engine, for jobs of every kind: it has measured what steps cost, as in a server."""

    def __init__(self, model: Model, vocabulary: Tokenizer) -> None:
        sampler = Sampler(model.vocab_size)
        self.engine = Engine(model, vocabulary, sampler, share_prefixes=False, load_tokenizer=lambda: vocabulary)
        self._vocab_size = min(model.vocab_size, vocabulary.size)
        self._ids = itertools.count()

    def run(self, kind: str, clients: int, tokens: int, out: int) -> float:
        """Generate about so many tokens in completions of at most `out`; return tokens per second of all steps."""
        for _ in range(clients):
            self._submit(kind, out)
        generated, begin = 0, time.perf_counter()
        while generated < tokens:
            for event in self.engine.step():
                if isinstance(event, Decoded):
                    generated += len(event.tokens)
                    if event.finish_reason and generated < tokens:
                        self._submit(kind, out)
        seconds = time.perf_counter() - begin
        for sequence in list(self.engine.scheduler.sequences()):
            self.engine.cancel(sequence.job.request)
        return generated / seconds

    def _submit(self, kind: str, out: int) -> None:
        number = next(self._ids)
        prompt = tuple(random.Random(number).choices(range(256, self._vocab_size), k=PROMPT_TOKENS))
        sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=number)
        ends = frozenset[int]()
        job = Job(number, number, prompt, 1, out, sampling, TextRules(), ends, grammar=GRAMMARS[kind])
        self.engine.add(job)


def mask_costs(trie: TokenTrie, grammar: str, rows: int) -> dict[str, float]:
    """Return the microseconds of a mask and of a taken token, of `rows` choices in one call: the mean over texts that
    are sampled evenly from what the grammar allows."""
    ends = pack_mask((), trie.vocab_size)
    buffer, first = MaskBuffer(trie), trie.compile(grammar)
    rng = np.random.default_rng(0)
    matchers = [first.copy() for _ in range(rows)]
    mask_seconds, take_seconds, count = 0.0, 0.0, 0
    for _ in range(40):
        begin = time.perf_counter()
        masks = buffer.compute([(matcher, [], ends) for matcher in matchers])
        mask_seconds += time.perf_counter() - begin
        tokens = [int(rng.choice(np.flatnonzero(unpack_mask(mask[0], trie.vocab_size)))) for mask in masks]
        begin = time.perf_counter()
        for matcher, token in zip(matchers, tokens, strict=True):
            matcher.consume(token)
        take_seconds += time.perf_counter() - begin
        count += rows
        matchers = [first.copy() if matcher.is_complete else matcher for matcher in matchers]
    return {"mask_us": mask_seconds / count * 1e6, "take_us": take_seconds / count * 1e6}


def measure_model(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one model, and print them."""
    model, folder = load(name)
    vocabulary = HuggingFaceTokenizer(folder.path)
    begin = time.perf_counter()
    tokens = LibraryTokens(
        model.vocab_size,
        vocabulary.token_bytes,
        vocabulary.is_special,
        lambda text: vocabulary.encode(text, add_special_tokens=False),
    )
    trie = TokenTrie(tokens)
    figures: dict[str, Any] = {"trie_seconds": time.perf_counter() - begin, "masks": {}, "clients": {}}
    print(f"{name}: vocabulary of {model.vocab_size} tokens prepared in {figures['trie_seconds']:.2f} s")
    for kind in ("masked", "json"):
        costs = figures["masks"][kind] = mask_costs(trie, GRAMMARS[kind], max(options.clients))
        print(f"{kind:8}{costs['mask_us']:8.1f} us a mask, {costs['take_us']:6.1f} us a taken token")
    arms = Arms(model, vocabulary)
    for clients in options.clients:
        rates: dict[str, list[float]] = {kind: [] for kind in GRAMMARS}
        for round_number in range(options.rounds + 1):
            for kind in GRAMMARS:
                rate = arms.run(kind, clients, options.tokens * clients, options.out)
                if round_number:
                    rates[kind].append(rate)
        found: dict[str, Any] = {"free_tok_s": measure.median_of(rates["free"])}
        for kind in ("masked", "json"):
            ratios = [rate / free for rate, free in zip(rates[kind], rates["free"], strict=True)]
            found[kind] = measure.median_of(ratios)
        figures["clients"][str(clients)] = found
        shown = ", ".join(
            f"{kind} x {found[kind]['median']:.3f} ({found[kind]['least']:.3f} to {found[kind]['greatest']:.3f})"
            for kind in ("masked", "json")
        )
        print(f"{clients:>3} clients: free {found['free_tok_s']['median']:8.1f} tok/s, {shown}", flush=True)
    return figures


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.constrained", description=__doc__)
    parser.add_argument("--model", nargs="+", default=["storyteller"], help="built-in names or folders")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32], help="jobs at a time (default 1 8 32)")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each client in a round (default 256)")
    parser.add_argument("--out", type=int, default=128, help="tokens per completion at most (default 128)")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser


def main() -> int:
    options = arguments().parse_args()
    at_start = measure.start()
    figures: dict[str, Any] = {}
    for name in options.model:
        figures[Path(name).name] = measure_model(name, options)
        measure.write_report(options.json, "constrained", figures, at_start)
    return 0


if __name__ == "__main__":
    measure.run_main(main)
