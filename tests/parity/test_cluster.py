"""The parity table and real clients on a face over a cluster, as on a single process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import pytest

from tests.clients.run import CLIENTS, Bench, run_client
from tests.engines.cluster.simulated import SimulatedCluster
from tests.parity.rows import ROWS
from tests.parity.servers import Server, Servers

if not sys.platform.startswith("linux"):
    pytest.skip("finds processes in /proc", allow_module_level=True)
pytest.importorskip("ray", reason="needs Ray: pip install 'onward[cluster]'")

pytestmark = [pytest.mark.slow, pytest.mark.companion]
TESTED_CLIENTS = ("openai (Python)", "openai (Node) 6", "openai-go", "LangChain OpenAI()", "curl (editors)")
ONE_PROCESS = {"guarded", "team"}
"""Profiles whose flags are for an engine in the server, or that concern no engine at all."""
STEP_BY_STEP = {"stream.usage_running"}
"""Rows that expect an event per token: replicas send several at a time."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        with SimulatedCluster(nodes=2) as simulated:
            simulated.order("serve", model="toy", replicas=2)
            yield simulated.address


@pytest.fixture(scope="module")
def faces(address: str) -> Iterator[Servers]:
    """The servers of the table, by profile."""
    running = Servers(partial(Server, "--cluster", address, model=None))
    yield running
    running.close()


def test_the_parity_table_holds_on_a_cluster(faces: Servers) -> None:
    """All rows at once: a test each would be a thousand more for the same reason."""
    rows = [row for row in ROWS if row.on not in ONE_PROCESS and row.id not in STEP_BY_STEP]
    failed = [problem for row in rows if (problem := row.problem(faces[row.on])) is not None]
    assert failed == []
    assert len(rows) > 0.9 * len(ROWS)


class ClusterBench(Bench):
    """Its servers of the toy model are faces over a cluster."""

    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__()

    def _start(self, *flags: str, model: str = "toy") -> Server:
        assert model == "toy"
        server = Server(*flags, "--cluster", self._address, model=None)
        self._stack.callback(server.close)
        return server


@pytest.fixture(scope="module")
def bench(address: str) -> Iterator[ClusterBench]:
    on = ClusterBench(address)
    yield on
    on.close()


@pytest.mark.parametrize("name", TESTED_CLIENTS)
def test_a_real_client_works_on_a_cluster(bench: ClusterBench, name: str) -> None:
    (client,) = (client for client in CLIENTS if client.name == name)
    report = run_client(client, bench)
    if report.skipped:
        pytest.skip(report.skipped)
    assert report.checks and not report.failed, report.failed
