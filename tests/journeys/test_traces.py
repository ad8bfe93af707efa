"""A real server whose traces go to a collector that accepts them, is slow, or is unreachable: no request is
affected."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.compose.test_telemetry import Collector, collecting
from tests.journeys.test_handover import Clients
from tests.processes import served
from tests.test_tracing import PARENT
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


def test_a_request_is_traced_from_its_client_to_its_last_token(collector: Collector) -> None:
    with served("--otlp-endpoint", collector.url, "--trace-ratio", "0") as url:
        body = {"model": "toy", "prompt": "a very private prompt " * 50, "max_tokens": 8, "ignore_eos": True}
        for headers in ({"traceparent": PARENT}, {}):
            answer = httpx2.post(f"{url}/v1/completions", json=body, headers=headers, timeout=PATIENCE_SECONDS)
            assert answer.status_code == 200
        wait_for(lambda: len(collector.spans) == 6)  # a server that ends waits only some seconds
    spans = {span.name: span for span in collector.spans}
    assert sorted(spans) == [
        "POST /v1/completions", "decode", "engine", "prefill", "queue", "text_completion toy"
    ] and len(collector.spans) == 6  # fmt: skip
    assert {span.trace_id.hex() for span in collector.spans} == {PARENT[3:35]}
    assert spans["queue"].end_time_unix_nano == spans["prefill"].start_time_unix_nano
    assert spans["prefill"].end_time_unix_nano > spans["prefill"].start_time_unix_nano, "measured by the engine"
    assert "private" not in str(collector.requests)


def test_no_request_waits_for_a_collector_or_is_lost_with_it(collector: Collector) -> None:
    collector.answers.clear()
    with served("--otlp-endpoint", collector.url) as url, Clients(url) as clients:
        wait_for(lambda: clients.problems or clients.num_answers >= 400)
        collector.close()
        seen = clients.num_answers
        wait_for(lambda: clients.problems or clients.num_answers >= seen + 200)
        metrics = httpx2.get(f"{url}/metrics", timeout=PATIENCE_SECONDS).text
        assert "onward_trace_spans_total" in metrics
    assert not clients.problems
