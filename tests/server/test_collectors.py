"""Latencies, which are counted here, against prometheus_client's histograms."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest

from onward.server.collectors import LatencyCollector
from onward.server.metrics import LONG, SHORT

SECONDS = st.floats(0, 400) | st.sampled_from([*SHORT, *LONG])


@given(bounds=st.sampled_from([SHORT, LONG]), observed=st.lists(st.tuples(st.sampled_from("ab"), SECONDS)))
@example(bounds=SHORT, observed=[("a", bound) for bound in SHORT])
@example(bounds=LONG, observed=[("a", math.nextafter(bound, math.inf)) for bound in LONG])
def test_latencies_are_written_as_a_histogram_of_prometheus_client(
    bounds: tuple[float, ...], observed: list[tuple[str, float]]
) -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    latencies = LatencyCollector("onward_x_seconds", "A time.", bounds, ours)
    histogram = Histogram("onward_x_seconds", "A time.", ["model"], registry=theirs, buckets=bounds)
    for model, seconds in observed:
        latencies.of(model).observe(seconds)
        histogram.labels(model).observe(seconds)
    assert generate_latest(ours) == generate_latest(theirs)
