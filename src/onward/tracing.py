"""Traces: the spans of a request, and its place among those of other servers (W3C Trace Context). Without I/O.

Names are those of OpenTelemetry's semantic conventions, for HTTP and for generative AI (version 1.41, in development).
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

Kind = Literal["internal", "server", "client"]
Attributes = dict[str, str | int | float | bool | list[str]]
MAX_STATE = 512
"""Characters of a tracestate that are passed on, as the standard demands at least."""
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_ids = random.Random()  # ids are to differ, not to be secret


class SpanContext(NamedTuple):
    """What names a span for others. `state` is what other systems add to it, the header tracestate."""

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request that this span makes."""
        flags = "01" if self.is_sampled else "00"
        parent = {"traceparent": f"00-{self.trace_id:032x}-{self.span_id:016x}-{flags}"}
        return parent | ({"tracestate": self.state} if self.state else {})

    def child(self) -> SpanContext:
        """Return the context of a new span of the same trace."""
        return SpanContext(self.trace_id, _ids.getrandbits(64) or 1, self.is_sampled, self.state)


def context_of(traceparent: str | None, tracestate: str | None = None) -> SpanContext | None:
    """Return the span that a request comes from, None where its headers are missing or not valid."""
    if not traceparent:
        return None
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    if found is None or (found[1] == "00" and found[5]):
        return None
    state = (tracestate or "").strip()
    is_valid = len(state) <= MAX_STATE and state.isascii() and state.isprintable()
    return SpanContext(int(found[2], 16), int(found[3], 16), bool(int(found[4], 16) & 1), state if is_valid else "")


@dataclass(slots=True)
class Span:
    """Times are Unix nanoseconds; `parent_id` is 0 for the first span of a trace. `error`: why it failed, "" if not."""

    name: str
    kind: Kind
    context: SpanContext
    parent_id: int
    start_ns: int
    end_ns: int = 0
    attributes: Attributes = field(default_factory=dict)
    error: str = ""


class Tracer(Protocol):
    """Takes spans that have ended. `ratio`: the share of requests that are traced, of those that come without a trace
    of their own. `keeps_prompts`: whether spans may have prompts and completions."""

    ratio: float
    keeps_prompts: bool

    def add(self, span: Span) -> None:
        """Called on any thread. Never raises or waits."""

    def counts(self) -> dict[str, int]:
        """Return how many spans were exported, dropped because too many waited, and not taken by the collector."""
        ...


class RequestTrace:
    """The spans of one HTTP request. `context` is that of the request itself. Times are those of `time.perf_counter`.

    One that is not sampled records nothing, and says so to servers that it calls.
    """

    def __init__(self, tracer: Tracer, caller: SpanContext | None) -> None:
        self.tracer = tracer
        self._parent_id = 0 if caller is None else caller.span_id
        if caller is None:
            is_sampled = tracer.ratio >= 1 or _ids.random() < tracer.ratio
            caller = SpanContext(_ids.getrandbits(128) or 1, 0, is_sampled)
        self.context = caller.child()
        self.started = time.perf_counter()
        self._wall_ns = time.time_ns() - int(self.started * 1e9)
        """What makes Unix time of a time: asked for once, so that a jump of the clock does not bend a trace."""

    @property
    def is_sampled(self) -> bool:
        return self.context.is_sampled

    def end(self, name: str, attributes: Attributes, error: str = "") -> None:
        """The request has ended."""
        self._add(Span(name, "server", self.context, self._parent_id, self._ns(self.started), 0, attributes, error))

    def add(
        self,
        name: str,
        parent: SpanContext,
        start: float,
        end: float,
        attributes: Attributes | None = None,
        *,
        kind: Kind = "internal",
        context: SpanContext | None = None,
        error: str = "",
    ) -> None:
        """Add a span that has ended, of its own `context` if others have it as their parent."""
        made = context or parent.child()
        self._add(Span(name, kind, made, parent.span_id, self._ns(start), self._ns(end), attributes or {}, error))

    def _add(self, span: Span) -> None:
        if self.context.is_sampled:
            span.end_ns = span.end_ns or self._ns(time.perf_counter())
            self.tracer.add(span)

    def _ns(self, moment: float) -> int:
        return self._wall_ns + int(moment * 1e9)


class EngineTrace:
    """A completion on its way through an engine: how long it waits, is prefilled, is decoded, and what it asks of other
    servers. Made when it is planned; used on the thread of the request's event loop, except `call`."""

    def __init__(self, request: RequestTrace, parent: SpanContext) -> None:
        self._request = request
        self._parent = parent
        self.context = parent.child()
        self._submitted = 0.0
        self._began = self._prefilled = 0.0
        self._has_ended = False

    def submitted(self) -> None:
        """The engine has its jobs."""
        self._submitted = time.perf_counter()

    def prefilled(self, seconds: float) -> None:
        """A prompt has been prefilled, which began so long ago; 0: not known."""
        now = time.perf_counter()
        began = max(self._submitted, now - seconds)
        self._began = min(self._began or began, began)
        self._prefilled = now

    def end(self, attributes: Attributes, error: str = "") -> None:
        """The completion has ended, or was cancelled."""
        self._has_ended = True
        now = time.perf_counter()
        if not self._submitted:
            return
        add, own = self._request.add, self.context
        add("queue", own, self._submitted, self._began or now)
        if self._prefilled:
            add("prefill", own, self._began, self._prefilled)
            add("decode", own, self._prefilled, now)
        add("engine", self._parent, self._submitted, now, attributes, context=own, error=error)

    @contextmanager
    def call(self, method: str, address: Mapping[str, str | int], path: str) -> Iterator[UpstreamCall]:
        """A request to another server, for as long as the context lasts. On any thread. One that begins after the
        completion has ended is recorded nowhere."""
        call, started, error = UpstreamCall(self.context.child()), time.perf_counter(), ""
        if self._has_ended:
            yield call
            return
        try:
            yield call
        except Exception as problem:
            error = type(problem).__name__  # not what it says, which may be the words of that server
            raise
        finally:
            attributes: Attributes = {"http.request.method": method, "url.path": path, **address}
            if call.status:
                attributes["http.response.status_code"] = call.status
                error = error or (str(call.status) if call.status >= 400 else "")
            if error:
                attributes["error.type"] = str(call.status) if call.status >= 400 else error
            self._request.add(
                method, self.context, started, time.perf_counter(), attributes,
                kind="client", context=call.context, error=error,
            )  # fmt: skip


class UpstreamCall:
    """A request to another server. `status` is that of its answer, 0 before."""

    def __init__(self, context: SpanContext) -> None:
        self.context = context
        self.status = 0


current: ContextVar[EngineTrace | None] = ContextVar("trace", default=None)
"""That of the completion which is submitted; tasks that compute it inherit it, on other event loops too."""
