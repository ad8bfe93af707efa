"""The Prometheus metrics, in a registry of their own. Labels are bound once per model, never per token."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Iterator

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import onward
from onward.backends.base import Backend
from onward.completions.answer import Answer
from onward.completions.delta import Delta, TokenCounts
from onward.completions.request import CompletionRequest
from onward.engine_load import EngineLoad
from onward.errors import EngineStopped, Overloaded
from onward.server.exchange import Exchange
from onward.server.key_metrics import KeyMetrics
from onward.server.process_metrics import process_metrics
from onward.server.record import RequestRecord
from onward.server.recovery_metrics import address_metrics, recovery_metrics
from onward.server.warn import warn

SHORT = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5)
LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)


class ModelMetrics:
    """The per-model metrics with their label bound, so that observing one is an addition."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self.prompt_tokens = metrics.prompt_tokens.labels(model)
        self.completion_tokens = metrics.completion_tokens.labels(model)
        self.cached_tokens = metrics.cached_tokens.labels(model)
        self.first_token = metrics.first_token.labels(model)
        self.inter_token = metrics.inter_token.labels(model)


class Metrics:
    """Counts and times requests; reads the load of the engines when it is scraped."""

    def __init__(self, backend: Backend) -> None:
        # They would double the size of every scrape. The library can turn them off only for the whole process.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self._backend = backend
        self.warned: set[str] = set()
        """Models whose clients were warned of something."""
        model = ["model"]
        self.requests = Counter(
            "onward_requests",
            "HTTP requests by route, model and status.",
            ["route", "model", "status"],
            registry=registry,
        )
        self.in_flight = Gauge("onward_requests_in_flight", "HTTP requests in progress.", registry=registry)
        self.cancelled = Counter(
            "onward_requests_cancelled",
            "HTTP requests whose client disconnected before the response was complete.",
            registry=registry,
        )
        self.refused = Counter(
            "onward_completions_refused",
            "Completion requests refused with 503. Reason: overloaded, or stopped (draining or crashed).",
            ["model", "reason"],
            registry=registry,
        )
        self.keys = KeyMetrics(registry)
        self.prompt_tokens = Counter("onward_prompt_tokens", "Prompt tokens.", model, registry=registry)
        self.completion_tokens = Counter(
            "onward_completion_tokens", "Generated tokens, as reported in usage.", model, registry=registry
        )
        self.cached_tokens = Counter(
            "onward_cached_tokens", "Prompt tokens found in the prefix cache.", model, registry=registry
        )
        self.first_token = Histogram(
            "onward_time_to_first_token_seconds",
            "Time from request to first token.",
            model,
            registry=registry,
            buckets=LONG,
        )
        self.inter_token = Histogram(
            "onward_inter_token_seconds",
            "Time between successive tokens of a request.",
            model,
            registry=registry,
            buckets=SHORT,
        )
        self.request_seconds = Histogram(
            "onward_request_seconds",
            "Time from request to end of response.",
            ["route"],
            registry=registry,
            buckets=LONG,
        )
        build = Gauge("onward_build_info", "Always 1; the version is in the label.", ["version"], registry=registry)
        build.labels(onward.__version__).set(1)
        prometheus_client.ProcessCollector(registry=registry)
        registry.register(LoadCollector(backend))
        self._models: dict[str, ModelMetrics] = {}

    def of(self, model: str) -> ModelMetrics:
        """Return the bound metrics of a served model (never of a name that a client made up)."""
        bound = self._models.get(model)
        if bound is None:
            bound = self._models[model] = ModelMetrics(self, model)
        return bound

    def finish(self, record: RequestRecord, seconds: float) -> None:
        """Count a request that has ended."""
        self.requests.labels(record.route, self._label(record.model), str(record.status)).inc()
        self.request_seconds.labels(record.route).observe(seconds)
        if record.cancelled:
            self.cancelled.inc()
        self.keys.count(record)

    def count_refused(self, record: RequestRecord, error: Overloaded) -> None:
        """Count a completion request that the backend refused."""
        reason = "stopped" if isinstance(error, EngineStopped) else "overloaded"
        self.refused.labels(self._label(record.model), reason).inc()

    def _label(self, name: str) -> str:
        """Return `name` if a served model has it, else an empty string: clients could create any number of labels."""
        if name in self._models or (name != "-" and any(name == model.id for model in self._backend.models())):
            return name
        return ""

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        text: bytes = generate_latest(self.registry)
        return text


async def accept(backend: Backend, request: CompletionRequest, exchange: Exchange, metrics: Metrics) -> MeasuredAnswer:
    """Begin to complete a request and to measure it; count it if it is refused. Raises ApiError."""
    try:
        answer = await backend.complete(request, client=exchange.sender)
    except Overloaded as error:
        metrics.count_refused(exchange.record, error)
        raise
    if answer.warning:
        warn(exchange, answer, metrics.warned)
    return MeasuredAnswer(answer, metrics, exchange.record, exchange.started)


class MeasuredAnswer:
    """An Answer that observes its latencies, and when it is closed adds its token counts to record and counters."""

    def __init__(self, answer: Answer, metrics: Metrics, record: RequestRecord, started: float) -> None:
        self._answer = answer
        self._metrics = metrics
        self._bound = metrics.of(answer.model)
        self._record = record
        self._started = started
        self._left_at: TokenCounts | None = None
        self._is_settled = False
        self.model = record.model = answer.model
        self.fingerprint = answer.fingerprint
        self.warning = answer.warning

    @property
    def counts(self) -> TokenCounts:
        return self._answer.counts

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        last = self._started
        observe = self._bound.first_token.observe
        async for deltas in self._answer:
            now = time.perf_counter()
            observe(now - last)
            if self._record.first_token_ms is None:
                self._record.first_token_ms = (now - self._started) * 1000
                observe = self._bound.inter_token.observe
            last = now
            yield deltas

    async def aclose(self) -> None:
        await self._answer.aclose()
        if not self._is_settled:
            self._is_settled = True
            self._settle()

    def abandon(self) -> None:
        self._answer.abandon()

    def leave(self) -> None:
        """State that the connection whose record this is has ended: from now on the record is not changed."""
        self._fill_record()
        self._record = dataclasses.replace(self._record)
        self._left_at = self._answer.counts

    def _settle(self) -> None:
        """Count the tokens: the answer has ended or was cancelled."""
        counts = self._answer.counts
        self._fill_record()
        self._bound.prompt_tokens.inc(counts.prompt)
        self._bound.completion_tokens.inc(counts.completion)
        self._bound.cached_tokens.inc(counts.cached)
        if self._left_at is not None:
            self._metrics.keys.count_tokens(
                self._record.key,
                counts.prompt - self._left_at.prompt,
                counts.completion - self._left_at.completion,
            )

    def _fill_record(self) -> None:
        counts, record = self._answer.counts, self._record
        record.prompt_tokens = counts.prompt
        record.completion_tokens = counts.completion
        record.cached_tokens = counts.cached


GAUGES = {
    "onward_engine_running": ("num_running", "Running sequences."),
    "onward_engine_waiting": ("num_waiting", "Sequences in the waiting queue."),
    "onward_kv_blocks": ("num_blocks", "KV blocks in total."),
    "onward_kv_blocks_used": ("num_used_blocks", "KV blocks held by sequences."),
    "onward_kv_blocks_cached": ("num_cached_blocks", "KV blocks kept by the prefix cache."),
}
COUNTERS = {
    "onward_engine_preemptions": ("num_preemptions", "Sequences preempted because KV blocks ran out."),
    "onward_engine_steps": ("num_steps", "Engine steps."),
    "onward_engine_prefill_tokens": ("num_prefill_tokens", "Prompt tokens computed."),
    "onward_engine_decode_tokens": ("num_decode_tokens", "Tokens computed while decoding."),
    "onward_engine_cached_tokens": ("num_cached_tokens", "Prompt tokens that the engine took from the prefix cache."),
}
"""Metric → field of EngineLoad and help text."""

DRAFTS = tuple(
    (source, outcome) for source in ("prediction", "lookup", "grammar") for outcome in ("accepted", "rejected")
)


class LoadCollector(Collector):
    """Reads `Backend.load` on every scrape. Stateless."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def collect(self) -> Iterator[Metric]:
        load = self._backend.load()
        yield from _families(GaugeMetricFamily, GAUGES, load)
        yield from _families(CounterMetricFamily, COUNTERS, load)
        yield _drafts(load)
        yield from recovery_metrics(load)
        yield from address_metrics(load)
        yield from process_metrics(load)


def _families(
    family: type[GaugeMetricFamily] | type[CounterMetricFamily],
    metrics: dict[str, tuple[str, str]],
    load: dict[str, EngineLoad],
) -> Iterator[Metric]:
    for name, (field, help) in metrics.items():
        metric = family(name, help, labels=["model"])
        for model, now in load.items():
            metric.add_metric([model], getattr(now, field))
        yield metric


def _drafts(load: dict[str, EngineLoad]) -> Metric:
    help = "Draft tokens, from a request's prediction, from lookup in earlier text, or forced by a grammar."
    made = CounterMetricFamily("onward_draft_tokens", help, labels=["model", "source", "outcome"])
    for model, now in load.items():
        for source, outcome in DRAFTS:
            made.add_metric([model, source, outcome], getattr(now.drafts, f"{source}_{outcome}"))
    return made
