"""The overload benchmark distinguishes accepted, rejected and failed requests; an overloaded server loses none."""

from __future__ import annotations

from argparse import Namespace

import pytest
from benchmarks.http_client import Received
from benchmarks.outcome import Outcome, parse_outcome
from benchmarks.overload import arguments, problems, run, summary

ACCEPTED = Outcome(0.0, 2.0, ttft=1.0, tokens=1, chunks=1)


def rejected(seconds: float = 0.01, retry_after: str | None = "3") -> Outcome:
    return Outcome(0.0, seconds, error="status 503", retry_after=retry_after)


def test_a_rejection_has_the_retry_after_of_its_response() -> None:
    response = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}"
    outcome = parse_outcome(Received(1.0, [response], [1.5], 1.5))
    assert (outcome.error, outcome.retry_after, outcome.seconds) == ("status 503", "7", 0.5)


def test_accepted_and_rejected_requests_are_not_problems() -> None:
    figures = summary([ACCEPTED, rejected(0.02), rejected(0.04, "5")])
    assert (figures["requests"], figures["accepted"], figures["rejected"]) == (3, 1, 2)
    assert figures["rejection_ms"]["p50"] == pytest.approx(30.0)
    assert figures["retry_after_s"]["mean"] == 4.0
    assert figures["ttft_ms"]["p50"] == 1000.0
    assert problems(figures, limit_ms=100.0) == []


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ([ACCEPTED], "no request was rejected"),
        ([ACCEPTED, rejected(0.2)], "took longer than 200 ms; the limit is 100 ms"),
        ([rejected(retry_after=None)], "1 rejections had no Retry-After"),
        ([rejected(retry_after="0")], "1 rejections had no Retry-After"),
        ([rejected(), Outcome(0.0, 1.0, error="timeout")], "1 requests ended with: timeout"),
        ([rejected(), Outcome(0.0, 1.0, error="status 500")], "1 requests ended with: status 500"),
    ],
)
def test_everything_else_is_a_problem(outcomes: list[Outcome], words: str) -> None:
    (problem,) = problems(summary(outcomes), limit_ms=100.0)
    assert words in problem


def options(*flags: str) -> Namespace:
    small = "--model toy --token-range 97:123 --prompt 20 --out 100 --seconds 2 --calibration 1 --clients 4"
    return arguments().parse_args([*small.split(), *flags])


@pytest.mark.slow
@pytest.mark.parametrize("process", ["on", "off"])
def test_an_overloaded_server_completes_what_it_accepts_and_rejects_the_rest(process: str) -> None:
    figures = run(options("--serve", f"--max-rows 4 --max-waiting 4 --engine-process {process}"))
    assert figures["failed"] == {}
    assert figures["accepted"] and figures["rejected"]
    assert not figures["rejected_without_retry_after"]
