"""The benchmark of traces measures both servers, and the spans of one of them are taken."""

from __future__ import annotations

import httpx2
import pytest
from benchmarks.traces import arguments, collector, run

from tests.waiting import PATIENCE_SECONDS

pytest.importorskip("opentelemetry.sdk")


def test_the_collector_accepts_spans() -> None:
    with collector() as url:
        assert httpx2.post(f"{url}/v1/traces", content=b"x", timeout=PATIENCE_SECONDS).status_code == 200


@pytest.mark.slow
def test_both_servers_are_measured() -> None:
    options = arguments().parse_args(
        ["--clients", "2", "--out", "4", "--prompt", "8", "--rounds", "1", "--waves", "1", "--sessions", "2"]
    )
    assert set(run(options)) == {"2"}
