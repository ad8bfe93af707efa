"""Cost and gain of constrained output. `python -m benchmarks.constrained --clients 1 8 32` measures three things:

- microseconds of a mask by itself, over the vocabulary of `--model` and of each of `--vocabulary`;
- what masks cost: the same choices decode with a grammar that allows nearly everything and without it, a few steps each
  in turn, so that only the constraint differs; time per token as a ratio;
- what forced text gains: tokens per second of JSON by a schema as a ratio to those of free text, prompts included, in
  alternating rounds.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.models import find_model, load
from onward.constraints.choice import Compiled
from onward.constraints.grammar import regex_grammar
from onward.constraints.json_schema import json_schema_grammar
from onward.constraints.matcher import MaskBuffer, TokenTrie
from onward.constraints.tokens import LibraryTokens
from onward.engine.choice_end import ChoiceEnd
from onward.engine.events import Decoded
from onward.engine.job import Job
from onward.engine.model import ModelRunner, Tokenizer
from onward.engine.step import Engine
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
MASKS = {
    "nearly all": GRAMMARS["masked"],
    "schema": GRAMMARS["json"],
    "any JSON": json_schema_grammar({"type": "object"}),
    "[A-Za-z ]{1,400}": regex_grammar("[A-Za-z ]{1,400}"),
    "[^,<]{1,400}": regex_grammar("[^,<]{1,400}"),
}
"""Grammars whose masks are measured. Repetitions that are counted are the expensive ones: each token leads to a state
of its own, and many tokens are allowed."""
PROMPT_TOKENS = 32
MASKS_PER_GRAMMAR = 400
STEPS_PER_TURN = 5
"""In addition to a first one, which is not counted: it has the masks of new matchers."""


class Arms:
    """One engine, for jobs of every kind: it has measured what steps cost, as in a server."""

    def __init__(self, model: ModelRunner, vocabulary: Tokenizer) -> None:
        sampler = Sampler(model.vocab_size)
        self.engine = Engine(model, vocabulary, sampler, share_prefixes=False, load_tokenizer=lambda: vocabulary)
        self._vocab_size = min(model.vocab_size, vocabulary.size)
        self._ids = itertools.count()

    def run(self, kind: str, clients: int, tokens: int, out: int) -> float:
        """Generate about this many tokens in completions of at most `out`; return tokens per second of all steps."""
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
        self._cancel_all()
        return generated / seconds

    def mask_ratios(self, clients: int, turns: int) -> list[float]:
        """Return the time per token with masks as a ratio to that of the same choices without, for each pair of
        turns."""
        for _ in range(clients):
            self._submit("masked", turns * 2 * STEPS_PER_TURN * 4)
        scheduler = self.engine.scheduler
        while len(scheduler.running) < clients or any(each.is_prefilling for each in scheduler.running):
            self.engine.step()
        compiled = self.engine.constraints.prepare(next(iter(scheduler.running)).job)
        ratios = []
        for _ in range(turns):
            free, masked = self._turn(None), self._turn(compiled)
            ratios.append(masked / free)
        assert len(scheduler.running) == clients, "a choice has ended"
        self._cancel_all()
        return ratios

    def _turn(self, compiled: Compiled | None) -> float:
        """Run some steps of all choices with a grammar or without; return the seconds per token."""
        for sequence in self.engine.scheduler.running:
            sequence.constraint = None if compiled is None else compiled.begin()
            sequence.end = ChoiceEnd(sequence.job, self.engine.vocabulary, sequence.constraint)
        self.engine.step()
        generated, steps, begin = 0, 0, time.perf_counter()
        while steps < STEPS_PER_TURN or not generated:  # a step in which all masks are late generates none
            generated += sum(len(event.tokens) for event in self.engine.step() if isinstance(event, Decoded))
            steps += 1
        return (time.perf_counter() - begin) / generated

    def _cancel_all(self) -> None:
        for sequence in list(self.engine.scheduler.sequences()):
            self.engine.cancel(sequence.job.request)

    def _submit(self, kind: str, out: int) -> None:
        number = next(self._ids)
        prompt = tuple(random.Random(number).choices(range(256, self._vocab_size), k=PROMPT_TOKENS))
        sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=number)
        ends = self.engine.vocabulary.end_tokens if kind == "masked" else frozenset[int]()
        least = out if kind == "masked" else 0  # no text ends early
        job = Job(number, number, prompt, 1, out, sampling, TextRules(), ends, least, grammar=GRAMMARS[kind])
        self.engine.add(job)


def mask_costs(trie: TokenTrie, grammar: str) -> dict[str, float]:
    """Return the microseconds of a mask and of accepting a token, for texts that are sampled uniformly from what the
    grammar allows, one at a time on this thread."""
    ends = pack_mask((), trie.vocab_size)
    buffer, first = MaskBuffer(trie), trie.compile(grammar)
    rng = np.random.default_rng(0)
    matcher = first.copy()
    masks, takes = [], []
    for _ in range(MASKS_PER_GRAMMAR):
        begin = time.perf_counter()
        [mask] = buffer.compute([(matcher, [], ends)])
        computed = time.perf_counter()
        token = int(rng.choice(np.flatnonzero(unpack_mask(mask[0], trie.vocab_size))))
        taken = time.perf_counter()
        matcher.consume(token)
        takes.append((time.perf_counter() - taken) * 1e6)
        masks.append((computed - begin) * 1e6)
        if matcher.is_complete:
            matcher = first.copy()
    return {
        "mask_us": statistics.median(masks),
        "mask_mean_us": statistics.fmean(masks),
        "mask_p90_us": statistics.quantiles(masks, n=10)[-1],
        "take_us": statistics.median(takes),
    }


def measure_masks(name: str, vocabulary: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """Return the figures of one vocabulary, and print them."""
    begin = time.perf_counter()
    tokens = LibraryTokens(
        vocab_size,
        vocabulary.token_bytes,
        vocabulary.is_special,
        lambda text: vocabulary.encode(text, add_special_tokens=False),
    )
    trie = TokenTrie(tokens)
    seconds = time.perf_counter() - begin
    print(f"{name}: vocabulary of {vocab_size} tokens prepared in {seconds:.2f} s; microseconds of a mask:")
    costs = {kind: mask_costs(trie, grammar) for kind, grammar in MASKS.items()}
    for kind, each in costs.items():
        print(
            f"{kind:18} median {each['mask_us']:7.1f}, mean {each['mask_mean_us']:7.1f}, 90 % below "
            f"{each['mask_p90_us']:7.1f}; {each['take_us']:5.1f} per taken token",
            flush=True,
        )
    return {"trie_seconds": seconds, "masks": costs}


def measure_model(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one model, and print them."""
    model, folder = load(name)
    vocabulary = folder.files.load_tokenizer()
    figures = measure_masks(name, vocabulary, model.vocab_size)
    arms = Arms(model, vocabulary)
    figures["clients"] = {}
    for clients in options.clients:
        found = figures["clients"][str(clients)] = measure_clients(arms, clients, options)
        print(
            f"{clients:>3} clients: a token with masks takes {found['masked']['median']:.3f} of the time without "
            f"({found['masked']['quarter']:.3f} to {found['masked']['three_quarters']:.3f} in half of the turns); free "
            f"{found['free_tok_s']['median']:.1f} tok/s, json {found['json']['median']:.3f} of it "
            f"({found['json']['least']:.3f} to {found['json']['greatest']:.3f})",
            flush=True,
        )
    return figures


def measure_clients(arms: Arms, clients: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures with this many jobs at a time."""
    quarter, median, three_quarters = statistics.quantiles(arms.mask_ratios(clients, options.turns), n=4)
    rates: dict[str, list[float]] = {"free": [], "json": []}
    for round_number in range(options.rounds + 1):
        for kind, found in rates.items():
            rate = arms.run(kind, clients, options.tokens * clients, options.out)
            if round_number:
                found.append(rate)
    gains = [rate / free for rate, free in zip(rates["json"], rates["free"], strict=True)]
    masked = {"median": median, "quarter": quarter, "three_quarters": three_quarters}
    return {"masked": masked, "free_tok_s": measure.median_of(rates["free"]), "json": measure.median_of(gains)}


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("constrained", __doc__)
    parser.add_argument("--model", nargs="+", default=["storyteller"], help="built-in names or folders")
    parser.add_argument("--vocabulary", nargs="*", default=[], help="models of any format, for masks only")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32], help="jobs at a time (default 1 8 32)")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each client in a round (default 256)")
    parser.add_argument("--out", type=int, default=128, help="tokens per completion at most (default 128)")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    parser.add_argument("--turns", type=int, default=40, help="pairs of turns of the same choices (default 40)")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    figures: dict[str, Any] = {}
    for name in options.vocabulary:
        model = find_model(name)
        vocabulary = model.files.load_tokenizer()
        figures[Path(name).name] = measure_masks(name, vocabulary, vocabulary.size)
    for name in options.model:
        figures[Path(name).name] = measure_model(name, options)
        report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
