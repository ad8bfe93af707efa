"""What an operator first asks a running server, over its public routes: what `onward doctor --server URL` prints."""

from __future__ import annotations

import email.utils
import json
import ssl
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import httpx2
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

import onward
from onward.cli.output.findings import Finding, State
from onward.cli.output.terminal import pluralize
from onward.cli.source.base import ConnectionFailed
from onward.cli.source.transport import connection_failed
from onward.errors import SetupError
from onward.machine import bytes_in_words
from onward.network import Transport

TIMEOUT_SECONDS = 10.0
MAX_CLOCK_SECONDS = 2.0
"""Smaller differences between clocks may be the time that an answer takes."""
CERTIFICATE_DAYS = 14
LATEST = 253_402_300_799.0
"""The last second of the year 9999: a server may state anything."""
MANY = 0.8
"""Usage above this fraction of a limit is reported."""
NEEDS_KEY = "Pass --api-key, or set OPENAI_API_KEY; with a database, that of an admin key."
_STATES: dict[str, State] = {"ready": "good", "recovering": "note", "draining": "note"}


class Scrape:
    """The samples of a scrape of /metrics."""

    def __init__(self, families: list[Metric]) -> None:
        self._samples = [sample for family in families for sample in family.samples]

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Return the sums of a metric by one of its labels."""
        sums: dict[str, float] = {}
        for sample in self._samples:
            if sample.name == name:
                value = sample.labels.get(label, "")
                sums[value] = sums.get(value, 0.0) + sample.value
        return sums

    def labelled(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the labels and the value of each sample of a metric."""
        yield from ((sample.labels, sample.value) for sample in self._samples if sample.name == name)

    def total(self, name: str) -> float:
        """Return the sum of a metric over all labels, 0 where there is none."""
        return sum(sample.value for sample in self._samples if sample.name == name)


def server_findings(url: str, key: str | None, transport: httpx2.BaseTransport | None = None) -> Iterator[Finding]:
    """Query the server at `url`, with or without /v1, and yield findings. A server that does not answer is the only
    finding. Blocks."""
    root = url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    made = transport or cast(httpx2.BaseTransport, Transport())
    with httpx2.Client(base_url=root, headers=headers, timeout=TIMEOUT_SECONDS, transport=made) as client:
        try:
            yield from _findings(client)
        except httpx2.TransportError as problem:
            yield Finding(
                "Server", "bad", str(connection_failed(problem, root)), "Is it running, and is the URL right?"
            )
        except (ConnectionFailed, SetupError) as problem:
            yield Finding("Server", "bad", str(problem))


def _findings(client: httpx2.Client) -> Iterator[Finding]:
    before = time.time()
    live = client.get("/live")
    if _object(live).get("status") != "live":
        words = f"it answers GET /live with status {live.status_code}: it is not Onward, or a proxy answers for it"
        yield Finding("Server", "bad", words)
        return
    scrape = client.get("/metrics")
    metrics = Scrape(list(text_string_to_metric_families(scrape.text)) if scrape.status_code == 200 else [])
    yield _version(metrics, scrape.status_code)
    yield _clock(live, before)
    yield from _certificate(client)
    yield from _health(_object(client.get("/health")))
    if scrape.status_code == 200:
        yield from _load(metrics)


def _object(answer: httpx2.Response) -> dict[str, Any]:
    try:
        found = json.loads(answer.content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _version(metrics: Scrape, status: int) -> Finding:
    if status != 200:
        words = "answers, but its metrics need a key" if status in (401, 403) else f"GET /metrics has status {status}"
        return Finding("Server", "note", words, NEEDS_KEY if status in (401, 403) else "")
    version = next(iter(metrics.by_label("onward_build_info", "version")), "")
    started = metrics.total("process_start_time_seconds")
    words = f"Onward {version}"
    if started:
        words += f", started {_duration(time.time() - started)} ago"
    if version != onward.__version__:
        return Finding("Server", "note", words, f"This command is version {onward.__version__}.")
    return Finding("Server", "good", words)


def _clock(live: httpx2.Response, before: float) -> Finding:
    """Compare the server's clock with this machine's: budgets, expiries and batches of keys follow the server's."""
    parsed = email.utils.parsedate_tz(live.headers.get("date", ""))
    if parsed is None:
        return Finding("Clock", "note", "the server does not say what time it is")
    theirs = email.utils.mktime_tz(parsed)
    ahead = theirs - time.time() if theirs > time.time() else min(0.0, theirs + 1 - before)  # whole seconds, cut off
    if abs(ahead) <= MAX_CLOCK_SECONDS:
        return Finding("Clock", "good", "as that of this machine")
    words = f"{_duration(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this machine's"
    return Finding("Clock", "note", words, "Synchronize both clocks (NTP): days and months of limits follow them.")


def _certificate(client: httpx2.Client) -> Iterator[Finding]:
    """Report when the server's own certificate expires."""
    if client.base_url.scheme != "https":
        return
    with client.stream("GET", "/live") as answer:
        stream = answer.extensions.get("network_stream")
        tls = None if stream is None else stream.get_extra_info("ssl_object")
        found = None if tls is None else tls.getpeercert()
    if not found or "notAfter" not in found:
        return
    yield _expiry("Certificate", ssl.cert_time_to_seconds(found["notAfter"]))


def _expiry(subject: str, expires: float) -> Finding:
    """Return the finding about a certificate that expires at a Unix time."""
    expires = min(max(0.0, expires), LATEST)
    left, date = expires - time.time(), time.strftime("%Y-%m-%d", time.gmtime(expires))
    if left <= 0:
        return Finding(subject, "bad", f"expired {_duration(-left)} ago, on {date}", "Renew it.")
    words = f"expires in {_duration(left)}, on {date}"
    if left < CERTIFICATE_DAYS * 86_400:
        return Finding(subject, "note", words, "Renew it in time.")
    return Finding(subject, "good", words)


def _engine_certificates(metrics: Scrape) -> Iterator[Finding]:
    """Report the certificates of servers that compute models, as the asked server sees them."""
    refused = {
        _place(labels): labels.get("reason", "") for labels, _ in metrics.labelled("onward_engine_certificate_refused")
    }
    for place, reason in refused.items():
        advice = "Renew it there, or name its authority for this server in SSL_CERT_FILE. Requests wait meanwhile."
        yield Finding(f"Certificate of {place}", "bad", f"is not trusted: {reason}", advice)
    for labels, expires in metrics.labelled("onward_engine_certificate_expiry_timestamp_seconds"):
        if (place := _place(labels)) not in refused:
            yield _expiry(f"Certificate of {place}", expires)


def _place(labels: dict[str, str]) -> str:
    return f"{labels.get('address', '')} ({labels.get('model', '')})"


def _health(health: dict[str, Any]) -> Iterator[Finding]:
    state, detail = str(health.get("status", "")), str(health.get("detail", ""))
    if not state:
        yield Finding("Health", "bad", "GET /health does not say how the server is")
        return
    found: State = "note" if state == "ready" and detail else _STATES.get(state, "bad")
    yield Finding("Health", found, state, detail)
    models = health.get("models")
    for name, each in models.items() if isinstance(models, dict) else ():
        of_model = each if isinstance(each, dict) else {}
        words, why = str(of_model.get("status", "unknown")), str(of_model.get("detail", ""))
        yield Finding(name, _STATES.get(words, "bad"), words, why)


def _load(metrics: Scrape) -> Iterator[Finding]:
    yield from _queues(metrics)
    yield _database(metrics)
    server, engines = "process_resident_memory_bytes", "onward_engine_process_resident_memory_bytes"
    own, others = metrics.total(server), metrics.total(engines)
    if own:
        words = f"{bytes_in_words(int(own + others))} resident, of which engines {bytes_in_words(int(others))}"
        yield Finding("Memory", "good", words)
    yield from _engine_certificates(metrics)
    yield from _recoveries(metrics)
    refused = metrics.by_label("onward_completions_refused_total", "reason")
    if number := int(refused.get("overloaded", 0)):
        advice = "More sequences waited than --max-waiting allows: add servers, or limit keys."
        yield Finding("Refused", "note", f"{pluralize(number, 'request')} with 503, as overloaded", advice)
    used, limit = metrics.total("process_open_fds"), metrics.total("process_max_fds")
    if limit:
        is_near = used >= MANY * limit
        advice = "Raise the limit of open files (ulimit -n, LimitNOFILE)." if is_near else ""
        yield Finding("Open files", "note" if is_near else "good", f"{used:.0f} of {limit:.0f}", advice)


def _database(metrics: Scrape) -> Finding:
    states = [value for _, value in metrics.labelled("onward_database_up")]
    if not states:
        return Finding("Database", "good", "none: no ledger, no keys with limits, no batches")
    waiting = int(metrics.total("onward_ledger_rows_waiting"))
    waits = f", {pluralize(waiting, 'row')} of the ledger to be written" if waiting else ""
    if states[0]:
        return Finding("Database", "good", f"answers{waits}")
    advice = "The server's log says why. Keys with limits are refused after a minute; rows wait in the data folder."
    return Finding("Database", "bad", f"does not answer{waits}", advice)


def _queues(metrics: Scrape) -> Iterator[Finding]:
    """Report how many requests run and wait, and how full the KV cache is."""
    waiting = metrics.by_label("onward_engine_waiting", "model")
    running = metrics.by_label("onward_engine_running", "model")
    blocks = metrics.by_label("onward_kv_blocks", "model")
    used = metrics.by_label("onward_kv_blocks_used", "model")
    for model, number in running.items():
        waits = waiting.get(model, 0.0)
        words = f"{number:.0f} running, {waits:.0f} waiting"
        is_full = False
        if total := blocks.get(model):
            share = used.get(model, 0.0) / total
            is_full = share >= MANY
            words += f", {share:.0%} of the KV cache in use"
        advice = "Requests wait for memory: raise --kv-memory, or add servers." if waits and is_full else ""
        yield Finding(f"Queue of {model}", "note" if advice else "good", words, advice)


def _recoveries(metrics: Scrape) -> Iterator[Finding]:
    reasons = metrics.by_label("onward_engine_restarts_total", "reason")
    number = int(sum(reasons.values()))
    if number:
        words = ", ".join(f"{count:.0f} after a {reason}" for reason, count in reasons.items() if count)
        advice = "The server's log says why."
        yield Finding("Restarts", "note", f"engines were started again: {words}", advice)
    if poisoned := int(metrics.total("onward_engine_poisoned_requests_total")):
        words = f"{pluralize(poisoned, 'request')} ended engines whenever they were computed, and were refused"
        yield Finding("Poisoned", "bad", words, "The server's log names them: please report them.")


def _duration(seconds: float) -> str:
    """Return a duration in words, such as `3 days`."""
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * length:
            return str(pluralize(int(seconds / length), unit))
    return str(timedelta(seconds=int(seconds)).seconds) + " seconds"
