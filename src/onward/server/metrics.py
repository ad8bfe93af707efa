"""What /metrics tells, in a registry of its own. Labels are bound once a model, never per token."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import onward
from onward.backends.base import Backend, Load
from onward.completions.answer import Answer
from onward.errors import EngineStopped, Overloaded
from onward.protocol.response import Choice, Usage
from onward.server.access_log import Record

SHORT = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5)
LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)


class ModelMetrics:
    """The per-model metrics with their label bound: observing one is an addition."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self.prompt_tokens = metrics.prompt_tokens.labels(model)
        self.completion_tokens = metrics.completion_tokens.labels(model)
        self.cached_tokens = metrics.cached_tokens.labels(model)
        self.first_token = metrics.first_token.labels(model)
        self.inter_token = metrics.inter_token.labels(model)


class Metrics:
    """Counts and times requests; reads the engines' load when it is scraped."""

    def __init__(self, backend: Backend) -> None:
        # They would double what every scrape carries. The library can leave them out only for the whole process.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self._backend = backend
        model = ["model"]
        self.requests = Counter(
            "onward_requests", "Requests answered.", ["route", "model", "status"], registry=registry
        )
        self.in_flight = Gauge("onward_requests_in_flight", "Requests being answered.", registry=registry)
        self.cancelled = Counter("onward_requests_cancelled", "Requests whose client left early.", registry=registry)
        self.refused = Counter(
            "onward_completions_refused",
            "Completions answered with 503 before they began. Reason: overloaded, or stopped (draining, dead).",
            ["model", "reason"],
            registry=registry,
        )
        self.prompt_tokens = Counter("onward_prompt_tokens", "Tokens of prompts.", model, registry=registry)
        self.completion_tokens = Counter(
            "onward_completion_tokens", "Tokens generated and billed.", model, registry=registry
        )
        self.cached_tokens = Counter(
            "onward_cached_tokens", "Tokens of prompts that the prefix cache held.", model, registry=registry
        )
        self.first_token = Histogram(
            "onward_time_to_first_token_seconds",
            "From request to first token.",
            model,
            registry=registry,
            buckets=LONG,
        )
        self.inter_token = Histogram(
            "onward_inter_token_seconds",
            "Between the tokens of a request.",
            model,
            registry=registry,
            buckets=SHORT,
        )
        self.request_seconds = Histogram(
            "onward_request_seconds",
            "From request to end of answer.",
            ["route"],
            registry=registry,
            buckets=LONG,
        )
        build = Gauge("onward_build_info", "Always 1; the label tells the version.", ["version"], registry=registry)
        build.labels(onward.__version__).set(1)
        prometheus_client.ProcessCollector(registry=registry)
        registry.register(LoadCollector(backend))
        self._models: dict[str, ModelMetrics] = {}

    def of(self, model: str) -> ModelMetrics:
        """The bound metrics of a model that answers requests (never a name that a client made up)."""
        bound = self._models.get(model)
        if bound is None:
            bound = self._models[model] = ModelMetrics(self, model)
        return bound

    def finish(self, record: Record, seconds: float) -> None:
        """Count a request that has ended."""
        self.requests.labels(record.route, self._label(record.model), str(record.status)).inc()
        self.request_seconds.labels(record.route).observe(seconds)
        if record.cancelled:
            self.cancelled.inc()

    def refuse(self, record: Record, refusal: Overloaded) -> None:
        """Count a completion that the backend did not take."""
        reason = "stopped" if isinstance(refusal, EngineStopped) else "overloaded"
        self.refused.labels(self._label(record.model), reason).inc()

    def _label(self, name: str) -> str:
        """`name` if it is that of a model here, else nothing: a label that clients may choose grows for ever."""
        if name in self._models or (name != "-" and any(name == model.id for model in self._backend.models())):
            return name
        return ""

    def render(self) -> bytes:
        """The exposition text."""
        text: bytes = generate_latest(self.registry)
        return text


class MeasuredAnswer:
    """An Answer that observes its own pace, and tells record and counters what it cost."""

    def __init__(self, answer: Answer, metrics: Metrics, record: Record, started: float) -> None:
        self._answer = answer
        self._bound = metrics.of(answer.model)
        self._record = record
        self._started = started
        self.model = record.model = answer.model
        self.fingerprint = answer.fingerprint

    @property
    def usage(self) -> Usage:
        return self._answer.usage

    async def __aiter__(self) -> AsyncIterator[list[Choice]]:
        last = self._started
        observe = self._bound.first_token.observe
        async for choices in self._answer:
            now = time.perf_counter()
            observe(now - last)
            if self._record.first_token_ms is None:
                self._record.first_token_ms = (now - self._started) * 1000
                observe = self._bound.inter_token.observe
            last = now
            yield choices

    async def aclose(self) -> None:
        await self._answer.aclose()

    def abandon(self) -> None:
        self._answer.abandon()

    def settle(self) -> None:
        """Count the tokens; to be called once, when the answer has ended or was cancelled."""
        usage, record = self._answer.usage, self._record
        record.prompt_tokens = usage.prompt_tokens
        record.completion_tokens = usage.completion_tokens
        record.cached_tokens = usage.prompt_tokens_details.cached_tokens
        self._bound.prompt_tokens.inc(record.prompt_tokens)
        self._bound.completion_tokens.inc(record.completion_tokens)
        self._bound.cached_tokens.inc(record.cached_tokens)


GAUGES = {
    "running": "Sequences in the batch.",
    "waiting": "Sequences that wait for a place in the batch.",
    "blocks_total": "KV blocks there are, used and free.",
    "blocks_used": "KV blocks that sequences hold.",
    "blocks_cached": "KV blocks kept for prompts that begin the same way.",
}
COUNTERS = {
    "preemptions": "Sequences put back because KV blocks ran out.",
    "steps": "Steps of the engine.",
    "prefill_tokens": "Tokens of prompts evaluated.",
    "decode_tokens": "Tokens evaluated one by one.",
}


DRAFTS = tuple((source, outcome) for source in ("prediction", "lookup") for outcome in ("accepted", "rejected"))


def _metric_name(field: str) -> str:
    """By Prometheus' rules only a counter's name ends in `_total`."""
    field = field.removesuffix("_total")
    return "onward_kv_" + field if field.startswith("blocks") else "onward_engine_" + field


class LoadCollector(Collector):
    """Reads `Backend.load` when asked; keeps nothing."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def collect(self) -> Iterator[Metric]:
        load = self._backend.load()
        yield from _families(GaugeMetricFamily, GAUGES, load)
        yield from _families(CounterMetricFamily, COUNTERS, load)
        yield _drafts(load)


def _families(
    family: type[GaugeMetricFamily] | type[CounterMetricFamily], helps: dict[str, str], load: dict[str, Load]
) -> Iterator[Metric]:
    for field, help in helps.items():
        made = family(_metric_name(field), help, labels=["model"])
        for model, now in load.items():
            made.add_metric([model], getattr(now, field))
        yield made


def _drafts(load: dict[str, Load]) -> Metric:
    words = "Tokens drafted ahead, from a request's prediction or from text that repeats."
    made = CounterMetricFamily("onward_draft_tokens", words, labels=["model", "source", "outcome"])
    for model, now in load.items():
        for source, outcome in DRAFTS:
            made.add_metric([model, source, outcome], now.drafts.get((source, outcome), 0))
    return made
