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

MAX_WAITING, MAX_WAITING_BYTES = 8192, 64 << 20
"""Spans that wait to be sent; further ones are dropped and counted."""
MAX_BATCH, MAX_BATCH_BYTES = 512, 4 << 20
SPAN_BYTES = 1024
"""What a span takes beside its longer texts."""
PAUSE_SECONDS = 1.0
"""Between two batches, unless many wait."""
CREDENTIALS = tuple(f"OTEL_PYTHON_EXPORTER_OTLP_HTTP{signal}_CREDENTIAL_PROVIDER" for signal in ("", "_TRACES"))
"""Variables of the exporter that choose the session which it uses."""
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
        from requests import Session
    except ImportError:
        raise SetupError("--otlp-endpoint needs another package: run pip install 'onward[otel]'.") from None
    endpoint = settings.otlp_endpoint
    if urlsplit(endpoint).path in ("", "/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    attempts = session = None
    if not any(map(os.environ.get, CREDENTIALS)):
        session = Session()
        attempts = Attempts(session)
    exporter = OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS, session=session)
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it says so for every batch
    return ExportingTracer(
        exporter, without_secrets(endpoint), attempts, ratio=settings.trace_ratio, keeps_prompts=settings.trace_prompts
    )


class Attempts:
    """Watches the HTTP requests of a session of the library `requests`, on the thread that makes them."""

    def __init__(self, session: Any) -> None:
        self.count = 0
        self.problem = ""
        """Why the last one failed, without the address and the headers of the request, which may have secrets."""
        self._send = session.send
        session.send = self._watched

    def _watched(self, request: Any, **more: Any) -> Any:
        self.count += 1
        try:
            response = self._send(request, **more)
        except Exception as problem:
            self.problem = reason_of(problem)
            raise
        self.problem = "" if response.ok else f"it answers {response.status_code}"
        return response


def reason_of(problem: BaseException) -> str:
    """Return why a request failed in the words of the operating system or of TLS, else as the name of the exception:
    what libraries say may contain its address and headers."""
    causes, seen = [problem], set[int]()
    while causes:
        cause = causes.pop(0)
        if isinstance(cause, OSError) and cause.strerror:
            return str(cause.strerror)
        seen.add(id(cause))
        further = (*cause.args, getattr(cause, "reason", None), cause.__cause__, cause.__context__)
        causes += [each for each in further if isinstance(each, BaseException) and id(each) not in seen]
    return type(problem).__name__


class ExportingTracer:
    """Implements `tracing.Tracer` over an exporter of OpenTelemetry's SDK, which it owns. `name` is for the log;
    `attempts` are those of the exporter, where they are known."""

    def __init__(
        self,
        exporter: SpanExporter,
        name: str,
        attempts: Attempts | None = None,
        *,
        ratio: float = 1.0,
        keeps_prompts: bool = False,
    ) -> None:
        self.ratio = ratio
        self.keeps_prompts = keeps_prompts
        self._exporter = exporter
        self._name = name
        self._attempts = attempts
        self._lock = threading.Lock()
        """Guards what waits; held for microseconds."""
        self._waiting: deque[tuple[Span, int]] = deque()
        """With their sizes."""
        self._waiting_bytes = 0
        self._wakes = threading.Event()
        self._is_closed = False
        self._is_away = False
        self._counts = {"exported": 0, "dropped": 0, "failed": 0}
        self._make = _SpanMaker()
        self._thread = threading.Thread(target=self._run, name="onward-traces", daemon=True)
        self._thread.start()

    def add(self, span: Span) -> None:
        size = _size(span)
        with self._lock:
            if len(self._waiting) >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
                self._counts["dropped"] += 1
                return
            self._waiting.append((span, size))
            self._waiting_bytes += size
        if self._fills_a_batch:
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
            if not self._is_closed and not self._fills_a_batch:
                self._wakes.wait(PAUSE_SECONDS)
                self._wakes.clear()
            if made := self._made(self._next_batch()):
                self._send(made)

    @property
    def _fills_a_batch(self) -> bool:
        return len(self._waiting) >= MAX_BATCH or self._waiting_bytes >= MAX_BATCH_BYTES

    def _next_batch(self) -> list[Span]:
        batch: list[Span] = []
        room = MAX_BATCH_BYTES
        with self._lock:
            while self._waiting and len(batch) < MAX_BATCH and (not batch or self._waiting[0][1] <= room):
                span, size = self._waiting.popleft()
                batch.append(span)
                room -= size
                self._waiting_bytes -= size
        return batch

    def _made(self, batch: list[Span]) -> list[ReadableSpan]:
        """Return the SDK's spans, without those that it refuses."""
        made: list[ReadableSpan] = []
        for span in batch:
            try:
                made.append(self._make(span))
            except Exception as problem:
                log.debug("a span could not be made", exc_info=problem)
                self._counts["failed"] += 1
        return made

    def _send(self, spans: list[ReadableSpan]) -> None:
        """Send spans; where they cannot be encoded, halves of them, down to the one that is to blame."""
        before = 0 if self._attempts is None else self._attempts.count
        try:
            is_taken = self._exporter.export(spans).name == "SUCCESS"
        except Exception as problem:
            log.debug("traces could not be sent", exc_info=problem)
            is_taken = False
        was_sent = self._attempts is None or self._attempts.count > before
        if not was_sent and len(spans) > 1:
            self._send(spans[: len(spans) // 2])
            self._send(spans[len(spans) // 2 :])
            return
        self._counts["exported" if is_taken else "failed"] += len(spans)
        if was_sent and is_taken is self._is_away:
            self._is_away = not is_taken
            if is_taken:
                log.warning("%s takes traces again", self._name)
            else:
                why = f" ({self._attempts.problem})" if self._attempts is not None else ""
                log.warning("%s takes no traces%s: they are lost until it does", self._name, why)


def _size(span: Span) -> int:
    """Return the bytes that a span takes, at most."""
    texts = (value for value in span.attributes.values() if isinstance(value, str))
    return SPAN_BYTES + sum(len(text) if text.isascii() else 4 * len(text) for text in (span.name, *texts))


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
            _valid(span.name),
            context,
            parent,
            self._resource,
            {name: _valid(value) if isinstance(value, str) else value for name, value in span.attributes.items()},
            kind=self._kinds[span.kind],
            status=self._failed(_valid(span.error)) if span.error else self._unset,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )
        return made


def _valid(text: str) -> str:
    """Return a text that can be UTF-8: a client may have sent half of a surrogate pair, for instance as a model."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
