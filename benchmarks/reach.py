"""Scenarios other than plain throughput, each figure a ratio within one run: a long prompt during running streams,
candidates of one prompt, a shared prefix, scoring.

`python -m benchmarks.reach storyteller PATH`. Two servers of the model run, with and without prefix cache; one at a
time has work.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.measure import BenchmarkError
from benchmarks.models import find_model
from benchmarks.server_process import serve
from benchmarks.timed_client import TimedClient

BLOCK_TOKENS = 32
"""Tokens per block of the prefix cache."""


@dataclass(frozen=True, slots=True)
class ServerPair:
    """The two servers of a model. `context_length`: maximal tokens of prompt and completion together."""

    cached: TimedClient
    uncached: TimedClient
    context_length: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One repetition: two figures of the same kind in ms, their ratio, and the length of the prompt in tokens."""

    tokens: int
    figures: dict[str, float]
    ratio: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """One ratio to measure. `what` names it, with a placeholder {tokens}; `aim` is its target; `is_lower_better`."""

    what: str
    aim: float
    is_lower_better: bool
    run: Callable[[ServerPair], Measurement]


def long_prompt(servers: ServerPair) -> Measurement:
    """Measure the p95 between tokens of four streams during the prefill of a long prompt, relative to before it."""
    streams, quiet, length = 4, 64, min(4000, servers.context_length - BLOCK_TOKENS)
    out = min(quiet + 512, servers.context_length - 128 - 1)
    gaps = servers.cached.gaps_beside(streams, quiet, out, prompt=128, long_prompt=length)
    before, during = (_p95(each) for each in gaps)
    return Measurement(length, {"quiet": before * 1e3, "beside": during * 1e3}, during / before)


def _p95(gaps: list[float]) -> float:
    p95 = measure.percentile(gaps, 95)
    if not p95:
        raise BenchmarkError("no time between tokens was measured: the streams were too short")
    return p95


def candidates(servers: ServerPair) -> Measurement:
    """Measure eight concurrent single requests of one prompt without cache, relative to one request with n=8."""
    size = min(1000, servers.context_length - BLOCK_TOKENS)
    prompt = servers.cached.new_prompt(size)
    body = {"prompt": prompt, "max_tokens": 16, "ignore_eos": True, "temperature": 0.8, "top_p": 0.95}
    singles = servers.uncached.seconds([body] * 8)
    together = servers.cached.seconds([body | {"n": 8}])
    return Measurement(size, {"singles": singles * 1e3, "n=8": together * 1e3}, singles / together)


def shared_prefix(servers: ServerPair) -> Measurement:
    """Measure the time to first token of a prompt whose first 1,000 tokens are new, relative to one that shares
    them."""
    size = min(1000, servers.context_length - BLOCK_TOKENS)
    shared = servers.cached.new_prompt(size)
    tails = [servers.cached.new_prompt(16) for _ in range(2)]
    cold, warm = (servers.cached.ttft(shared + tail) for tail in tails)
    return Measurement(size, {"cold": cold * 1e3, "cached": warm * 1e3}, cold / warm)


def scoring(servers: ServerPair) -> Measurement:
    """Measure the scoring of four continuations of one context in sequence, as lm-eval does, without cache relative to
    with it."""
    size = min(500, servers.context_length - BLOCK_TOKENS)
    context = servers.cached.new_prompt(size)
    ends = [servers.cached.new_prompt(10) for _ in range(4)]
    bodies = [{"prompt": context + end, "echo": True, "logprobs": 1, "max_tokens": 0} for end in ends]
    uncached, cached = (sum(client.seconds([body]) for body in bodies) for client in (servers.uncached, servers.cached))
    return Measurement(size, {"uncached": uncached * 1e3, "cached": cached * 1e3}, uncached / cached)


SCENARIOS = {
    "long_prompt": Scenario("between tokens, p95, beside a {tokens:,}-token prompt : quiet", 2.5, True, long_prompt),
    "candidates": Scenario("8 single requests without cache : n=8, {tokens:,}-token prompt", 5.0, False, candidates),
    "shared_prefix": Scenario("TTFT cold : cached, {tokens:,}-token prefix", 15.0, False, shared_prefix),
    "scoring": Scenario("scoring 4 continuations of {tokens} tokens, uncached : cached", 3.0, False, scoring),
}
"""All scenarios by name."""


def repeat(scenario: Scenario, servers: ServerPair, runs: int) -> dict[str, Any]:
    """Return medians of `runs` repetitions, after a warm-up repetition."""
    scenario.run(servers)
    found = [scenario.run(servers) for _ in range(runs)]
    return {
        "what": scenario.what.format(tokens=found[0].tokens),
        "aim": scenario.aim,
        "lower": scenario.is_lower_better,
        "figures_ms": {name: measure.median_of([each.figures[name] for each in found]) for name in found[0].figures},
        "ratio": measure.median_of([each.ratio for each in found]),
    }


def reach(model: str, names: list[str], runs: int) -> dict[str, Any]:
    """Run scenarios with one model."""
    folder = find_model(model)
    facts = folder.files.facts()
    vocabulary, context_length = int(facts["vocabulary"]), int(facts["context_length"])
    with serve(model) as cached, serve(model, "--no-prefix-cache") as uncached:
        first, second = (TimedClient(server, folder.id, vocabulary) for server in (cached, uncached))
        servers = ServerPair(first, second, context_length)
        results = {}
        for name in names:
            results[name] = repeat(SCENARIOS[name], servers, runs)
            print(line(folder.id, results[name]), flush=True)
    return results


def line(model: str, found: dict[str, Any]) -> str:
    """Return a line for the terminal."""
    ratio = found["ratio"]
    figures = ", ".join(f"{name} {value['median']:.1f} ms" for name, value in found["figures_ms"].items())
    spread = f"{ratio['median']:.2f}× ({ratio['least']:.2f} to {ratio['greatest']:.2f})"
    return f"{model}: {found['what']}: {spread}; {figures}"


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("reach", __doc__)
    parser.add_argument("models", nargs="*", default=["storyteller"], help="built-in names or folders")
    parser.add_argument("--only", nargs="+", choices=[*SCENARIOS], default=[*SCENARIOS], metavar="SCENARIO")
    parser.add_argument("--runs", type=int, default=7, help="measured repetitions (default 7)")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    figures = {Path(model).name: reach(model, options.only, options.runs) for model in options.models}
    report({"models": figures})


if __name__ == "__main__":
    measure.run(arguments(), main)
