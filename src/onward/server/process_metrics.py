"""The metrics of engines' processes, beside `process_*`, which are those of the server's own."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from onward.engine_load import EngineLoad


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
