"""The benchmark of abusive requests sees what happens meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import asdict

import pytest
from benchmarks.abuse import QUEUE, HealthPoller, cost_of
from benchmarks.abusive_requests import ABUSIVE_REQUESTS
from benchmarks.render_abuse import abuse_section
from benchmarks.server_process import serve

STOPPED_SECONDS = 0.5


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="stops a process by a signal")
def test_a_server_that_stands_still_is_seen_and_a_refused_body_is_reported() -> None:
    with serve("toy") as server:
        poller = HealthPoller(server)
        poller.wait_until_busy()
        began = time.perf_counter()
        os.kill(server.pid, signal.SIGSTOP)
        threading.Timer(STOPPED_SECONDS, os.kill, (server.pid, signal.SIGCONT)).start()
        time.sleep(2 * STOPPED_SECONDS)
        poller.stop()
        assert poller.longest_ms(began) > STOPPED_SECONDS * 900
        cost = cost_of(server, "toy", ABUSIVE_REQUESTS[0], num_bytes=200_000, limit=20)
    assert cost.status == 400 and 0 < cost.num_bytes < 1000 and cost.num_refused == 0
    assert cost.health_ms > 0 and cost.stream_ms > 0
    lines = abuse_section(
        {"bytes": 200_000, "limit": 20, "requests": {"one": {"before": asdict(cost), "now": asdict(cost)}}}
    )
    assert lines[-1].count(" → ") == 6 and "400 → 400" in lines[-1]


def test_names_are_distinct_and_bodies_have_the_size_that_was_asked_for() -> None:
    requests = (*ABUSIVE_REQUESTS, QUEUE)
    assert len({request.name for request in requests}) == len(requests)
    sizes = [len(request.make_body("toy", 100_000)) for request in requests]
    assert max(sizes) <= 260_000 and sum(size > 90_000 for size in sizes) >= 16
