"""Spans for an OpenTelemetry collector: kept until a thread sends them, by OTLP over HTTP.

OpenTelemetry's SDK makes a span under locks and checks as it begins, its batch processor does not count what it drops,
and its encoder makes every attribute anew. Here a request only appends what it knows when it ends, and the thread
encodes that, with attributes that are mostly those of earlier spans.
"""

from __future__ import annotations

import gzip
import logging
import os
import threading
import zlib
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import urlsplit

import onward
from onward.errors import SetupError
from onward.network import without_secrets
from onward.settings import Settings
from onward.tracing import Span

log = logging.getLogger("onward.server")

MAX_WAITING, MAX_WAITING_BYTES = 8192, 64 << 20
"""Spans that wait to be sent; further ones are dropped and counted."""
MAX_BATCH, MAX_BATCH_BYTES = 2048, 4 << 20
SPAN_BYTES, LONG_TEXT = 1024, 64
"""Bytes that a span takes, not counting texts with more characters than the second number."""
PAUSE_SECONDS = 1.0
"""Between two batches, unless many wait."""
CREDENTIALS = tuple(f"OTEL_PYTHON_EXPORTER_OTLP_HTTP{signal}_CREDENTIAL_PROVIDER" for signal in ("", "_TRACES"))
"""Variables of the exporter that name the provider of the session for its requests."""
EXPORT_SECONDS = 10.0
"""How long a collector may take for a batch."""
CLOSE_SECONDS = 3.0
"""How long the end of the server waits until the last spans are sent."""
MAX_KEPT_TEXT = 256
"""Characters of an attribute that is kept in its encoded form, for further spans."""
REASONS = {"InvalidHeader": "a header of OTEL_EXPORTER_OTLP_HEADERS is not valid"}
"""What exceptions of `requests` mean that no error of the operating system caused."""
KINDS = {"internal": 1, "server": 2, "client": 3}
IS_SAMPLED, KNOWS_PARENT, HAS_REMOTE_PARENT = 0x001, 0x100, 0x200
"""Flags of a span in OTLP."""
FAILED = 2
"""A span's status."""


def open_tracer(settings: Settings) -> ExportingTracer | None:
    """Return the tracer that takes spans, None where no collector is named. Raises SetupError without the extra, and
    for settings of traces without a collector."""
    if settings.otlp_endpoint is None:
        for name in ("trace_ratio", "trace_prompts"):
            if getattr(settings, name) != getattr(Settings, name):
                raise SetupError(
                    f"--{name.replace('_', '-')} is for traces, and none are sent: pass --otlp-endpoint URL too, or "
                    "leave it out."
                )
        return None
    endpoint = settings.otlp_endpoint
    if urlsplit(endpoint).path in ("", "/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    try:
        sender, encode = Sender(endpoint), SpanEncoder()
    except ImportError:
        raise SetupError("--otlp-endpoint needs another package: run pip install 'onward[otel]'.") from None
    return ExportingTracer(
        sender, encode, without_secrets(endpoint), ratio=settings.trace_ratio, keeps_prompts=settings.trace_prompts
    )


class Sender:
    """Sends encoded spans through OpenTelemetry's exporter, which knows headers, certificates, compression, and when to
    try again. It encodes a span of its own for each request; the session that makes its requests, one of the library
    `requests`, sends ours in its place. Used on one thread. Raises ImportError, SetupError."""

    def __init__(self, endpoint: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it says so for every batch
        session = _session()
        self._exporter: Any = OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS, session=session)
        self._stand_in = [ReadableSpan("", SpanContext(1, 1, is_remote=False))]
        self._body = b""
        self._make_request = session.send
        session.send = self._send_body
        self.problem = ""
        """Why the last one failed, without the address and the headers of the request, which may have secrets."""

    def send(self, body: bytes) -> bool:
        """Return whether the collector has taken an ExportTraceServiceRequest. Waits for EXPORT_SECONDS at most."""
        self._body, self.problem = body, ""
        try:
            is_taken = self._exporter.export(self._stand_in).name == "SUCCESS"
        except Exception as problem:
            self._failed(problem)
            return False
        return is_taken and not self.problem

    def _failed(self, problem: Exception) -> None:
        """Keep why a request failed. The exporter tries again with what is left of its time: if that is negative,
        `requests` raises a ValueError, and the reason of the previous attempt says more."""
        if not self.problem or type(problem) is not ValueError:
            self.problem = reason_of(problem)

    def _send_body(self, request: Any, **more: Any) -> Any:
        body = self._body
        match request.headers.get("content-encoding"):
            case "gzip":
                body = gzip.compress(body)
            case "deflate":
                body = zlib.compress(body)
        request.prepare_body(body, None)
        try:
            response = self._make_request(request, **more)
        except Exception as problem:
            self._failed(problem)
            raise
        is_taken = 200 <= response.status_code < 300  # the exporter takes redirects for successes, and follows none
        self.problem = "" if is_taken else f"it answers {response.status_code}"
        return response

    def close(self) -> None:
        self._exporter.shutdown()


def _session() -> Any:
    """Return the session of the library `requests` that the exporter's variables name, by default a new one. Raises
    ImportError, SetupError."""
    from requests import Session

    name = next(filter(None, map(os.environ.get, CREDENTIALS)), None)
    if name is None:
        return Session()
    for provider in entry_points(group="opentelemetry_otlp_credential_provider", name=name):
        return provider.load()()
    raise SetupError(f"OpenTelemetry's credential provider {name} is not installed.")


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
    return REASONS.get(type(problem).__name__, type(problem).__name__)


class ExportingTracer:
    """Implements `tracing.Tracer` over a sender, which it owns. `name` is for the log."""

    def __init__(
        self, sender: Sender, encode: SpanEncoder, name: str, *, ratio: float = 1.0, keeps_prompts: bool = False
    ) -> None:
        self.ratio = ratio
        self.keeps_prompts = keeps_prompts
        self._sender = sender
        self._encode = encode
        self._name = name
        self._lock = threading.Lock()
        """Guards what waits; held for microseconds."""
        self._waiting: deque[tuple[Span, int]] = deque()
        """With their sizes."""
        self._waiting_bytes = 0
        self._wakes = threading.Event()
        self._is_closed = False
        self._is_away = False
        self._counts = {"exported": 0, "dropped": 0, "failed": 0}
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
        self._sender.close()

    def _run(self) -> None:
        while not (self._is_closed and not self._waiting):
            if not self._is_closed and not self._fills_a_batch:
                self._wakes.wait(PAUSE_SECONDS)
                self._wakes.clear()
            if encoded := self._encoded(self._next_batch()):
                self._send(encoded)

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

    def _encoded(self, batch: list[Span]) -> list[bytes]:
        """Return spans in their encoded form, without those that have none."""
        encoded: list[bytes] = []
        for span in batch:
            try:
                encoded.append(self._encode.span(span))
            except Exception as problem:
                log.debug("a span could not be encoded", exc_info=problem)
                self._counts["failed"] += 1
        return encoded

    def _send(self, spans: list[bytes]) -> None:
        is_taken = self._sender.send(self._encode.request(spans))
        self._counts["exported" if is_taken else "failed"] += len(spans)
        if is_taken is self._is_away:
            self._is_away = not is_taken
            if is_taken:
                log.warning("%s takes traces again", self._name)
            else:
                why = f" ({self._sender.problem})" if self._sender.problem else ""
                log.warning("%s takes no traces%s: they are lost until it does", self._name, why)


def _size(span: Span) -> int:
    """Return the bytes that a span takes, about."""
    size = SPAN_BYTES
    for text in (span.name, *span.attributes.values()):
        if isinstance(text, str) and len(text) > LONG_TEXT:
            size += len(text) if text.isascii() else 4 * len(text)
    return size


class SpanEncoder:
    """Encodes spans as OTLP has them, in protobuf. The parts of a message may be encoded one by one and joined: so an
    attribute that spans share is encoded once. The service's name is that of OTEL_SERVICE_NAME, or onward. Raises
    ImportError without the extra."""

    def __init__(self) -> None:
        from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
        from opentelemetry.proto.resource.v1.resource_pb2 import Resource
        from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
        from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
        from opentelemetry.sdk.resources import Resource as StatedResource

        self._value: Any = AnyValue
        self._list: Any = ArrayValue
        self._pair: Any = KeyValue
        self._span: Any = Message
        self._status: Any = Status
        self._kept = lru_cache(maxsize=2048, typed=True)(self._attribute)
        stated = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        own = {"service.version": onward.__version__}
        if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in stated:
            own["service.name"] = "onward"
        pairs = [self._pair(key=key, value=self._any(it)) for key, it in StatedResource.create(own).attributes.items()]
        self._resource: bytes = ResourceSpans(resource=Resource(attributes=pairs)).SerializeToString()
        scope = InstrumentationScope(name="onward", version=onward.__version__)
        self._scope: bytes = ScopeSpans(scope=scope).SerializeToString()

    def request(self, spans: Iterable[bytes]) -> bytes:
        """Return an ExportTraceServiceRequest with these spans."""
        of_scope = self._scope + b"".join([_framed(_SPANS, span) for span in spans])
        return _framed(_RESOURCE_SPANS, self._resource + _framed(_SCOPE_SPANS, of_scope))

    def span(self, span: Span) -> bytes:
        """Return a span. Raises whatever says that it has no form in OTLP."""
        trace_id, span_id, _, state = span.context
        flags = IS_SAMPLED | KNOWS_PARENT
        if span.kind == "server" and span.parent_id:
            flags |= HAS_REMOTE_PARENT
        message = self._span(
            trace_id=trace_id.to_bytes(16, "big"),
            span_id=span_id.to_bytes(8, "big"),
            parent_span_id=span.parent_id.to_bytes(8, "big") if span.parent_id else b"",
            trace_state=state,
            name=_valid(span.name),
            kind=KINDS[span.kind],
            start_time_unix_nano=span.start_ns,
            end_time_unix_nano=span.end_ns,
            flags=flags,
        )
        if span.error:
            message.status.CopyFrom(self._status(code=FAILED, message=_valid(span.error)))
        parts = [message.SerializeToString()]
        for name, value in span.attributes.items():
            is_long = isinstance(value, str) and len(value) > MAX_KEPT_TEXT
            kept = self._attribute if is_long else self._kept
            parts.append(kept(name, tuple(value) if isinstance(value, list) else value))
        return b"".join(parts)

    def _attribute(self, name: str, value: str | float | bool | tuple[str, ...]) -> bytes:
        """Return the part of a span that is this attribute."""
        attribute = self._pair(key=name, value=self._any(value))
        encoded: bytes = self._span(attributes=[attribute]).SerializeToString()
        return encoded

    def _any(self, value: Any) -> Any:
        match value:
            case bool():
                return self._value(bool_value=value)
            case str():
                return self._value(string_value=_valid(value))
            case int():
                return self._value(int_value=value)
            case float():
                return self._value(double_value=value)
        return self._value(array_value=self._list(values=[self._any(each) for each in value]))


_RESOURCE_SPANS, _SCOPE_SPANS, _SPANS = b"\x0a", b"\x12", b"\x12"
"""The tags of messages within a request, within one resource, and within one scope."""


def _framed(tag: bytes, message: bytes) -> bytes:
    """Return a message as a part of another."""
    length, size = bytearray(), len(message)
    while size > 0x7F:
        length.append(0x80 | size & 0x7F)
        size >>= 7
    length.append(size)
    return tag + length + message


def _valid(text: str) -> str:
    """Return a text that can be UTF-8: a client may have sent half of a surrogate pair, for instance as a model."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
