"""Spans for an OpenTelemetry collector: kept until a thread sends them, by OTLP over HTTP.

OpenTelemetry's SDK makes a span under locks and checks as it begins, and its batch processor does not count what it
drops. Here a request only appends what it knows when it ends; the thread makes the SDK's spans, for its exporter.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import onward
from onward.errors import SetupError
from onward.network import without_secrets
from onward.settings import Settings
from onward.tracing import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger("onward.server")

MAX_WAITING = 8192
"""Spans that wait to be sent; further ones are dropped and counted."""
MAX_BATCH = 512
PAUSE_SECONDS = 1.0
"""Between two batches, unless many wait."""
EXPORT_SECONDS = 10.0
"""How long a collector may take for a batch."""
CLOSE_SECONDS = 3.0
"""How long the end of the server waits until the last spans are sent."""


def open_tracer(settings: Settings) -> ExportingTracer | None:
    """Return what takes spans, None where no collector is named. Raises SetupError without the extra."""
    if settings.otlp_endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise SetupError("--otlp-endpoint needs another package: run pip install 'onward[otel]'.") from None
    endpoint = settings.otlp_endpoint
    if urlsplit(endpoint).path in ("", "/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    exporter = OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS)
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it says so for every batch
    return ExportingTracer(
        exporter, without_secrets(endpoint), ratio=settings.trace_ratio, keeps_prompts=settings.trace_prompts
    )


class ExportingTracer:
    """Implements `tracing.Tracer` over an exporter of OpenTelemetry's SDK, which it owns. `name` is for the log."""

    def __init__(self, exporter: SpanExporter, name: str, *, ratio: float = 1.0, keeps_prompts: bool = False) -> None:
        self.ratio = ratio
        self.keeps_prompts = keeps_prompts
        self._exporter = exporter
        self._name = name
        self._waiting: deque[Span] = deque()
        self._wakes = threading.Event()
        self._is_closed = False
        self._is_away = False
        self._counts = {"exported": 0, "dropped": 0, "failed": 0}
        self._make = _SpanMaker()
        self._thread = threading.Thread(target=self._run, name="onward-traces", daemon=True)
        self._thread.start()

    def add(self, span: Span) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._counts["dropped"] += 1
            return
        self._waiting.append(span)
        if len(self._waiting) >= MAX_BATCH:
            self._wakes.set()

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        """Send what waits, for some seconds at most."""
        self._is_closed = True
        self._wakes.set()
        self._thread.join(CLOSE_SECONDS)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not (self._is_closed and not self._waiting):
            if not self._is_closed:
                self._wakes.wait(PAUSE_SECONDS)
                self._wakes.clear()
            batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            if batch:
                self._export(batch)

    def _export(self, batch: list[Span]) -> None:
        try:
            result = self._exporter.export([self._make(span) for span in batch])
            is_taken = result.name == "SUCCESS"
        except Exception as problem:
            log.debug("traces could not be sent", exc_info=problem)
            is_taken = False
        self._counts["exported" if is_taken else "failed"] += len(batch)
        if is_taken is self._is_away:
            self._is_away = not is_taken
            if is_taken:
                log.warning("%s takes traces again", self._name)
            else:
                log.warning("%s takes no traces: they are lost until it does", self._name)


class _SpanMaker:
    """Makes the SDK's spans of ours. The service's name is that of OTEL_SERVICE_NAME, or onward."""

    def __init__(self) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

        stated = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        own = {"service.version": onward.__version__}
        if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in stated:
            own["service.name"] = "onward"
        self._resource = Resource.create(own)
        self._scope = InstrumentationScope("onward", onward.__version__)
        self._kinds = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}
        self._span: Any = ReadableSpan
        self._context: Any = SpanContext
        self._flags = TraceFlags(TraceFlags.SAMPLED)
        self._state: Any = TraceState.from_header
        self._unset = Status(StatusCode.UNSET)
        self._failed: Any = lambda words: Status(StatusCode.ERROR, words)

    def __call__(self, span: Span) -> ReadableSpan:
        trace_id, state = span.context.trace_id, self._state([span.context.state])
        context = self._context(trace_id, span.context.span_id, False, self._flags, state)
        parent = self._context(trace_id, span.parent_id, True, self._flags) if span.parent_id else None
        made: ReadableSpan = self._span(
            span.name,
            context,
            parent,
            self._resource,
            dict(span.attributes),
            kind=self._kinds[span.kind],
            status=self._failed(span.error) if span.error else self._unset,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )
        return made
