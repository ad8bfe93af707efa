"""How long streams are silent when what computes them dies: replicas, nodes, and a node that is cut off without a word.

Closed-loop clients stream from a face over a cluster on simulated nodes of this machine, whose engines sleep in each
step. Then something is killed, again and again, and the longest time without a chunk is taken from all streams that
ran. No stream may fail or be short. `python -m benchmarks.cluster_deaths`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.cluster_servers import SleepingCluster, face, sleeping_cluster, wait_for_replicas, workload
from benchmarks.http_client import Target
from benchmarks.load import Bounds, LoadGenerator, run_async
from benchmarks.measure import BenchmarkError
from benchmarks.outcome import Outcome
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
}
"""Those after which the cluster recovers."""


def silences(outcomes: Sequence[Outcome], begin: float, end: float) -> list[float]:
    """Return the seconds without a chunk, of every stream, that ended between two times: waits for first tokens too."""
    found = []
    for each in outcomes:
        times = [each.sent, *each.chunk_times]
        found += [later - earlier for earlier, later in itertools.pairwise(times) if begin < later <= end]
    return found


def longest_silence(
    server: Server, options: argparse.Namespace, seed: int, kill: Callable[[], None]
) -> tuple[float, float]:
    """Run a load, kill something while it runs; return the longest silence before and after it, in seconds.

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
    return max(silences(outcomes, 0.0, killed)), max(silences(outcomes, killed, math.inf))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Kill everything in turn; return the figures by what was killed. Raises BenchmarkError."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in (*KILLS, "head")}
    seeds = itertools.count(1)
    with sleeping_cluster(options.step_ms / 1e3, 32, nodes=NODES, cpus=1) as cluster:
        cluster.scale(NODES)
        with face(cluster) as server:
            for _ in range(options.kills):
                for name, kill in KILLS.items():
                    wait_for_replicas(server, NODES)
                    if kill is not kill_replica:
                        cluster.order("add_node")
                    seed = next(seeds)
                    found[name].append(longest_silence(server, options, seed, lambda: kill(cluster, seed)))  # noqa: B023
                    cluster.order("kill_frozen")
            wait_for_replicas(server, NODES)
            found["head"].append(longest_silence(server, options, next(seeds), lambda: kill_head(cluster, 0)))
    return {
        name: {
            "kills": len(each),
            "before_ms": statistics.median(before for before, _ in each) * 1e3,
            "median_ms": statistics.median(after for _, after in each) * 1e3,
            "longest_ms": max(after for _, after in each) * 1e3,
        }
        for name, each in found.items()
    }


def table(figures: dict[str, Any]) -> str:
    """Return the figures as a table for the terminal."""
    lines = [f"{'killed':<14}{'times':>6}{'longest silence':>18}{'median':>9}{'without a kill':>16} ms"]
    for name, each in figures.items():
        lines.append(
            f"{name:<14}{each['kills']:>6}{each['longest_ms']:>18,.0f}{each['median_ms']:>9,.0f}"
            f"{each['before_ms']:>16,.0f}"
        )
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_deaths", description=__doc__)
    parser.add_argument("--kills", type=int, default=5, help="of each kind (default 5)")
    parser.add_argument("--clients", type=int, default=24, help="streams at a time (default 24)")
    parser.add_argument("--step-ms", type=float, default=20.0, help="time of an engine's step (default 20)")
    parser.add_argument("--out", type=int, default=150, help="tokens per completion (default 150)")
    parser.add_argument("--waves", type=int, default=3, help="requests per client and kill (default 3)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser


def main() -> int:
    options = arguments().parse_args()
    at_start = measure.start()
    figures = run(options)
    print(table(figures))
    measure.write_report(options.json, "cluster_deaths", figures, at_start)
    return 0


if __name__ == "__main__":
    measure.run_main(main)
