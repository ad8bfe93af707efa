"""W3C Trace Context, and the spans of a completion on its way through an engine."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.tracing import EngineTrace, RequestTrace, Span, SpanContext, context_of

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """Implements Tracer: collects spans."""

    def __init__(self, *, ratio: float = 1.0, keeps_prompts: bool = False) -> None:
        self.ratio = ratio
        self.keeps_prompts = keeps_prompts
        self.found: list[Span] = []

    def add(self, span: Span) -> None:
        assert 0 < span.start_ns <= span.end_ns
        self.found.append(span)

    def counts(self) -> dict[str, int]:
        return {"exported": len(self.found), "dropped": 0, "failed": 0}

    def __getitem__(self, name: str) -> Span:
        (span,) = (span for span in self.found if span.name == name)
        return span

    @property
    def names(self) -> list[str]:
        return sorted(span.name for span in self.found)


def test_a_valid_header_names_the_caller() -> None:
    found = context_of(PARENT, " congo=t61rcWkgMzE ")
    assert found == SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True, "congo=t61rcWkgMzE")
    assert found is not None and found.headers == {"traceparent": PARENT, "tracestate": "congo=t61rcWkgMzE"}
    later = context_of("cc" + PARENT[2:] + "-what-the-future-will-be-like")
    assert later is not None and later.is_sampled
    assert context_of(PARENT[:-2] + "02") == SpanContext(found.trace_id, found.span_id, False)


@pytest.mark.parametrize(
    "header",
    [
        None, "", "00", PARENT[:-1], PARENT + "-x", "ff" + PARENT[2:], PARENT.upper(), PARENT.replace("b7ad", "g7ad"),
        "00-" + "0" * 32 + "-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01", "é" * 55,
    ],
)  # fmt: skip
def test_an_invalid_header_names_nobody(header: str | None) -> None:
    assert context_of(header) is None


@pytest.mark.parametrize("state", ["x" * 513, "a=\x7f", "ä=1"])
def test_a_state_that_cannot_be_passed_on_is_left_out(state: str) -> None:
    found = context_of(PARENT, state)
    assert found is not None and found.state == ""


@given(st.text(alphabet=string.hexdigits + "-", max_size=60))
def test_any_text_is_a_header_or_none(text: str) -> None:
    found = context_of(text)
    if found is not None and text.startswith("00"):
        assert found.headers["traceparent"][:-2] == text.strip()[:-2]


def test_a_request_continues_the_trace_of_its_caller() -> None:
    spans = Spans(ratio=0.0)
    caller = context_of(PARENT)
    assert caller is not None
    trace = RequestTrace(spans, caller)
    trace.end("POST /x", {"a": 1}, "500")
    span = spans["POST /x"]
    assert (span.kind, span.parent_id, span.attributes, span.error) == ("server", caller.span_id, {"a": 1}, "500")
    assert span.context.trace_id == caller.trace_id and span.context.span_id not in (0, caller.span_id)
    assert abs(span.start_ns - time.time_ns()) < 60e9


@pytest.mark.parametrize(("ratio", "is_sampled"), [(0.0, False), (1.0, True)])
def test_a_request_without_a_caller_is_traced_as_the_ratio_says(ratio: float, is_sampled: bool) -> None:
    spans = Spans(ratio=ratio)
    trace = RequestTrace(spans, None)
    trace.end("x", {})
    assert trace.is_sampled is is_sampled and len(spans.found) == is_sampled
    assert trace.context.headers["traceparent"].endswith("01" if is_sampled else "00")


def test_what_the_caller_does_not_record_is_not_recorded_and_passed_on_so() -> None:
    spans = Spans()
    trace = RequestTrace(spans, context_of(PARENT[:-2] + "00"))
    engine = EngineTrace(trace, trace.context)
    engine.submitted()
    with engine.call("POST", {}, "/x") as call:
        assert call.context.headers["traceparent"].endswith("-00")
    engine.end({})
    trace.end("x", {})
    assert spans.found == []


def traced() -> tuple[Spans, EngineTrace]:
    spans = Spans()
    trace = RequestTrace(spans, None)
    return spans, EngineTrace(trace, trace.context)


def test_the_spans_of_an_engine_follow_each_other() -> None:
    spans, engine = traced()
    engine.submitted()
    time.sleep(0.02)
    engine.prefilled(0.01)
    engine.prefilled(0.001)
    engine.end({"n": 3})
    assert spans.names == ["decode", "engine", "prefill", "queue"]
    queue, prefill, decode, whole = (spans[name] for name in ("queue", "prefill", "decode", "engine"))
    assert whole.start_ns == queue.start_ns and queue.end_ns == prefill.start_ns < prefill.end_ns == decode.start_ns
    assert decode.end_ns == whole.end_ns and prefill.end_ns - prefill.start_ns >= 9e6
    assert {each.parent_id for each in (queue, prefill, decode)} == {whole.context.span_id}
    assert whole.attributes == {"n": 3} and len({each.context.span_id for each in spans.found}) == 4


def test_a_prefill_cannot_begin_before_it_was_submitted() -> None:
    spans, engine = traced()
    engine.submitted()
    engine.prefilled(3600.0)
    engine.end({})
    assert spans["prefill"].start_ns == spans["engine"].start_ns


def test_a_request_that_ended_while_it_waited_has_no_span_but_the_queues() -> None:
    spans, engine = traced()
    engine.submitted()
    engine.end({}, "overloaded")
    assert spans.names == ["engine", "queue"] and spans["engine"].error == "overloaded"
    spans, engine = traced()
    engine.end({}, "invalid")
    assert spans.names == [], "it was refused before the engine had it"


def test_calls_are_spans_of_clients_until_the_completion_has_ended() -> None:
    spans, engine = traced()
    with engine.call("POST", {"server.address": "gpu", "server.port": 80}, "/v1/x") as call:
        call.status = 503
    with pytest.raises(ValueError), engine.call("GET", {}, "/y"):
        raise ValueError("the server says that 'a very private prompt' is wrong")
    engine.submitted()
    engine.end({})
    with engine.call("PUT", {}, "/z"):
        pass
    found = spans["POST"]
    assert (found.kind, found.parent_id, found.context) == ("client", spans["engine"].context.span_id, call.context)
    assert found.attributes == {
        "http.request.method": "POST", "url.path": "/v1/x", "server.address": "gpu", "server.port": 80,
        "http.response.status_code": 503, "error.type": "503",
    }  # fmt: skip
    assert spans["GET"].error == spans["GET"].attributes["error.type"] == "ValueError" and "PUT" not in spans.names
    assert "private" not in repr(spans.found)
