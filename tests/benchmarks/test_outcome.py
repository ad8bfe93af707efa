"""From responses to figures."""

from __future__ import annotations

import json

import pytest
from benchmarks.http_client import Received
from benchmarks.measure import percentile
from benchmarks.outcome import Objective, Outcome, parse_outcome, steady_tok_s, summarise, table
from benchmarks.workload import Workload


def stream(*events: object) -> Received:
    """Return a stream whose event i arrives i seconds after the request."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    reads = []
    for event in (*events, "[DONE]"):
        data = b"data: " + (event if isinstance(event, str) else json.dumps(event)).encode() + b"\n\n"
        reads.append(b"%x\r\n%s\r\n" % (len(data), data))
    reads[0] = head + reads[0]
    reads[-1] += b"0\r\n\r\n"
    times = [float(number) for number in range(1, len(reads) + 1)]
    return Received(0.0, reads, times, times[-1])


CHOICE = {"choices": [{"text": "a", "index": 0}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}


def test_tokens_come_from_usage_and_times_from_chunks_with_a_choice() -> None:
    outcome = parse_outcome(stream(CHOICE, CHOICE, CHOICE, USAGE))
    assert (outcome.tokens, outcome.chunks, outcome.prompt_tokens) == (4, 3, 9)
    assert (outcome.ttft, outcome.gaps, outcome.error) == (1.0, [1.0, 1.0], None)


def test_a_stream_without_done_has_failed() -> None:
    complete = stream(CHOICE, {"error": {"message": "broken"}})
    complete.reads[-1] = b"0\r\n\r\n"
    assert parse_outcome(complete).error == "stream without [DONE]"


def test_an_error_status_has_failed() -> None:
    refused = Received(0.0, [b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\n{}"], [1.0], 1.0)
    assert parse_outcome(refused).error == "status 503"


def test_the_steady_rate_counts_neither_the_first_nor_the_last_requests() -> None:
    """Two clients, each with one chunk per second, and slower when alone at the end."""

    def one(sent: float, pace: float = 1.0) -> Outcome:
        return Outcome(sent, sent + 4 * pace, ttft=pace, gaps=[pace] * 3, tokens=8, chunks=4)

    outcomes = [one(0.0), one(1.0), one(4.0), one(5.0), one(8.0), one(9.0), one(12.0, 3.0)]
    assert steady_tok_s(outcomes, 2) == 4.0
    assert steady_tok_s(outcomes[:5], 2) is None


def test_rates_count_complete_responses_from_the_first_request_to_the_last_response() -> None:
    outcomes = [
        Outcome(10.0, 12.0, ttft=0.5, gaps=[0.5], tokens=6, chunks=2),
        Outcome(11.0, 14.0, ttft=1.5, gaps=[1.0], tokens=2, chunks=2),
        Outcome(11.0, 11.5, error="status 503"),
    ]
    figures = summarise(outcomes, Objective(ttft=1.0, mean_itl=1.0))
    assert (figures["output_tok_s"], figures["wall_s"]) == (2.0, 4.0)
    assert figures["failed"] == {"status 503": 1}
    assert (figures["goodput_requests_s"], figures["good_share"]) == (0.25, pytest.approx(1 / 3))
    assert figures["ttft_ms"]["p50"] == 1000.0
    assert "FAILED 1 × status 503" in table(figures)


def test_a_run_without_responses_has_no_latencies() -> None:
    figures = summarise([Outcome(0.0, 1.0, error="timeout")])
    assert figures["itl_ms"]["p99"] is None and figures["output_tok_s"] == 0
    assert "–" in table(figures)


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (50, 2.5), (100, 4.0)])
def test_percentiles_are_interpolated(percent: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == value


def test_prompts_are_repeatable_and_differ_after_the_shared_part() -> None:
    workload = Workload("m", prompt=20, shared=12, tokens=(5, 900))
    one, two = workload.prompt_ids(1), workload.prompt_ids(2)
    assert one == workload.prompt_ids(1) and one != two
    assert one[:12] == two[:12] and len(one) == 20 and all(5 <= token < 900 for token in one)
    assert workload.prompt_text(1).split()[:12] == workload.prompt_text(2).split()[:12]


def test_extra_fields_take_precedence_and_the_request_seed_counts_up() -> None:
    body = Workload("m", request_seed=40, extra={"temperature": 0, "n": 2}).body(2)
    assert (body["seed"], body["temperature"], body["n"]) == (42, 0, 2)
    assert "seed" not in Workload("m").body(2)
