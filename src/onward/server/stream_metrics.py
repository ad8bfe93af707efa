"""Metrics of the streams that are kept for clients that reconnect."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from onward.server.streams.kept import KeptStreams


class StreamCollector(Collector):
    """Reads the kept streams on every scrape."""

    def __init__(self, kept: KeptStreams) -> None:
        self._kept = kept

    def collect(self) -> Iterator[Metric]:
        kept = self._kept
        yield GaugeMetricFamily("onward_streams_kept", "Resumable streams that are kept.", kept.num_streams)
        yield GaugeMetricFamily("onward_streams_kept_bytes", "Memory that kept streams hold.", kept.num_bytes)
        yield CounterMetricFamily("onward_streams_resumed", "Connections that read on in a stream.", kept.num_resumed)
        yield CounterMetricFamily(
            "onward_streams_abandoned",
            "Resumable streams that were cancelled because no client came back in time, or memory ran out.",
            kept.num_abandoned,
        )
