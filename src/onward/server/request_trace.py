"""The spans of requests: what OpenTelemetry's conventions say of an HTTP request, and of a completion."""

from __future__ import annotations

import json
import time

from onward.api.errors import api_error
from onward.backends.base import Needs
from onward.completions.answer import TokenCounts
from onward.completions.request import CompletionRequest
from onward.errors import RequestCancelled
from onward.server.exchange import HttpExchange
from onward.server.transcript import CollectedChoices
from onward.tracing import Attributes, EngineTrace, RequestTrace, Tracer, context_of

UNTRACED = frozenset({"/health", "/live", "/metrics"})
"""Polled every few seconds by monitoring."""
PROVIDER = "onward"
CANCELLED = "cancelled"
"""The error of a completion whose client left."""
MAX_TEXT, MAX_MESSAGES = 16_384, 8
"""A span has at most this many characters of each prompt or completion, and this many of them."""
_JSON = frozenset({"response_format", "json_schema", "json_object"})
_OPTIONAL = (
    ("gen_ai.request.model", "model", None),
    ("gen_ai.request.choice.count", "n", 1),
    ("gen_ai.request.seed", "seed", None),
    ("gen_ai.request.top_k", "top_k", 0),
    ("gen_ai.request.frequency_penalty", "frequency_penalty", 0.0),
    ("gen_ai.request.presence_penalty", "presence_penalty", 0.0),
)
"""Attributes of a request: the field, and the value with which it is not recorded."""


def begin(tracer: Tracer | None, exchange: HttpExchange) -> None:
    """Begin the trace of a request, where there is a tracer."""
    if tracer is not None and exchange.path not in UNTRACED:
        exchange.trace = RequestTrace(
            tracer, context_of(exchange.header(b"traceparent"), exchange.header(b"tracestate"))
        )


def end(exchange: HttpExchange) -> None:
    """End the trace of a request, whose record has its route and status."""
    trace, record = exchange.trace, exchange.record
    if trace is None or not trace.is_sampled:
        return
    attributes: Attributes = {
        "http.request.method": exchange.method,
        "http.route": record.route,
        "url.path": exchange.path,
        "url.scheme": exchange.scheme,
        "http.response.status_code": record.status,
        "onward.request.id": exchange.id,
        "onward.key.name": record.key,
    }
    error = record.error or (str(record.status) if record.status >= 500 else "")
    if error:
        attributes["error.type"] = error
    trace.end(f"{exchange.method} {record.route}", attributes, error)


class CompletionTrace:
    """A completion of a request."""

    def __init__(self, trace: RequestTrace, request: CompletionRequest, *, may_keep_prompts: bool) -> None:
        """`may_keep_prompts`: whether those of this key may be kept, if the tracer keeps any."""
        self._trace = trace
        self._request = request
        self._keeps_prompts = may_keep_prompts and trace.is_sampled and trace.tracer.keeps_prompts
        self._started = time.perf_counter()
        self._context = trace.context.child()
        self.engine = EngineTrace(trace, self._context)
        self._needs: Needs | None = None
        self._choices = CollectedChoices(max_choices=MAX_MESSAGES if self._keeps_prompts else 0, max_text=MAX_TEXT + 1)
        self.generated = self._choices.add
        """Takes the deltas of each step, as they are sent."""

    def planned(self, needs: Needs) -> None:
        self._needs = needs

    def end(self, counts: TokenCounts, first_token_ms: float | None = None, problem: Exception | None = None) -> None:
        """End the span: the completion has ended, was cancelled, or was refused or failed for a reason."""
        if not self._trace.is_sampled:
            return
        attributes = _asked(self._request)
        if self._needs is not None:
            attributes |= self._answered(self._needs, counts)
            if first_token_ms is not None and self._request.stream:
                attributes["gen_ai.response.time_to_first_chunk"] = first_token_ms / 1000
        if error := self._error(problem):
            attributes["error.type"] = error
        if self._keeps_prompts:
            attributes |= self._messages()
        self.engine.end({"onward.tokens.computed": counts.computed}, error)
        name = f"text_completion {self._request.model or ''}".rstrip()
        self._trace.add(
            name, self._trace.context, self._started, time.perf_counter(), attributes,
            context=self._context, error=error,
        )  # fmt: skip

    def _error(self, problem: Exception | None) -> str:
        if isinstance(problem, RequestCancelled) or (problem is None and not self._choices.reasons):
            return CANCELLED
        if problem is None:
            return ""
        shown = api_error(problem)
        return shown.code or shown.type

    def _answered(self, needs: Needs, counts: TokenCounts) -> Attributes:
        return {
            "gen_ai.response.model": needs.model,
            "gen_ai.response.finish_reasons": self._choices.reasons,
            "gen_ai.usage.input_tokens": counts.prompt,
            "gen_ai.usage.output_tokens": counts.completion,
            "gen_ai.usage.cache_read.input_tokens": counts.cached,
            "gen_ai.usage.reasoning.output_tokens": counts.reasoning,
            "onward.fingerprint": needs.fingerprint,
        }

    def _messages(self) -> Attributes:
        """Return prompts and completions, in the convention's JSON. Prompts of token ids are their number."""
        prompts = self._request.prompts[:MAX_MESSAGES]
        texts = [each if isinstance(each, str) else f"({len(each)} token ids)" for each in prompts]
        given = [{"role": "user", "parts": [_part(text)]} for text in texts]
        made = [
            {"role": "assistant", "parts": [_part(text)], "finish_reason": reason or ""}
            for _, text, reason in self._choices.texts()
        ]
        return {
            "gen_ai.input.messages": json.dumps(given, ensure_ascii=False),
            "gen_ai.output.messages": json.dumps(made, ensure_ascii=False),
        }


def _part(text: str) -> dict[str, str]:
    cut = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
    return {"type": "text", "content": cut.encode("utf-8", "replace").decode()}


def _asked(request: CompletionRequest) -> Attributes:
    """Return the parameters of a request, without any of its text."""
    asked: Attributes = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.output.type": "json" if request.constraint in _JSON else "text",
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.top_p": request.top_p,
        "gen_ai.request.stream": request.stream,
    }
    for name, field, neutral in _OPTIONAL:
        value = getattr(request, field)
        if value is not None and value != neutral:
            asked[name] = value
    return asked
