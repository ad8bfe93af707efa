"""What a ledger costs: `onward serve` with and without a database, in alternating rounds.

Both servers run, one at a time has work, and both do the same in a round. In each session both are started anew:
depending on where its memory happens to lie, one process may be faster than another of the same program for as long as
it runs, so many sessions of few rounds say more than few sessions of many. With `--null` neither server has a database,
which shows how far off a run may be. The goal is at most 1 % of the throughput of 32 clients.
`python -m benchmarks.ledger`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks import measure
from benchmarks.engine_process import Round, Turn, requests_for, turn_of
from benchmarks.http_client import Target
from benchmarks.load import Bounds, LoadGenerator, run_async
from benchmarks.models import model_id
from benchmarks.processes import cpu_seconds
from benchmarks.server_process import Server, serve
from benchmarks.workload import Workload

WITHOUT, WITH = "without", "with"


def run_round(servers: dict[str, Server], options: argparse.Namespace, clients: int, number: int) -> Round:
    """Give both servers the same work; the one that goes first alternates."""
    names = list(servers) if number % 2 else list(reversed(servers))
    found: Round = {}
    for name in names:
        workload = Workload(
            model_id("storyteller"), prompt=options.prompt, tokens=(256, 8000), out=options.out, seed=number
        )
        requests = requests_for(clients, options.waves)
        generator = LoadGenerator(Target.parse(servers[name].url), workload, Bounds(requests))
        before = cpu_seconds(servers[name].pid)
        outcomes = run_async(partial(generator.closed_loop, clients))
        after = cpu_seconds(servers[name].pid)
        used = None if before is None or after is None else after - before
        found[name] = turn_of(outcomes, options.out, used)
    return found


def compare(sessions: Sequence[Sequence[Round]]) -> dict[str, Any]:
    """Return ratios within a round, with to without: throughput, processor time per token; and the time to first token
    that is added, in milliseconds."""
    rounds = list(itertools.chain.from_iterable(sessions))

    def figure(of: Callable[[Turn, Turn], float]) -> dict[str, float]:
        values = [[of(each[WITH], each[WITHOUT]) for each in session] for session in sessions]
        low, high = measure.interval(values)
        return measure.median_of(list(itertools.chain.from_iterable(values))) | {"low": low, "high": high}

    return {
        "tok_s": {name: statistics.median(each[name].tok_s for each in rounds) for name in (WITHOUT, WITH)},
        "throughput_ratio": figure(lambda mine, its: mine.tok_s / its.tok_s),
        "cpu_ratio": figure(lambda mine, its: (mine.cpu_ms or 0) / its.cpu_ms if its.cpu_ms else math.nan),
        "ttft_added_ms": figure(lambda mine, its: mine.ttft_ms - its.ttft_ms),
    }


def run_sessions(
    options: argparse.Namespace, flags_of: Callable[[ExitStack], dict[str, Sequence[str]]]
) -> dict[str, Any]:
    """Start both servers in each session, with flags from `flags_of`, which may enter contexts that last for the
    session, and run its rounds; return the figures by number of clients."""
    found: dict[int, list[list[Round]]] = {clients: [] for clients in options.clients}
    numbers = itertools.count()
    for session in range(options.sessions):
        with ExitStack() as stack:
            flags = flags_of(stack)
            if options.null:
                flags[WITH] = flags[WITHOUT]
            names = list(flags) if session % 2 else list(reversed(flags))
            servers = {name: stack.enter_context(serve("storyteller", *flags[name])) for name in names}
            for clients in options.clients:
                run_round(servers, options, clients, next(numbers))
                rounds = [run_round(servers, options, clients, next(numbers)) for _ in range(options.rounds)]
                found[clients].append(rounds)
    return {str(clients): compare(sessions) for clients, sessions in found.items()}


def run(options: argparse.Namespace) -> dict[str, Any]:
    return run_sessions(
        options, lambda stack: {WITHOUT: (), WITH: ("--data-dir", stack.enter_context(tempfile.TemporaryDirectory()))}
    )


def table(figures: dict[str, Any]) -> str:
    lines = [f"{'clients':>7}{'without':>10}{'with':>10} tok/s   ratio, CPU, TTFT added (95 % intervals)"]
    for clients, found in figures.items():
        ratio, cpu, added = found["throughput_ratio"], found["cpu_ratio"], found["ttft_added_ms"]
        lines.append(
            f"{clients:>7}{found['tok_s'][WITHOUT]:10.1f}{found['tok_s'][WITH]:10.1f}"
            f"{ratio['median']:14.2%} ({ratio['low']:.2%} to {ratio['high']:.2%})"
            f"{cpu['median']:9.2%} ({cpu['low']:.2%} to {cpu['high']:.2%})"
            f"{added['median']:+8.2f} ms ({added['low']:+.2f} to {added['high']:+.2f})"
        )
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("ledger", __doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--prompt", type=int, default=128, help="tokens per prompt (default 128)")
    parser.add_argument("--out", type=int, default=64, help="tokens per completion (default 64)")
    parser.add_argument("--sessions", type=int, default=24, help="how often servers are started (default 24)")
    parser.add_argument("--rounds", type=int, default=4, help="measured rounds per session (default 4)")
    parser.add_argument("--waves", type=int, default=4, help="requests per client and round (default 4, at least 8)")
    parser.add_argument("--null", action="store_true", help="start both servers alike, to see what a run finds then")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    figures = run(options)
    print(table(figures))
    report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
