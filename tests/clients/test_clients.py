"""Every real client works against real servers. `make clients` prints the same checks as a table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .run import CLIENTS, Bench, Installed, Shaped, bench, run_client


@pytest.fixture(scope="module")
def on() -> Iterator[Bench]:
    with bench() as running:
        yield running


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(client, id=client.name, marks=[] if isinstance(client, Shaped) else [pytest.mark.slow])
        for client in CLIENTS
    ],
)
def test_a_client_works(on: Bench, client: Installed | Shaped) -> None:
    report = run_client(client, on)
    if report.skipped:
        pytest.skip(f"{client.name} COULD NOT BE INSTALLED: {report.skipped}")
    assert report.checks
    assert not report.failed, "\n".join(f"{name}\n{why}" for name, why in report.failed)
