"""Metrics that are computed whenever Prometheus asks: of engines, from their load, and of latencies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from onward.backends.base import Backend, LiveModels
from onward.engine_load import DraftSource, EngineLoad
from onward.tracing import Tracer

if TYPE_CHECKING:  # a server without a database does not import what needs one
    from onward.service.team import Team

RECOVERY_REASONS = {"crash": "num_crashes", "hang": "num_hangs", "start": "num_failed_starts"}
"""Label → field of RecoveryCounts."""
GAUGES = {
    "onward_engine_running": ("num_running", "Running sequences."),
    "onward_engine_rows": ("max_rows", "Sequences that can run at the same time."),
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
    "onward_prefix_cache_disk_tokens": ("num_disk_tokens", "Prompt tokens read into the prefix cache from the disk."),
    "onward_prefix_cache_disk_read_bytes": ("num_disk_read_bytes", "Bytes of KV blocks and states read from the disk."),
    "onward_prefix_cache_disk_written_bytes": (
        "num_disk_written_bytes", "Bytes of KV blocks and states written to the disk.",
    ),
    "onward_draft_model_seconds": ("draft_seconds", "Time that the draft model has computed."),
    "onward_prefix_cache_damaged_files": (
        "num_damaged_files", "Files of KV blocks and states that were not used, and removed.",
    ),
}  # fmt: skip
"""Metric → field of EngineLoad and help text."""
DRAFTS = tuple((source, outcome) for source in get_args(DraftSource) for outcome in ("accepted", "rejected"))


class Latencies:
    """Seconds, counted by bucket. Used on one event loop.

    `prometheus_client.Histogram` locks two values for each, which takes several times as long, and there is one per
    token.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count a latency."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def add_to(self, family: HistogramMetricFamily, model: str) -> None:
        """Add what was counted to a metric."""
        names = map(floatToGoString, (*self._bounds, float("inf")))
        family.add_metric([model], list(zip(names, accumulate(self._counts), strict=True)), self._sum)


class LatencyCollector(Collector):
    """A histogram of latencies by model. `bounds` are those of its buckets, in ascending order."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(map(float, bounds))
        self._models: dict[str, Latencies] = {}
        registry.register(self)

    def of(self, model: str) -> Latencies:
        """Return the latencies of a model."""
        return self._models.setdefault(model, Latencies(self._bounds))

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=["model"])
        for model, latencies in self._models.items():
            latencies.add_to(family, model)
        yield family


def process_metrics(load: dict[str, EngineLoad]) -> Iterator[Metric]:
    """Yield processor time and memory of each engine's process that runs, by model id."""
    cpu = CounterMetricFamily(
        "onward_engine_process_cpu_seconds",
        "Processor time of the engine's process; begins again after a restart.",
        labels=["model"],
    )
    memory = GaugeMetricFamily(
        "onward_engine_process_resident_memory_bytes", "Resident memory of the engine's process.", labels=["model"]
    )
    for model, now in load.items():
        if now.process is not None:
            cpu.add_metric([model], now.process.cpu_seconds)
            memory.add_metric([model], now.process.resident_bytes)
    yield from (cpu, memory)


def recovery_metrics(load: dict[str, EngineLoad]) -> Iterator[Metric]:
    """Yield the recovery metrics of all engines, by model id."""
    restarts = CounterMetricFamily(
        "onward_engine_restarts",
        "Engine starts after the first. Reason: crash (the engine ended), hang (it was ended because it did not report "
        "a step in time), or start (the start before failed).",
        labels=["model", "reason"],
    )
    resumed = CounterMetricFamily(
        "onward_engine_resumed_requests", "Requests resumed after a restart.", labels=["model"]
    )
    poisoned = CounterMetricFamily(
        "onward_engine_poisoned_requests",
        "Requests that were ended because engines were lost whenever they computed them.",
        labels=["model"],
    )
    seconds = SummaryMetricFamily(
        "onward_engine_recovery_seconds", "Time from the loss of an engine until another was ready.", labels=["model"]
    )
    for model, now in load.items():
        counts = now.recoveries
        for reason, name in RECOVERY_REASONS.items():
            restarts.add_metric([model, reason], getattr(counts, name))
        resumed.add_metric([model], counts.num_resumed_requests)
        poisoned.add_metric([model], counts.num_poisoned_requests)
        seconds.add_metric([model], counts.num_recoveries, counts.seconds)
    yield from (restarts, resumed, poisoned, seconds)


def address_metrics(load: dict[str, EngineLoad]) -> Iterator[Metric]:
    """Yield the metrics of models that several servers or replicas compute, by model id."""
    engines = GaugeMetricFamily("onward_engines", "Servers or replicas that compute the model.", labels=["model"])
    answering = GaugeMetricFamily(
        "onward_engines_answering",
        "Those of them that answer and have not failed repeatedly.",
        labels=["model"],
    )
    moved = CounterMetricFamily(
        "onward_engine_moved_requests", "Prompts resumed at another one of them.", labels=["model"]
    )
    for model, now in load.items():
        if now.engines is not None:
            engines.add_metric([model], now.engines.num_engines)
            answering.add_metric([model], now.engines.num_answering)
            moved.add_metric([model], now.num_moved)
    yield from (engines, answering, moved)


def certificate_metrics(load: dict[str, EngineLoad]) -> Iterator[Metric]:
    """Yield what is known of the certificates of servers that compute models."""
    labels = ["model", "address"]
    expiry = GaugeMetricFamily(
        "onward_engine_certificate_expiry_timestamp_seconds",
        "When the certificate of a server that computes the model expires, as it was when it was seen last.",
        labels=labels,
    )
    refused = GaugeMetricFamily(
        "onward_engine_certificate_refused",
        "Always 1: the certificate of a server that computes the model is not trusted, for this reason.",
        labels=[*labels, "reason"],
    )
    for model, now in load.items():
        for found in now.certificates:
            if found.expires:
                expiry.add_metric([model, found.address], found.expires)
            if found.problem:
                refused.add_metric([model, found.address, found.problem], 1)
    yield from (expiry, refused)


class Reading(Collector):
    """Metrics that are read whenever Prometheus asks: those that `read` yields."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


def load_metrics(backend: Backend) -> Iterator[Metric]:
    """Yield what engines report of their work."""
    load = backend.load()
    yield from _families(GaugeMetricFamily, GAUGES, load)
    yield from _families(CounterMetricFamily, COUNTERS, load)
    yield _drafts(load)
    yield from recovery_metrics(load)
    yield from address_metrics(load)
    yield from process_metrics(load)
    yield from certificate_metrics(load)


def ending_metrics(live: LiveModels) -> Iterator[Metric]:
    help = "Models that were removed or replaced while the server ran, and still have requests."
    number = sum(model.status == "ending" for model in live.models())
    yield GaugeMetricFamily("onward_models_ending", help, number)


def database_metrics(team: Team) -> Iterator[Metric]:
    answers, num_rows = team.database
    yield GaugeMetricFamily("onward_database_up", "Whether the database answers.", int(answers))
    help = "Requests that have ended and whose rows the database does not have yet."
    yield GaugeMetricFamily("onward_ledger_rows_waiting", help, num_rows)


def tracer_metrics(tracer: Tracer) -> Iterator[Metric]:
    help = "Spans. Outcome: exported, dropped (too many waited to be exported), failed (the collector was away)."
    spans = CounterMetricFamily("onward_trace_spans", help, labels=["outcome"])
    for outcome, number in tracer.counts().items():
        spans.add_metric([outcome], number)
    yield spans


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
    help = "Draft tokens: from a prediction, from lookup in earlier text, forced by a grammar, or by a draft model."
    made = CounterMetricFamily("onward_draft_tokens", help, labels=["model", "source", "outcome"])
    for model, now in load.items():
        for source, outcome in DRAFTS:
            made.add_metric([model, source, outcome], getattr(now.drafts, f"{source}_{outcome}"))
    return made
