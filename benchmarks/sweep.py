"""Throughput and time to first token against the number of clients: closed loops of 1, 2, 4 … 256 of them.

`python -m benchmarks.sweep` starts `onward serve` itself; with --url it asks any server that runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.chart import Panel, Series, chart
from benchmarks.http_client import Target
from benchmarks.load import Bounds, Generator, run_async
from benchmarks.outcome import Outcome, summarise
from benchmarks.server_process import serve
from benchmarks.workload import Workload

LEAST_REQUESTS = 16
WAVES = 4
"""Requests that a client sends in a round, where there are many clients."""


def requests_for(clients: int) -> int:
    """Requests of one round: enough that the tail, in which fewer clients are left, is a small part."""
    return max(LEAST_REQUESTS, WAVES * clients)


class Sweep:
    """Closed loops on one server. Prompts are new in every loop, so no cache helps."""

    def __init__(self, target: Target, options: argparse.Namespace) -> None:
        low, _, high = options.token_range.partition(":")
        self._target, self._options, self._tokens = target, options, (int(low), int(high))
        self._first = 0

    def loop(self, clients: int) -> list[Outcome]:
        """One closed loop of so many clients. RuntimeError when a request fails."""
        options, count = self._options, requests_for(clients)
        workload = Workload(
            options.model, prompt=options.prompt, tokens=self._tokens, out=options.out, seed=options.seed
        )
        generator = Generator(self._target, workload, Bounds(count, timeout=600.0), self._first)
        self._first += count
        outcomes = run_async(lambda: generator.closed(clients))
        if failed := summarise(outcomes)["failed"]:
            raise RuntimeError(f"requests failed with {clients} clients: {failed}")
        return outcomes

    def run(self) -> dict[str, Any]:
        """All rounds: each goes through all numbers of clients, every other one backwards; the first warms up."""
        counts: list[int] = self._options.clients
        loops: dict[int, list[list[Outcome]]] = {clients: [] for clients in counts}
        for number in range(self._options.rounds + 1):
            for clients in counts if number % 2 else reversed(counts):
                outcomes = self.loop(clients)
                if number:
                    loops[clients].append(outcomes)
        return {str(clients): figures_of(rounds) for clients, rounds in loops.items()}


def figures_of(rounds: list[list[Outcome]]) -> dict[str, Any]:
    """Output tokens a second, median and range of rounds; latencies of all rounds together."""
    latencies = summarise([outcome for outcomes in rounds for outcome in outcomes])
    return {
        "tok_s": measure.median_of([summarise(outcomes)["output_tok_s"] for outcomes in rounds]),
        **{key: latencies[key] for key in ("ttft_ms", "itl_ms", "e2e_ms", "requests", "output_tokens")},
    }


def table(figures: dict[str, Any]) -> str:
    lines = [f"{'clients':>7}{'tok/s':>10}{'TTFT p50':>11}{'p95':>10}{'ITL p50':>10}{'p95':>9}  ms"]
    for clients, found in figures.items():
        ttft, itl = found["ttft_ms"], found["itl_ms"]
        rate = f"{clients:>7}{found['tok_s']['median']:10.1f}"
        lines.append(f"{rate}{ttft['p50']:11.1f}{ttft['p95']:10.1f}{_cell(itl['p50'])}{_cell(itl['p95']):>9}")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return f"{'–':>10}" if value is None else f"{value:10.2f}"


def picture(figures: dict[str, Any]) -> str:
    """Throughput and time to first token against clients, as SVG."""
    by_clients = [(int(clients), found) for clients, found in figures.items()]
    rate = Series("output tokens a second", [(x, found["tok_s"]["median"]) for x, found in by_clients])
    first = [
        Series(name, [(x, found["ttft_ms"][name]) for x, found in by_clients]) for name in ("p50", "p95")
    ]  # fmt: skip
    return chart(
        [
            Panel("Output tokens a second, all clients together", "clients", [rate], log_x=True),
            Panel("Time to first token, ms", "clients", first, log_x=True, log_y=True),
        ]
    )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--url", help="base URL of a running server (its API key: OPENAI_API_KEY)")
    parser.add_argument("--allow-remote", action="store_true", help="let the server be on another machine")
    parser.add_argument("--model", default="storyteller", help="to serve (a built-in name, a folder), or to ask for")
    parser.add_argument("--clients", type=int, nargs="+", default=[2**power for power in range(9)])
    parser.add_argument("--prompt", type=int, default=128, help="tokens a prompt (default 128)")
    parser.add_argument("--out", type=int, default=64, help="tokens a completion (default 64)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count (default 3)")
    parser.add_argument("--token-range", default="256:8000", help="ids to draw from, LOW:HIGH")
    parser.add_argument("--seed", type=int, default=0, help="decides all prompts")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="draw throughput against clients here (SVG)")
    return parser


@contextmanager
def target_of(options: argparse.Namespace) -> Iterator[Target]:
    """The server that was named, or one of our own. ValueError for a URL that is not to be asked."""
    if options.url:
        yield Target.parse(options.url, key=os.environ.get("OPENAI_API_KEY"), allow_remote=options.allow_remote)
        return
    with serve(options.model) as server:
        yield Target.parse(server.url)


def main() -> int:
    options = arguments().parse_args()
    at_start = measure.begin()
    with target_of(options) as target:
        figures = Sweep(target, options).run()
    print(table(figures))
    measure.write_report(options.json, "sweep", {"clients": figures}, at_start)
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        options.plot.write_text(picture(figures), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
