"""What a ledger costs: `onward serve` with and without a database, in alternating rounds of one run.

Both servers run, one at a time has work, and both do the same in a round. The goal is at most 1 % of the throughput of
32 clients. `python -m benchmarks.ledger`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.engine_process import Round, requests_for, turn_of
from benchmarks.http_client import Target
from benchmarks.load import Bounds, LoadGenerator, run_async
from benchmarks.models import model_id
from benchmarks.processes import cpu_seconds
from benchmarks.server_process import Server, serve
from benchmarks.workload import Workload

WITHOUT, WITH = "without", "with"


def run_round(servers: dict[str, Server], options: argparse.Namespace, clients: int, number: int) -> Round:
    """Give both servers the same work, the other one first each time."""
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


def compare(rounds: list[Round]) -> dict[str, Any]:
    """Return ratios within a round, with to without: throughput, processor time per token; and the time to first token
    that is added, in milliseconds."""
    pairs = [(each[WITH], each[WITHOUT]) for each in rounds]
    return {
        "tok_s": {name: statistics.median(each[name].tok_s for each in rounds) for name in (WITHOUT, WITH)},
        "throughput_ratio": measure.median_of([mine.tok_s / its.tok_s for mine, its in pairs]),
        "cpu_ratio": measure.median_of([mine.cpu_ms / its.cpu_ms for mine, its in pairs if mine.cpu_ms and its.cpu_ms]),
        "ttft_added_ms": measure.median_of([mine.ttft_ms - its.ttft_ms for mine, its in pairs]),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start both servers, run all rounds; return the figures by number of clients."""
    figures: dict[str, Any] = {}
    numbers = itertools.count()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        flags = {WITHOUT: (), WITH: ("--data-dir", folder)}
        servers = {name: stack.enter_context(serve("storyteller", *given)) for name, given in flags.items()}
        for clients in options.clients:
            run_round(servers, options, clients, next(numbers))
            figures[str(clients)] = compare(
                [run_round(servers, options, clients, next(numbers)) for _ in range(options.rounds)]
            )
    return figures


def table(figures: dict[str, Any]) -> str:
    lines = [f"{'clients':>7}{'without':>10}{'with':>10} tok/s{'ratio':>8} (range){'CPU':>17}{'TTFT added':>14}"]
    for clients, found in figures.items():
        ratio = found["throughput_ratio"]
        lines.append(
            f"{clients:>7}{found['tok_s'][WITHOUT]:10.1f}{found['tok_s'][WITH]:10.1f}{ratio['median']:14.1%} "
            f"({ratio['least']:.1%} to {ratio['greatest']:.1%}){found['cpu_ratio']['median']:9.1%}"
            f"{found['ttft_added_ms']['median']:+11.2f} ms"
        )
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--prompt", type=int, default=128, help="tokens per prompt (default 128)")
    parser.add_argument("--out", type=int, default=64, help="tokens per completion (default 64)")
    parser.add_argument("--rounds", type=int, default=15, help="measured rounds (default 15)")
    parser.add_argument("--waves", type=int, default=4, help="requests per client and round (default 4, at least 8)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser


def main() -> int:
    options = arguments().parse_args()
    at_start = measure.start()
    figures = run(options)
    print(table(figures))
    measure.write_report(options.json, "ledger", figures, at_start)
    return 0


if __name__ == "__main__":
    measure.run_main(main)
