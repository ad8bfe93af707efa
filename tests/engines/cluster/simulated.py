"""A Ray cluster of several nodes on this machine, in a process of its own that follows orders.

`python -m tests.engines.cluster.simulated NODES` reads an order per line, an object of JSON, from standard
input, and writes a line with its result. `SimulatedCluster` is the other side.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

APPLICATION = "onward-toy"
OBJECT_STORE_BYTES = 80 * 2**20


class SimulatedCluster:
    """A cluster that runs until the end of a with statement. `address` is for `--cluster`."""

    def __init__(self, nodes: int = 2, *, cpus: int = 2) -> None:
        environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engines.cluster.simulated", str(nodes), str(cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.address: str = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def order(self, do: str, **arguments: Any) -> Any:
        """Send the cluster an order; return its result. See the functions below."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@@"):
                result = json.loads(line[2:])
                if "error" in result:
                    raise AssertionError(result["error"])
                return result["result"]
        raise AssertionError(f"the cluster's process ended with {self._process.wait(60)}")


class _Orders:
    """What a cluster can do on order."""

    def __init__(self, nodes: int, cpus: int) -> None:
        from ray.cluster_utils import Cluster

        self._cpus = cpus
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._workers = [self._add() for _ in range(nodes)]
        self._frozen: list[tuple[Any, list[int]]] = []
        """Nodes that were frozen, each with the processes that its raylet had started."""
        import ray

        ray.init(address=self._cluster.address, log_to_driver=False, configure_logging=False)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=self._cpus, object_store_memory=OBJECT_STORE_BYTES)

    def deploy(self, **arguments: Any) -> None:
        """Serve sleeping replicas; see `sleeping.build_sleeping`. Waits until they run."""
        self.begin_deploy(**arguments)
        from onward.engines.cluster.control import wait_until_running

        wait_until_running([APPLICATION], lambda words: None, 120.0)

    def begin_deploy(self, **arguments: Any) -> None:
        """As `deploy`, without waiting."""
        from ray import serve

        from tests.engines.cluster.sleeping import build_sleeping

        serve.start(proxy_location="Disabled")
        target = serve.RunTarget(target=build_sleeping(**arguments), name=APPLICATION, route_prefix=None)
        serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)

    def serve(self, *, seconds: float = 120.0, **table: Any) -> None:
        """Serve one model, as a table of cluster.toml says, as `onward cluster up` does. Waits until it runs, for so
        long."""
        from onward.engines.cluster.config import parse_config
        from onward.engines.cluster.control import deploy

        deploy(parse_config({"model": [table]}, "the test"), lambda words: None, seconds)

    def remove(self) -> None:
        """Remove all models, as `onward cluster down` does."""
        from onward.engines.cluster.control import remove_all

        remove_all(lambda words: None)

    def add_node(self) -> None:
        """Add a node."""
        self._workers.append(self._add())

    def kill_node(self, seed: int) -> int:
        """Kill a node with all its processes; returns how many are left besides the head."""
        node = random.Random(seed).choice(self._workers)
        self._workers.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)
        return len(self._workers)

    def freeze_node(self, seed: int) -> None:
        """Stop all processes of a node, as if its cable were pulled: its connections stay open, and nothing comes."""
        node = random.Random(seed).choice(self._workers)
        self._workers.remove(node)
        raylets = {process.process.pid for process in node.all_processes.get("raylet", [])}
        children = list(_children_of(raylets))
        self._frozen.append((node, children))
        for pid in [*children, *raylets]:
            os.kill(pid, signal.SIGSTOP)

    def kill_frozen(self) -> None:
        """Kill the nodes that were frozen."""
        while self._frozen:
            node, children = self._frozen.pop()
            self._cluster.remove_node(node, allow_graceful=False)
            for pid in children:  # stopped, they do not notice that their raylet has ended
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def kill_replica(self, seed: int) -> int:
        """Kill the process of a replica; returns how many there were."""
        found = self.replicas()
        if found:
            os.kill(random.Random(seed).choice(found), signal.SIGKILL)
        return len(found)

    def count_replicas(self) -> int:
        """Return how many replicas run."""
        from ray import serve

        state = serve.status().applications.get(APPLICATION)
        counts = [deployment.replica_states for deployment in state.deployments.values()] if state else []
        return sum(count for states in counts for name, count in states.items() if str(name).endswith("RUNNING"))

    def kill_gcs(self) -> None:
        """Kill the head's control store."""
        self._cluster.head_node.kill_gcs_server()

    def replicas(self) -> list[int]:
        """Return the processes of replicas, which are children of the nodes' raylets."""
        parents = {
            process.process.pid
            for node in self._cluster.list_all_nodes()
            for process in node.all_processes.get("raylet", [])
        }
        return sorted(pid for pid, words in _children_of(parents).items() if words.startswith(b"ray::ServeReplica"))

    def end(self) -> None:
        """Stop every process."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def _children_of(parents: set[int]) -> dict[int, bytes]:
    """Return the command lines of the children of processes, by their ids."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            parent = int((path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent in parents:
            found[int(path.name)] = words
    return found


def main() -> None:
    orders = _Orders(int(sys.argv[1]), int(sys.argv[2]))
    print("@@" + json.dumps({"result": orders.address}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            result: Any = {"result": getattr(orders, order.pop("do"))(**order)}
        except Exception as error:
            result = {"error": repr(error)}
        print("@@" + json.dumps(result), flush=True)
    orders.end()


if __name__ == "__main__":
    main()
