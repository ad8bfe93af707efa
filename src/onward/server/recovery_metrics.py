"""The metrics of engines that were lost and started again."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from onward.engine_load import EngineLoad

REASONS = {"crash": "num_crashes", "hang": "num_hangs", "start": "num_failed_starts"}
"""Label → field of RecoveryCounts."""


def recovery_metrics(load: dict[str, EngineLoad]) -> Iterator[Metric]:
    """Yield the recovery metrics of all engines, by model id."""
    restarts = CounterMetricFamily(
        "onward_engine_restarts",
        "Engine starts after the first. Reason: crash (the engine ended), hang (it was ended because it did not report "
        "a step in time), or start (the start before failed).",
        labels=["model", "reason"],
    )
    resumed = CounterMetricFamily(
        "onward_engine_resumed_requests", "Requests that went on after a restart.", labels=["model"]
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
        for reason, name in REASONS.items():
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
        "onward_engine_moved_requests", "Prompts that went on at another one of them.", labels=["model"]
    )
    for model, now in load.items():
        if now.engines is not None:
            engines.add_metric([model], now.engines.num_engines)
            answering.add_metric([model], now.engines.num_answering)
            moved.add_metric([model], now.num_moved)
    yield from (engines, answering, moved)
