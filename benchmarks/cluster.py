"""What a cluster adds and what it scales to: output tokens per second with 1, 2 and 4 replicas, and one process for
comparison.

The replicas' engines sleep in each step, as one that waits for a GPU would, so that several fit on this machine and the
figures show the cost of everything else: the server of the API (the face), Ray, and the replicas' own processes. The
same requests go in turns to `onward serve` with such an engine in its own process, and a face over a cluster.
`python -m benchmarks.cluster`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import measure, sleeping_server
from benchmarks.cluster_servers import SleepingCluster, face, sleeping_cluster, wait_for_replicas, workload
from benchmarks.http_client import Target
from benchmarks.load import Bounds, LoadGenerator, run_async
from benchmarks.measure import BenchmarkError
from benchmarks.outcome import Outcome, summarise
from benchmarks.processes import cpu_seconds
from benchmarks.server_process import Server, serve

PROGRAM = (sys.executable, "-m", sleeping_server.NAME)


@dataclass(frozen=True, slots=True)
class Turn:
    """Output tokens per second while all clients had a request; p50 of the time to first token and between chunks, and
    p99 of the latter, in milliseconds; microseconds of the server's processor time per output token."""

    tok_s: float
    ttft_ms: float
    itl_ms: float
    itl_p99_ms: float
    cpu_us: float


class Turns:
    """Sends load. Each turn has prompts of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._seeds = itertools.count()

    def take(self, server: Server, clients: int) -> Turn:
        """Run a closed loop. Raises BenchmarkError if a request fails."""
        options, requests = self._options, clients * self._options.waves
        load = LoadGenerator(
            Target.parse(server.url), workload(options.out, next(self._seeds)), Bounds(requests, timeout=300.0)
        )
        before = cpu_seconds(server.pid) or 0.0
        outcomes = run_async(lambda: load.closed_loop(clients))
        used = (cpu_seconds(server.pid) or 0.0) - before
        figures = summarise(outcomes)
        if figures["failed"] or figures["output_tokens"] != options.out * requests:
            raise BenchmarkError(f"{figures['output_tokens']} output tokens; failed requests: {figures['failed']}")
        itl = figures["itl_ms"]
        return Turn(
            busy_rate(outcomes), figures["ttft_ms"]["p50"], itl["p50"], itl["p99"],
            used * 1e6 / figures["output_tokens"],
        )  # fmt: skip


def busy_rate(outcomes: Sequence[Outcome]) -> float:
    """Return tokens per second while every client had a request: from the first one sent to the last one sent."""
    begin, end = min(each.sent for each in outcomes), max(each.sent for each in outcomes)
    tokens = sum(each.tokens * bisect_right(each.chunk_times, end) / each.chunks for each in outcomes)
    return tokens / (end - begin)


def measure_overhead(cluster: SleepingCluster, turns: Turns, options: argparse.Namespace) -> dict[str, Any]:
    """Compare a face over one replica with one process, by numbers of clients."""
    os.environ[sleeping_server.STEP_SECONDS] = str(options.step_ms / 1e3)
    cluster.scale(1)
    found: dict[str, Any] = {}
    flags = ("--engine-process", "off", "--max-rows", str(options.rows))
    with ExitStack() as stack:
        one_process = stack.enter_context(serve("toy", *flags, program=PROGRAM))
        through_face = stack.enter_context(face(cluster))
        wait_for_replicas(through_face, 1)
        for clients in options.overhead_clients:
            arms = {"one process": one_process, "face": through_face}
            for server in arms.values():
                turns.take(server, clients)
            rounds = [
                {name: turns.take(arms[name], clients) for name in (arms if number % 2 else reversed(arms))}
                for number in range(options.rounds)
            ]
            found[str(clients)] = {
                **{name: median_turn([each[name] for each in rounds]) for name in arms},
                "throughput_ratio": measure.median_of(
                    [each["face"].tok_s / each["one process"].tok_s for each in rounds]
                ),
            }
    return found


def measure_scale(cluster: SleepingCluster, turns: Turns, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures by number of replicas, each with as many clients as its engines have rows."""
    rounds: list[dict[int, Turn]] = []
    for number in range(options.rounds + 1):
        taken: dict[int, Turn] = {}
        for replicas in options.replicas:
            cluster.scale(replicas)
            with face(cluster) as server:
                wait_for_replicas(server, replicas)
                turns.take(server, replicas * options.rows // 2)
                taken[replicas] = turns.take(server, replicas * options.rows)
        if number:  # the first one warms up
            rounds.append(taken)
    least = min(options.replicas)
    return {
        str(replicas): {
            **median_turn([each[replicas] for each in rounds]),
            "scaling": measure.median_of([each[replicas].tok_s / each[least].tok_s for each in rounds]),
        }
        for replicas in options.replicas
    }


def median_turn(turns: Sequence[Turn]) -> dict[str, float]:
    """Return the medians of turns."""
    columns = [asdict(turn) for turn in turns]
    return {name: statistics.median(column[name] for column in columns) for name in columns[0]}


def table(figures: dict[str, Any]) -> str:
    """Return the figures as tables for the terminal."""
    lines = [f"{'clients':>8}{'one process':>13}{'face':>9} tok/s{'ratio':>8} (range)   TTFT, one process and face"]
    for clients, found in figures["overhead"].items():
        one, other, ratio = found["one process"], found["face"], found["throughput_ratio"]
        lines.append(
            f"{clients:>8}{one['tok_s']:13.0f}{other['tok_s']:9.0f}{ratio['median']:14.1%} "
            f"({ratio['least']:.1%} to {ratio['greatest']:.1%}){one['ttft_ms']:9.1f}{other['ttft_ms']:9.1f} ms"
        )
    lines.append(f"{'replicas':>8}{'tok/s':>9}{'scaling':>9} (range){'TTFT':>17}{'chunk p50':>12}{'p99':>8} ms"
                 f"{'CPU per token':>15}")  # fmt: skip
    for replicas, found in figures["scale"].items():
        scaling = found["scaling"]
        lines.append(
            f"{replicas:>8}{found['tok_s']:9.0f}{scaling['median']:9.2f} ({scaling['least']:.2f} to "
            f"{scaling['greatest']:.2f}){found['ttft_ms']:9.1f}{found['itl_ms']:12.1f}{found['itl_p99_ms']:8.1f}   "
            f"{found['cpu_us']:12.1f} µs"
        )
    if figures["scale"]:
        cpu_us = list(figures["scale"].values())[-1]["cpu_us"]
        lines.append(f"One face carries about {1e6 / cpu_us:,.0f} tokens per second on a core of its own.")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything; return the figures. Raises BenchmarkError."""
    turns = Turns(options)
    room = max(options.replicas, default=1)
    with sleeping_cluster(options.step_ms / 1e3, options.rows, nodes=1, cpus=2 * room) as cluster:
        overhead = measure_overhead(cluster, turns, options) if options.overhead_clients else {}
        scale = measure_scale(cluster, turns, options) if options.replicas else {}
    return {"overhead": overhead, "scale": scale}


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("cluster", __doc__)
    parser.add_argument("--replicas", type=int, nargs="*", default=[1, 2, 4],
                        help="replicas (default 1 2 4; may be empty)")  # fmt: skip
    parser.add_argument("--step-ms", type=float, default=40.0, help="time of an engine's step (default 40)")
    parser.add_argument("--rows", type=int, default=32, help="rows of an engine, and clients per replica (default 32)")
    parser.add_argument("--overhead-clients", type=int, nargs="*", default=[8, 32], metavar="N",
                        help="clients of the comparison with one process (default 8 32; may be empty)")  # fmt: skip
    parser.add_argument("--out", type=int, default=128, help="tokens per completion (default 128)")
    parser.add_argument("--waves", type=int, default=3, help="requests per client (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds (default 3)")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    figures = run(options)
    print(table(figures))
    report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
