"""What Onward does beside plain throughput, each figure a ratio out of one run: a long prompt beside running
streams, candidates of one prompt, a shared prefix, scoring.

`python -m benchmarks.reach storyteller PATH`. Two servers of the model are alive, with and without its prefix
cache; one at a time has work.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.asking import Asker
from benchmarks.models import folder_of
from benchmarks.server_process import serve
from onward.models.resolve import ResolvedModel

BLOCK = 32
"""Tokens that the prefix cache shares together."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model's two servers. `context`: most tokens of prompt and completion together."""

    cached: Asker
    uncached: Asker
    context: int


@dataclass(frozen=True, slots=True)
class Found:
    """One repetition: two figures of the same kind (in ms), what is said of them: `ratio`, and how long the prompt
    was that it is about."""

    tokens: int
    figures: dict[str, float]
    ratio: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """`what` names the ratio, with a place for {tokens}, `aim` what we want of it; `lower`: whether less is better."""

    what: str
    aim: float
    lower: bool
    run: Callable[[Subject], Found]


def long_prompt(subject: Subject) -> Found:
    """p95 between tokens of four streams while a long prompt is read, over the same streams' value before."""
    streams, quiet, length = 4, 64, min(4000, subject.context - BLOCK)
    out = min(quiet + 512, subject.context - 128 - 1)
    gaps = subject.cached.beside(streams, quiet, out, prompt=128, intruder=length)
    before, during = (_p95(found) for found in gaps)
    return Found(length, {"quiet": before * 1e3, "beside": during * 1e3}, during / before)


def _p95(gaps: list[float]) -> float:
    found = measure.percentile(gaps, 95)
    if not found:
        raise RuntimeError("no time between tokens was seen: the streams were too short")
    return found


def candidates(subject: Subject) -> Found:
    """Eight single requests at once, of one prompt, without cache, over one request with n=8."""
    size = min(1000, subject.context - BLOCK)
    prompt = subject.cached.fresh(size)
    body = {"prompt": prompt, "max_tokens": 16, "ignore_eos": True, "temperature": 0.8, "top_p": 0.95}
    singles = subject.uncached.seconds([body] * 8)
    together = subject.cached.seconds([body | {"n": 8}])
    return Found(size, {"singles": singles * 1e3, "n=8": together * 1e3}, singles / together)


def shared_prefix(subject: Subject) -> Found:
    """Time to first token of a prompt whose first 1,000 tokens nobody sent before, over that of one after it."""
    size = min(1000, subject.context - BLOCK)
    shared = subject.cached.fresh(size)
    tails = [subject.cached.fresh(16) for _ in range(2)]
    cold, warm = (subject.cached.first_token(shared + tail) for tail in tails)
    return Found(size, {"cold": cold * 1e3, "cached": warm * 1e3}, cold / warm)


def scoring(subject: Subject) -> Found:
    """Four continuations of one context, scored one after another as lm-eval does, without cache over with it."""
    size = min(500, subject.context - BLOCK)
    context = subject.cached.fresh(size)
    ends = [subject.cached.fresh(10) for _ in range(4)]
    bodies = [{"prompt": context + end, "echo": True, "logprobs": 1, "max_tokens": 0} for end in ends]
    uncached, cached = (sum(asker.seconds([body]) for body in bodies) for asker in (subject.uncached, subject.cached))
    return Found(size, {"uncached": uncached * 1e3, "cached": cached * 1e3}, uncached / cached)


SCENARIOS = {
    "long_prompt": Scenario("between tokens, p95, beside a {tokens:,}-token prompt : quiet", 2.5, True, long_prompt),
    "candidates": Scenario("8 single requests without cache : n=8, {tokens:,}-token prompt", 5.0, False, candidates),
    "shared_prefix": Scenario("TTFT cold : cached, {tokens:,}-token prefix", 15.0, False, shared_prefix),
    "scoring": Scenario("scoring 4 continuations of {tokens} tokens, uncached : cached", 3.0, False, scoring),
}
"""By name. A further scenario is a further entry."""


def repeat(scenario: Scenario, subject: Subject, runs: int) -> dict[str, Any]:
    """Medians of `runs` repetitions, after one that warms up."""
    scenario.run(subject)
    found = [scenario.run(subject) for _ in range(runs)]
    return {
        "what": scenario.what.format(tokens=found[0].tokens),
        "aim": scenario.aim,
        "lower": scenario.lower,
        "figures_ms": {name: measure.median_of([each.figures[name] for each in found]) for name in found[0].figures},
        "ratio": measure.median_of([each.ratio for each in found]),
    }


def config_of(folder: ResolvedModel) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder.path / "config.json").read_text(encoding="utf-8"))
    return config


def reach(model: str, names: list[str], runs: int) -> dict[str, Any]:
    """All scenarios of one model."""
    folder = folder_of(model)
    config = config_of(folder)
    with serve(model) as cached, serve(model, "--no-prefix-cache") as uncached:
        first, second = (Asker(server, folder.id, config["vocab_size"]) for server in (cached, uncached))
        subject = Subject(first, second, config["max_position_embeddings"])
        done = {}
        for name in names:
            done[name] = repeat(SCENARIOS[name], subject, runs)
            print(line(folder.id, done[name]), flush=True)
    return done


def line(model: str, found: dict[str, Any]) -> str:
    """For a person."""
    ratio = found["ratio"]
    figures = ", ".join(f"{name} {value['median']:.1f} ms" for name, value in found["figures_ms"].items())
    spread = f"{ratio['median']:.2f}× ({ratio['least']:.2f} to {ratio['greatest']:.2f})"
    return f"{model}: {found['what']}: {spread}; {figures}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reach", description=__doc__)
    parser.add_argument("models", nargs="*", default=["storyteller"], help="built-in names or folders")
    parser.add_argument("--only", nargs="+", choices=[*SCENARIOS], default=[*SCENARIOS], metavar="SCENARIO")
    parser.add_argument("--runs", type=int, default=7, help="repetitions that count (default 7)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    at_start = measure.begin()
    figures = {Path(model).name: reach(model, options.only, options.runs) for model in options.models}
    measure.write_report(options.json, "reach", {"models": figures}, at_start)
    return 0


if __name__ == "__main__":
    sys.exit(main())
