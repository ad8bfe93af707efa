"""A cluster on this machine whose engines sleep in each step, and the servers of the API over it."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from tests.engines.cluster.simulated import SimulatedCluster

from benchmarks.measure import BenchmarkError
from benchmarks.server_process import Server, serve
from benchmarks.workload import Workload

GUARD_SECONDS = 120.0
TOKENS = (97, 123)
"""Letters: the toy model's tokens are bytes."""
PROMPT = 64
"""Tokens per prompt."""


class SleepingCluster:
    """Replicas of a toy model with steps of `seconds` and `rows` rows each, on simulated nodes of this machine.

    `nodes` machines, each with room for `cpus` replicas. A context manager.
    """

    def __init__(self, simulated: SimulatedCluster, seconds: float, rows: int) -> None:
        self._simulated, self._seconds, self._rows = simulated, seconds, rows
        self.order: Callable[..., object] = simulated.order
        self.address = simulated.address

    def scale(self, replicas: int) -> None:
        """Scale to this many replicas; wait until exactly that many run. Raises BenchmarkError."""
        deployment = {"seconds": self._seconds, "fingerprint": "fp_sleeping", "max_rows": self._rows}
        self._simulated.order("deploy", replicas=replicas, drain_seconds=5.0, **deployment)
        wait_for(f"{replicas} replicas", lambda: self._simulated.order("count_replicas") == replicas)


@contextmanager
def sleeping_cluster(seconds: float, rows: int, *, nodes: int, cpus: int) -> Iterator[SleepingCluster]:
    """Run a cluster until the block ends. Raises BenchmarkError without Ray."""
    if find_spec("ray") is None:
        raise BenchmarkError("this needs Ray: pip install 'onward[cluster]'")
    os.environ["RAY_AUTH_MODE"] = "disabled"  # as on the simulated nodes; the servers need it too
    with SimulatedCluster(nodes=nodes, cpus=cpus) as simulated:
        yield SleepingCluster(simulated, seconds, rows)


@contextmanager
def face(cluster: SleepingCluster) -> Iterator[Server]:
    """Run a server of the API over a cluster."""
    with serve(None, "--cluster", cluster.address) as server:
        yield server


def wait_for_replicas(server: Server, replicas: int) -> None:
    """Wait until a server knows exactly these replicas. Raises BenchmarkError."""
    wait_for(f"the server to know {replicas} replicas", lambda: metric(server, "onward_engines_answering") == replicas)


def metric(server: Server, name: str) -> float:
    """Return the sum of a metric of a server over its labels."""
    with urllib.request.urlopen(server.url.removesuffix("/v1") + "/metrics", timeout=GUARD_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " ")))


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    """Poll until the condition holds. Raises BenchmarkError after GUARD_SECONDS."""
    deadline = time.monotonic() + GUARD_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"waited too long for {what}")
        time.sleep(0.2)


def workload(out: int, seed: int) -> Workload:
    """Return requests for the toy model with prompts of PROMPT tokens of their own and `out` tokens each."""
    return Workload("toy", prompt=PROMPT, tokens=TOKENS, out=out, seed=seed)
