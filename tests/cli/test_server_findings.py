"""`onward doctor --server`: the findings for each state of a server."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

import onward
from onward.cli.output.findings import Finding, shown
from onward.cli.server_findings import server_findings
from tests.cli.conftest import onward as run
from tests.processes import served

METRICS = {
    f'onward_build_info{{version="{onward.__version__}"}}': 1,
    "process_start_time_seconds": time.time() - 7_300,
    "process_resident_memory_bytes": 70_000_000,
    'onward_engine_process_resident_memory_bytes{model="m"}': 30_000_000,
    'onward_engine_running{model="m"}': 2,
    'onward_engine_waiting{model="m"}': 0,
    'onward_kv_blocks{model="m"}': 100,
    'onward_kv_blocks_used{model="m"}': 25,
    "process_open_fds": 20,
    "process_max_fds": 1024,
}
READY = {"status": "ready", "detail": "", "models": {"m": {"status": "ready", "detail": ""}}}


DAY = 86_400


def certificate(*, expires_in: float, reason: str = "") -> dict[str, float]:
    """The metrics about the certificate of the server behind model m."""
    place = 'model="m",address="https://gpu:1"'
    said = {f"onward_engine_certificate_expiry_timestamp_seconds{{{place}}}": time.time() + expires_in}
    return said | ({f'onward_engine_certificate_refused{{{place},reason="{reason}"}}': 1} if reason else {})


def date_in(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(time.time() + seconds))


def answering(
    *, metrics: dict[str, float] = METRICS, health: Any = READY, live: Any = None, status: int = 200, ahead: float = 0.0
) -> Callable[[httpx2.Request], httpx2.Response]:
    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {"date": email.utils.formatdate(time.time() + ahead, usegmt=True)}
        match request.url.path:
            case "/live":
                return httpx2.Response(200, json=live or {"status": "live"}, headers=headers)
            case "/health":
                return httpx2.Response(200 if health == READY else 503, json=health)
            case "/metrics":
                text = "".join(f"{name} {value}\n" for name, value in metrics.items())
                return httpx2.Response(status, text=text)
        return httpx2.Response(404)

    return answer


def findings(answer: Callable[[httpx2.Request], httpx2.Response], url: str = "http://server:1") -> dict[str, Finding]:
    found = server_findings(url, "sk-secret", httpx2.MockTransport(answer))
    return {each.subject: each for each in found}


def test_every_finding_about_a_healthy_server_is_good() -> None:
    found = findings(answering())
    assert {each.state for each in found.values()} == {"good"}
    assert found["Server"].words == f"Onward {onward.__version__}, started 2 hours ago"
    assert found["Queue of m"].words == "2 running, 0 waiting, 25% of the KV cache in use"
    assert found["Memory"].words == "100.0 MB resident, of which engines 30.0 MB"


@pytest.mark.parametrize("url", ["http://server:1", "http://server:1/", "http://server:1/v1", "http://server:1/v1/"])
def test_the_url_may_be_that_of_the_api_and_the_key_is_sent(url: str) -> None:
    asked: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return answering()(request)

    findings(answer, url)
    assert [request.url.path for request in asked] == ["/live", "/metrics", "/health"]
    assert {request.headers["authorization"] for request in asked} == {"Bearer sk-secret"}


@pytest.mark.parametrize(
    ("server", "subject", "state", "words"),
    [
        ({"metrics": {'onward_build_info{version="0.0.9"}': 1}}, "Server", "note", "Onward 0.0.9"),
        ({"status": 401}, "Server", "note", "answers, but its metrics need a key"),
        ({"status": 500}, "Server", "note", "GET /metrics has status 500"),
        ({"live": {"x": 1}}, "Server", "bad", None),
        ({"live": [1]}, "Server", "bad", None),
        ({"ahead": 3_700}, "Clock", "note", "61 minutes ahead of this machine's"),
        ({"ahead": -200_000}, "Clock", "note", "2 days behind this machine's"),
        ({"health": READY | {"detail": "The database does not answer."}}, "Health", "note", "ready"),
        ({"health": {"status": "draining", "detail": ""}}, "Health", "note", "draining"),
        ({"health": {"status": "dead", "detail": "x"}}, "Health", "bad", "dead"),
        ({"health": []}, "Health", "bad", None),
        (
            {"health": {"status": "recovering", "models": {"m": {"status": "dead", "detail": "It crashed."}}}},
            "m", "bad", "dead",
        ),
        (
            {"metrics": METRICS | {'onward_engine_waiting{model="m"}': 9, 'onward_kv_blocks_used{model="m"}': 99}},
            "Queue of m", "note", "2 running, 9 waiting, 99% of the KV cache in use",
        ),
        (
            {"metrics": METRICS | {'onward_engine_restarts_total{model="m",reason="hang"}': 2}},
            "Restarts", "note", "engines were started again: 2 after a hang",
        ),
        (
            {"metrics": METRICS | {'onward_engine_poisoned_requests_total{model="m"}': 1}},
            "Poisoned", "bad", "1 request ended engines whenever they were computed, and were refused",
        ),
        (
            {"metrics": METRICS | {'onward_completions_refused_total{model="m",reason="overloaded"}': 3}},
            "Refused", "note", "3 requests with 503, as overloaded",
        ),
        ({"metrics": METRICS | {"onward_database_up": 1}}, "Database", "good", "answers"),
        (
            {"metrics": METRICS | {"onward_database_up": 1, "onward_ledger_rows_waiting": 1}},
            "Database", "good", "answers, 1 row of the ledger to be written",
        ),
        (
            {"metrics": METRICS | {"onward_database_up": 0, "onward_ledger_rows_waiting": 12}},
            "Database", "bad", "does not answer, 12 rows of the ledger to be written",
        ),
        ({}, "Database", "good", "none: no ledger, no keys with limits, no batches"),
        ({"metrics": METRICS | {"process_open_fds": 1_000}}, "Open files", "note", "1000 of 1024"),
        (
            {"metrics": METRICS | certificate(expires_in=40.5 * DAY)},
            "Certificate of https://gpu:1 (m)", "good", f"expires in 40 days, on {date_in(40.5 * DAY)}",
        ),
        (
            {"metrics": METRICS | certificate(expires_in=13.5 * DAY)},
            "Certificate of https://gpu:1 (m)", "note", f"expires in 13 days, on {date_in(13.5 * DAY)}",
        ),
        (
            {"metrics": METRICS | certificate(expires_in=-5.5 * DAY)},
            "Certificate of https://gpu:1 (m)", "bad", f"expired 5 days ago, on {date_in(-5.5 * DAY)}",
        ),
        (
            {"metrics": METRICS | certificate(expires_in=DAY, reason="self-signed certificate")},
            "Certificate of https://gpu:1 (m)", "bad", "is not trusted: self-signed certificate",
        ),
        ({"metrics": METRICS | certificate(expires_in=float("inf"))}, "Certificate of https://gpu:1 (m)", "good", None),
        ({"metrics": METRICS | certificate(expires_in=float("nan"))}, "Certificate of https://gpu:1 (m)", "bad", None),
    ],
)  # fmt: skip
def test_each_problem_of_a_server_is_a_finding_with_advice(
    server: dict[str, Any], subject: str, state: str, words: str | None
) -> None:
    found = findings(answering(**server))[subject]
    assert found.state == state and words in (None, found.words)
    assert state == "good" or found.advice or subject in ("Health", "Server", "Clock")


def test_a_server_that_does_not_answer_is_the_only_finding() -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadTimeout("x")

    (found,) = findings(refuse).values()
    assert found.state == "bad" and "server:1" in found.words


def test_strange_texts_of_a_server_cannot_write_to_the_terminal() -> None:
    health = {"status": "ready", "models": {"\x1b[2J": {"status": "\x1b]0;x\x07", "detail": "\x1b[1m"}}}
    assert "\x1b" not in shown(list(findings(answering(health=health)).values()), "good")


@pytest.mark.slow
def test_a_real_server_is_asked_by_the_command() -> None:
    with served() as url:
        found = json.loads(run("doctor", "--server", url).stdout)["findings"]
    assert {each["state"] for each in found} == {"good"} and found[0]["subject"] == "Server"
    gone = run("doctor", "--server", url)
    assert gone.exit_code == 1 and "Cannot connect" in gone.stdout
