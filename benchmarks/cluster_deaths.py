"""How long streams are silent when what computes them dies: replicas, nodes, and a node that is cut off without notice.

Closed-loop clients stream from a face over a cluster on simulated nodes of this machine, whose engines sleep in each
step. Then something is killed, again and again, and the longest time without a chunk is taken over all running streams.
No stream may fail or end early. Part of that time is replay: the replica that resumes a stream recomputes the tokens
that the stream already has. Replay is measured on an idle engine of the same kind, for as many tokens.
`python -m benchmarks.cluster_deaths`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import measure
from benchmarks.cluster_servers import PROMPT, SleepingCluster, face, sleeping_cluster, wait_for_replicas, workload
from benchmarks.http_client import Target
from benchmarks.load import Bounds, LoadGenerator, run_async
from benchmarks.measure import BenchmarkError
from benchmarks.outcome import Outcome
from benchmarks.replay import ReplayTimer
from benchmarks.server_process import Server

NODES = 3
BEFORE_SECONDS = 3.0
"""From the first request to the kill."""


def kill_replica(cluster: SleepingCluster, seed: int) -> None:
    """Kill the process of a replica."""
    cluster.order("kill_replica", seed=seed)


def kill_node(cluster: SleepingCluster, seed: int) -> None:
    """Kill all processes of a node."""
    cluster.order("kill_node", seed=seed)


def cut_off_node(cluster: SleepingCluster, seed: int) -> None:
    """Stop all processes of a node: its connections stay open, and nothing comes."""
    cluster.order("freeze_node", seed=seed)


def kill_head(cluster: SleepingCluster, seed: int) -> None:
    """Kill the head's control store."""
    cluster.order("kill_gcs")


KILLS: dict[str, Callable[[SleepingCluster, int], None]] = {
    "replica": kill_replica,
    "node": kill_node,
    "node cut off": cut_off_node,
    "head": kill_head,
}


@dataclass(frozen=True, slots=True)
class Silence:
    """Seconds without a chunk in one stream. `chunks`: how many it had before, of a token or more each; 0 while it
    waited for the first."""

    seconds: float
    chunks: int


def silences(outcomes: Sequence[Outcome], begin: float, end: float) -> list[Silence]:
    """Return the times without a chunk that ended between two times, of all streams."""
    found = []
    for each in outcomes:
        times = [each.sent, *each.chunk_times]
        gaps = itertools.pairwise(times)
        found += [Silence(later - earlier, had) for had, (earlier, later) in enumerate(gaps) if begin < later <= end]
    return found


def longest_silences(
    server: Server, options: argparse.Namespace, seed: int, kill: Callable[[], None]
) -> tuple[Silence, Silence]:
    """Run a load, kill something while it runs; return the longest silence before and after it.

    Raises BenchmarkError if a stream fails or ends early.
    """
    requests = options.clients * options.waves
    load = LoadGenerator(Target.parse(server.url), workload(options.out, seed), Bounds(requests, timeout=120.0))
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(run_async(lambda: load.closed_loop(options.clients))))
    thread.start()
    time.sleep(BEFORE_SECONDS)
    killed = time.perf_counter()
    kill()
    thread.join()
    failed = {each.error for each in outcomes if each.error}
    if failed or any(each.tokens != options.out for each in outcomes) or len(outcomes) != requests:
        raise BenchmarkError(f"streams failed or ended early: {failed}")
    before, after = silences(outcomes, 0.0, killed), silences(outcomes, killed, math.inf)
    return max(before, key=lambda each: each.seconds), max(after, key=lambda each: each.seconds)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Kill everything in turn; return the figures by what was killed. Raises BenchmarkError."""
    found: dict[str, list[tuple[Silence, Silence]]] = {name: [] for name in options.kinds}
    seeds = itertools.count(1)
    with sleeping_cluster(options.step_ms / 1e3, 32, nodes=NODES, cpus=1) as cluster:
        cluster.scale(NODES)
        with face(cluster) as server:
            for number in range(options.kills):
                for name in options.kinds:
                    if name == "head" and number < options.kills - 1:  # nothing here recovers from it, so it comes last
                        continue
                    wait_for_replicas(server, NODES)
                    if name in ("node", "node cut off"):
                        cluster.order("add_node")
                    seed = next(seeds)
                    kill = partial(KILLS[name], cluster, seed)
                    found[name].append(longest_silences(server, options, seed, kill))
                    cluster.order("kill_frozen")
    from tests.engines.cluster.sleeping import sleeping_engine  # needs Ray, as all of this does

    timer = ReplayTimer(sleeping_engine(options.step_ms / 1e3, "replay", 32), PROMPT)
    timer.start()
    try:
        return {name: figures_of(each, timer) for name, each in found.items()}
    finally:
        timer.stop()


def figures_of(found: Sequence[tuple[Silence, Silence]], timer: ReplayTimer) -> dict[str, float]:
    """Return the figures of one kind, in milliseconds."""
    after = [each for _, each in found]
    replays = [timer.seconds(each.chunks) if each.chunks else 0.0 for each in after]
    rest = [each.seconds - replay for each, replay in zip(after, replays, strict=True)]
    return {
        "kills": len(found),
        "before_ms": statistics.median(before.seconds for before, _ in found) * 1e3,
        "median_ms": statistics.median(each.seconds for each in after) * 1e3,
        "longest_ms": max(each.seconds for each in after) * 1e3,
        "replay_median_ms": statistics.median(replays) * 1e3,
        "without_replay_median_ms": statistics.median(rest) * 1e3,
        "without_replay_longest_ms": max(rest) * 1e3,
    }


def table(figures: dict[str, Any]) -> str:
    """Return the figures as a table for the terminal."""
    lines = [
        "the longest silence of a stream, ms",
        f"{'killed':<14}{'times':>6}{'longest':>9}{'median':>8}{'of it replay':>14}{'without: longest':>18}"
        f"{'median':>8}{'before the kill':>17}",
    ]
    for name, each in figures.items():
        lines.append(
            f"{name:<14}{each['kills']:>6}{each['longest_ms']:>9,.0f}{each['median_ms']:>8,.0f}"
            f"{each['replay_median_ms']:>14,.0f}{each['without_replay_longest_ms']:>18,.0f}"
            f"{each['without_replay_median_ms']:>8,.0f}{each['before_ms']:>17,.0f}"
        )
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("cluster_deaths", __doc__)
    parser.add_argument("--kills", type=int, default=5, help="of each kind (default 5)")
    parser.add_argument("--kinds", nargs="+", choices=list(KILLS), default=list(KILLS), metavar="KIND",
                        help="what is killed in turn, the head once (default all): " + ", ".join(KILLS))  # fmt: skip
    parser.add_argument("--clients", type=int, default=24, help="streams at a time (default 24)")
    parser.add_argument("--step-ms", type=float, default=20.0, help="time of an engine's step (default 20)")
    parser.add_argument("--out", type=int, default=150, help="tokens per completion (default 150)")
    parser.add_argument("--waves", type=int, default=3, help="requests per client and kill (default 3)")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    figures = run(options)
    print(table(figures))
    report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
