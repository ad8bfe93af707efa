"""Throughput and time to first token by number of clients: closed loops of 1, 2, 4 … 256 clients.

`python -m benchmarks.sweep` starts `onward serve` itself; with --url it measures a running server.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.chart import Panel, Series, chart
from benchmarks.http_client import Target
from benchmarks.load import Bounds, LoadGenerator, run_async
from benchmarks.measure import BenchmarkError
from benchmarks.outcome import Outcome, summarise
from benchmarks.server_process import serve
from benchmarks.workload import Workload, add_token_range

MIN_REQUESTS = 16
WAVES = 4
"""Requests per client and round, with many clients."""


def requests_for(clients: int) -> int:
    """Return the requests of one round: enough that the end, when fewer clients are left, is a small part."""
    return max(MIN_REQUESTS, WAVES * clients)


class Sweep:
    """Closed loops on one server. Prompts are new in every loop, so that no prefix cache helps."""

    def __init__(self, target: Target, options: argparse.Namespace) -> None:
        self._target, self._options = target, options
        self._first = 0

    def loop(self, clients: int) -> list[Outcome]:
        """Run one closed loop of so many clients. Raises BenchmarkError if a request fails."""
        options, count = self._options, requests_for(clients)
        workload = Workload(
            options.model, prompt=options.prompt, tokens=options.tokens, out=options.out, seed=options.seed
        )
        generator = LoadGenerator(self._target, workload, Bounds(count, timeout=600.0), self._first)
        self._first += count
        outcomes = run_async(lambda: generator.closed_loop(clients))
        if failed := summarise(outcomes)["failed"]:
            raise BenchmarkError(f"requests failed with {clients} clients: {failed}")
        return outcomes

    def run(self) -> dict[str, Any]:
        """Run all rounds: each goes through all numbers of clients, every other one backwards; the first is a
        warm-up."""
        counts: list[int] = self._options.clients
        loops: dict[int, list[list[Outcome]]] = {clients: [] for clients in counts}
        for number in range(self._options.rounds + 1):
            for clients in counts if number % 2 else reversed(counts):
                outcomes = self.loop(clients)
                if number:
                    loops[clients].append(outcomes)
        return {str(clients): figures_of(rounds) for clients, rounds in loops.items()}


def figures_of(rounds: list[list[Outcome]]) -> dict[str, Any]:
    """Return output tokens per second, median and range of rounds, and latencies of all rounds together."""
    latencies = summarise([outcome for outcomes in rounds for outcome in outcomes])
    return {
        "tok_s": measure.median_of([summarise(outcomes)["output_tok_s"] for outcomes in rounds]),
        **{key: latencies[key] for key in ("ttft_ms", "itl_ms", "e2e_ms", "requests", "output_tokens")},
    }


def table(figures: dict[str, Any]) -> str:
    """Return the figures as a table for the terminal."""
    lines = [f"{'clients':>7}{'tok/s':>10}{'TTFT p50':>11}{'p95':>10}{'ITL p50':>10}{'p95':>9}  ms"]
    for clients, found in figures.items():
        ttft, itl = found["ttft_ms"], found["itl_ms"]
        rate = f"{clients:>7}{found['tok_s']['median']:10.1f}"
        lines.append(f"{rate}{ttft['p50']:11.1f}{ttft['p95']:10.1f}{_cell(itl['p50'])}{_cell(itl['p95']):>9}")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return f"{'–':>10}" if value is None else f"{value:10.2f}"


def svg_plot(figures: dict[str, Any]) -> str:
    """Return a plot of throughput and time to first token by clients, as SVG."""
    by_clients = [(int(clients), found) for clients, found in figures.items()]
    rate = Series("output tokens per second", [(x, found["tok_s"]["median"]) for x, found in by_clients])
    first = [
        Series(name, [(x, found["ttft_ms"][name]) for x, found in by_clients]) for name in ("p50", "p95")
    ]  # fmt: skip
    return chart(
        [
            Panel("Output tokens per second, all clients together", "clients", [rate], log_x=True),
            Panel("Time to first token, ms", "clients", first, log_x=True, log_y=True),
        ]
    )


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("sweep", __doc__)
    parser.add_argument("--url", help="base URL of a running server (its API key is taken from OPENAI_API_KEY)")
    parser.add_argument("--allow-remote", action="store_true", help="allow a server on another machine")
    parser.add_argument(
        "--model", default="storyteller", help="a built-in name or a folder; with --url, a model of that server"
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[2**power for power in range(9)])
    parser.add_argument("--prompt", type=int, default=128, help="tokens per prompt (default 128)")
    parser.add_argument("--out", type=int, default=64, help="tokens per completion (default 64)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds (default 3)")
    add_token_range(parser)
    parser.add_argument("--seed", type=int, default=0, help="seed of all prompts (default 0)")
    parser.add_argument("--plot", type=Path, help="plot throughput by clients to this SVG file")
    return parser


@contextmanager
def target_of(options: argparse.Namespace) -> Iterator[Target]:
    """Yield the server at --url, or a new one. Raises BenchmarkError for a URL that is not allowed."""
    if options.url:
        yield Target.parse(options.url, key=os.environ.get("OPENAI_API_KEY"), allow_remote=options.allow_remote)
        return
    with serve(options.model) as server:
        yield Target.parse(server.url)


def main(options: argparse.Namespace, report: measure.Report) -> None:
    with target_of(options) as target:
        figures = Sweep(target, options).run()
    print(table(figures))
    report({"clients": figures})
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        options.plot.write_text(svg_plot(figures), encoding="utf-8")


if __name__ == "__main__":
    measure.run(arguments(), main)
