"""Traces on their way to a collector: over real HTTP, unreachable, slow; nothing waits for it, and lost spans are
counted."""

from __future__ import annotations

import errno
import gzip
import logging
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onward
from onward import tracing
from onward.compose import telemetry
from onward.compose.telemetry import ExportingTracer, open_tracer, reason_of
from onward.errors import SetupError
from onward.settings import Settings
from onward.tracing import RequestTrace, Span, SpanContext
from tests.examples import UNICODE
from tests.test_tracing import PARENT
from tests.waiting import PATIENCE_SECONDS, wait_for

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
import requests  # noqa: E402
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans  # noqa: E402
from opentelemetry.proto.trace.v1 import trace_pb2  # noqa: E402
from opentelemetry.sdk.resources import Resource  # noqa: E402
from opentelemetry.sdk.trace import ReadableSpan  # noqa: E402
from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: E402
from opentelemetry.trace import SpanContext as SdkContext  # noqa: E402
from opentelemetry.trace import SpanKind, Status, StatusCode, TraceState  # noqa: E402

DECODED: dict[str, Callable[[bytes], bytes]] = {"": bytes, "gzip": gzip.decompress, "deflate": zlib.decompress}
"""By content encoding."""


class Collector:
    """A stand-in for an OpenTelemetry collector. `answers` lets it answer."""

    def __init__(self) -> None:
        self.status = 200
        self.answers = threading.Event()
        self.answers.set()
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.answers.wait(PATIENCE_SECONDS)
                if collector.status == 200:
                    decoded = DECODED[self.headers["content-encoding"] or ""](body)
                    message = trace_service.ExportTraceServiceRequest.FromString(decoded)
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    collector.requests.append((self.path, headers, message))
                self.send_response(collector.status)
                self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for _, _, message in self.requests
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()


@pytest.fixture
def tracer_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Opens tracers for a collector. They send after a short time, and drop only spans that are refused."""
    monkeypatch.setattr(telemetry, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(telemetry, "EXPORT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(telemetry, "CLOSE_SECONDS", 0.2)
    opened: list[ExportingTracer] = []

    def open_one(url: str, **more: Any) -> ExportingTracer:
        tracer = open_tracer(Settings(otlp_endpoint=url, **more))
        assert tracer is not None
        opened.append(tracer)
        return tracer

    yield open_one
    for tracer in opened:
        tracer.close()


def span(name: str = "x") -> Span:
    return Span(name, "internal", SpanContext(1, 2, True), 0, 1, 2)


def test_spans_arrive_as_they_are(tracer_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=me")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    with collecting() as collector:
        tracer = tracer_of(collector.url)
        caller = tracing.context_of(PARENT, "a=b")
        trace = RequestTrace(tracer, caller)
        trace.add("child", trace.context, trace.started, trace.started + 0.5, {"f": 0.5, "b": True}, kind="client")
        trace.end("POST /x", {"text": "ä", "n": 3, "list": ["a", "b"]}, "500")
        wait_for(lambda: len(collector.spans) == 2)
        path, headers, message = collector.requests[0]
        assert (path, headers["x-tenant"]) == ("/v1/traces", "me")
        (resource,) = message.resource_spans
        stated = {each.key: each.value.string_value for each in resource.resource.attributes}
        assert stated["service.name"] == "onward" and stated["deployment.environment.name"] == "test"
        found = {each.name: each for each in collector.spans}
        server, child = found["POST /x"], found["child"]
        assert caller is not None and server.trace_id.hex() == child.trace_id.hex() == f"{caller.trace_id:032x}"
        assert server.parent_span_id.hex() == f"{caller.span_id:016x}" and server.trace_state == "a=b"
        assert child.parent_span_id == server.span_id and (server.kind, child.kind) == (2, 3)
        assert child.end_time_unix_nano - child.start_time_unix_nano == pytest.approx(5e8, abs=1e3)
        assert (server.status.code, server.status.message, child.status.code) == (2, "500", 0)
        values = {each.key: each.value for each in server.attributes}
        assert values["text"].string_value == "ä" and values["n"].int_value == 3
        assert [each.string_value for each in values["list"].array_value.values] == ["a", "b"]
        wait_for(lambda: tracer.counts() == {"exported": 2, "dropped": 0, "failed": 0})


ATTRIBUTES = st.dictionaries(
    st.sampled_from(["a", "b", "gen_ai.request.model"]),
    st.text(UNICODE, max_size=9) | st.text("x", min_size=257, max_size=300) | st.booleans()
    | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.sampled_from([0, 1, 0.0, 1.0])
    | st.lists(st.text(UNICODE, max_size=3), max_size=3),
)  # fmt: skip
IDS = st.integers(1, 2**64 - 1)


@given(
    st.lists(
        st.builds(
            Span, st.text(UNICODE, max_size=9), st.sampled_from(["internal", "server", "client"]),
            st.builds(SpanContext, st.integers(1, 2**128 - 1), IDS, st.just(True), st.sampled_from(["", "a=b"])),
            st.just(0) | IDS, IDS, IDS, ATTRIBUTES, st.text(UNICODE, max_size=5),
        ),
        max_size=4,
    )
)  # fmt: skip
def test_spans_are_encoded_as_the_sdk_encodes_them(spans: list[Span]) -> None:
    """Except for flags, of which the SDK sets fewer."""
    encode = telemetry.SpanEncoder()
    ours = trace_service.ExportTraceServiceRequest.FromString(encode.request(map(encode.span, spans)))
    resource = Resource.create({"service.version": onward.__version__, "service.name": "onward"})
    scope = InstrumentationScope("onward", onward.__version__)
    theirs = encode_spans(
        [
            ReadableSpan(
                span.name,
                _sdk_context(span.context.trace_id, span.context.span_id, span.context.state),
                _sdk_context(span.context.trace_id, span.parent_id, "") if span.parent_id else None,
                resource,
                span.attributes,
                kind={"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}[span.kind],
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
                start_time=span.start_ns,
                end_time=span.end_ns,
                instrumentation_scope=scope,
            )
            for span in spans
        ]
    )
    (resource_spans,) = ours.resource_spans
    (scope_spans,) = resource_spans.scope_spans
    for span in scope_spans.spans:
        span.ClearField("flags")
    if not spans:
        assert not scope_spans.spans
        return
    for span in theirs.resource_spans[0].scope_spans[0].spans:
        span.ClearField("flags")
        if not span.status.code:
            span.ClearField("status")
    assert sorted(map(str, resource_spans.resource.attributes)) == sorted(
        map(str, theirs.resource_spans[0].resource.attributes)
    )
    resource_spans.resource.CopyFrom(theirs.resource_spans[0].resource)
    assert ours == theirs


def _sdk_context(trace_id: int, span_id: int, state: str) -> Any:
    return SdkContext(trace_id, span_id, False, trace_state=TraceState.from_header([state]))


@pytest.mark.parametrize(
    ("name", "parent_id", "flags"), [("server", 0, 0x101), ("server", 9, 0x301), ("internal", 9, 0x101)]
)
def test_only_the_first_span_of_a_server_has_a_remote_parent(name: Any, parent_id: int, flags: int) -> None:
    encoded = telemetry.SpanEncoder().span(Span("x", name, SpanContext(1, 2, True), parent_id, 1, 2))
    assert trace_pb2.Span.FromString(encoded).flags == flags


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_spans_are_compressed_where_that_is_asked_for(
    encoding: str, tracer_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", encoding)
    with collecting() as collector:
        tracer_of(collector.url).add(span("compressed"))
        wait_for(lambda: [each.name for each in collector.spans] == ["compressed"])
        assert collector.requests[0][1]["content-encoding"] == encoding


def test_credentials_are_those_of_the_named_provider(tracer_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Provider:
        def load(self) -> Callable[[], requests.Session]:
            session = requests.Session()
            session.auth = ("me", "secret")
            return lambda: session

    providers = {"mine": [Provider()]}
    monkeypatch.setattr(telemetry, "entry_points", lambda group, name: providers.get(name, []))
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "mine")
    with collecting() as collector:
        tracer_of(collector.url).add(span("private"))
        wait_for(lambda: [each.name for each in collector.spans] == ["private"])
        assert collector.requests[0][1]["authorization"].startswith("Basic ")
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "other")
    with pytest.raises(SetupError, match="credential provider other is not installed"):
        tracer_of("http://127.0.0.1:1")


def test_a_service_may_have_a_name_of_its_own(tracer_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-models")
    with collecting() as collector:
        tracer_of(collector.url + "/custom/path").add(span())
        wait_for(lambda: collector.requests)
        path, _, message = collector.requests[0]
        stated = {each.key: each.value.string_value for each in message.resource_spans[0].resource.attributes}
        assert path == "/custom/path" and stated["service.name"] == "my-models"


def test_nothing_waits_for_a_slow_collector_and_what_is_lost_is_counted(
    tracer_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "MAX_WAITING", 100)
    with collecting() as collector:
        collector.answers.clear()
        tracer = tracer_of(collector.url)
        tracer.add(span())
        wait_for(lambda: not tracer._waiting)  # the thread waits for the collector
        for _ in range(1000):
            tracer.add(span())
        assert tracer.counts() == {"exported": 0, "dropped": 900, "failed": 0}
        collector.answers.set()
        wait_for(lambda: tracer.counts() == {"exported": 101, "dropped": 900, "failed": 0})


def test_a_collector_that_is_away_is_logged_once_and_found_again(
    tracer_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting() as collector:
        collector.status = 400  # 5xx is retried
        tracer = tracer_of(collector.url)
        for number in range(1, 4):
            tracer.add(span())
            wait_for(lambda: tracer.counts()["failed"] == number)  # noqa: B023
        collector.status = 200
        tracer.add(span())
        wait_for(lambda: tracer.counts()["exported"] == 1)
        wait_for(lambda: "takes traces again" in caplog.text)
        own = [record.message for record in caplog.records if record.name == "onward.server"]
        assert own == [
            f"{collector.url}/v1/traces takes no traces (it answers 400): they are lost until it does",
            f"{collector.url}/v1/traces takes traces again",
        ]
        assert all(record.levelno == logging.WARNING for record in caplog.records)


@pytest.mark.parametrize("status", [302, 307])
def test_spans_that_are_answered_with_a_redirect_are_not_taken(status: int, tracer_of: Any, caplog: Any) -> None:
    with collecting() as collector:
        collector.status = status
        tracer = tracer_of(collector.url)
        tracer.add(span())
        wait_for(lambda: tracer.counts() == {"exported": 0, "dropped": 0, "failed": 1})
        wait_for(lambda: f"{collector.url}/v1/traces takes no traces (it answers {status})" in caplog.text)


def test_the_reason_why_a_collector_refuses_spans_is_logged_without_secrets(
    tracer_of: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=sk-secret")
    with collecting() as collector:
        url = collector.url
    monkeypatch.setattr(telemetry, "EXPORT_SECONDS", 0.3)  # a refused connection is retried until then
    tracer_of(f"{url}/x?key=sk-secret").add(span())
    wait_for(lambda: "takes no traces" in caplog.text)
    refused = os.strerror(errno.ECONNREFUSED)
    assert f"{url}/x takes no traces ({refused}): they are lost until it does" in caplog.text
    assert "secret" not in caplog.text
    problem = ValueError("header value: 'sk-secret'")
    problem.__cause__ = OSError("sk-secret")
    problem.__cause__.__context__ = problem
    assert reason_of(problem) == "ValueError"


def test_a_try_without_time_left_says_why_the_one_before_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = requests.exceptions.ConnectionError(OSError(errno.ECONNREFUSED, "refused"))
    problems = iter([refused, ValueError("timeout <= 0")])

    def fails(*_: object, **__: object) -> None:
        raise next(problems)

    sender = telemetry.Sender("http://127.0.0.1:1/v1/traces")
    monkeypatch.setattr(sender, "_make_request", fails)
    assert not sender.send(b"") and sender.problem == "refused"
    assert next(problems, None) is None
    sender.close()


def test_what_the_exporter_raises_itself_is_not_in_the_log_either(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise requests.exceptions.InvalidHeader("in the header value: 'sk-secret'")

    caplog.set_level(logging.DEBUG)
    sender = telemetry.Sender("http://127.0.0.1:1/v1/traces")
    monkeypatch.setattr(sender._exporter, "export", fails)
    assert not sender.send(b"") and sender.problem == "a header of OTEL_EXPORTER_OTLP_HEADERS is not valid"
    assert "secret" not in caplog.text
    sender.close()


def test_a_span_that_cannot_be_sent_takes_no_other_with_it(tracer_of: Any) -> None:
    with collecting() as collector:
        tracer = tracer_of(collector.url)
        names = ["before", "half \ud800", "after"]
        too_large = Span("bad", "internal", SpanContext(1, 1 << 70, True), 0, 1, 2)  # refused when it is encoded
        unknown: Any = Span("bad", "producer", SpanContext(1, 2, True), 0, 1, 2)  # type: ignore[arg-type]  # when made
        with tracer._lock:
            tracer._waiting.extend((each, 1) for each in (*map(span, names), too_large, unknown, span("last")))
            tracer._waiting_bytes += 6
        wait_for(lambda: sum(tracer.counts().values()) == 6)
        assert tracer.counts() == {"exported": 4, "dropped": 0, "failed": 2}
        assert [each.name for each in collector.spans] == ["before", "half ?", "after", "last"]


def test_long_texts_are_bounded_in_bytes_where_they_wait_and_in_a_request(
    tracer_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "MAX_WAITING_BYTES", 40_000)
    monkeypatch.setattr(telemetry, "MAX_BATCH_BYTES", 11_000)

    def long(text: str) -> Span:
        made = span()
        made.attributes["text"] = text
        return made

    with collecting() as collector:
        collector.answers.clear()
        tracer = tracer_of(collector.url)
        tracer.add(long("x" * 50_000))
        assert tracer.counts()["dropped"] == 1, "it is larger than all that may wait"
        tracer.add(long("x" * 20_000))
        wait_for(lambda: not tracer._waiting)  # alone it is sent whatever its size
        for text in ("x" * 4_000, "ä" * 1_000) * 5:
            tracer.add(long(text))
        assert tracer.counts()["dropped"] == 1 + 3 and len(tracer._waiting) == 7
        collector.answers.set()
        wait_for(lambda: tracer.counts()["exported"] == 8)
        sent = [message.resource_spans[0].scope_spans[0].spans for _, _, message in collector.requests]
        assert list(map(len, sent)) == [1, 2, 2, 2, 1]
        assert tracer._waiting_bytes == 0


def test_closing_sends_what_waits_within_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "PAUSE_SECONDS", 2 * PATIENCE_SECONDS)
    with collecting() as collector:
        for answers, seconds in ((True, PATIENCE_SECONDS), (False, 0.2)):
            monkeypatch.setattr(telemetry, "CLOSE_SECONDS", seconds)
            tracer = open_tracer(Settings(otlp_endpoint=collector.url))
            assert tracer is not None
            tracer.add(span())
            if not answers:
                collector.answers.clear()
            tracer.close()
            assert len(collector.spans) == 1


@pytest.mark.parametrize(("changes", "flag"), [({"trace_ratio": 0.5}, "ratio"), ({"trace_prompts": True}, "prompts")])
def test_settings_of_traces_need_a_collector(changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(SetupError, match=f"^--trace-{flag} is for traces, and none are sent: pass --otlp-endpoint URL"):
        open_tracer(Settings(**changes))


def test_without_the_extra_the_setting_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SetupError, match=r"pip install 'onward\[otel\]'"):
        open_tracer(Settings(otlp_endpoint="http://127.0.0.1:4318"))
    assert open_tracer(Settings()) is None
