"""The Prometheus metrics, in a registry of their own. Labels are bound once per model, never per token."""

from __future__ import annotations

import copy
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import onward
from onward.api.errors import api_error
from onward.backends.base import Backend
from onward.completions.answer import Answer, Delta, TokenCounts
from onward.errors import ApiError, EngineStopped, Overloaded, RequestRejected
from onward.server.account import Account
from onward.server.collectors import LatencyCollector, Reading, load_metrics
from onward.server.exchange import HttpExchange, RequestRecord
from onward.server.logs import one_line
from onward.server.request_trace import CompletionTrace
from onward.server.transcript import Transcript
from onward.service.grant import Grant
from onward.service.records import CLIENT_LEFT

log = logging.getLogger("onward.server")

WARNING_HEADER = b"onward-warning"
SHORT = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5)
LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)


class KeyMetrics:
    """Counts what the named keys are used for. Labels are only names that the operator wrote into the key file."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "onward_key_requests", "HTTP requests by the name of their key.", ["key"], registry=registry
        )
        self._tokens = Counter(
            "onward_key_tokens",
            "Tokens by the name of the key. Kind: prompt or completion.",
            ["key", "kind"],
            registry=registry,
        )
        self._names: set[str] = set()

    def count(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        if record.key == "-":
            return
        self._names.add(record.key)
        self._requests.labels(record.key).inc()
        self.count_tokens(record.key, record.prompt_tokens, record.completion_tokens)

    def count_tokens(self, key: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Count tokens of the key of this name, of a request that is counted."""
        if key in self._names:
            self._tokens.labels(key, "prompt").inc(prompt_tokens)
            self._tokens.labels(key, "completion").inc(completion_tokens)

    def keep(self, names: frozenset[str]) -> None:
        """Drop the counts of all other keys, so that a file that changes often does not add labels forever."""
        for name in self._names - names:
            self._requests.remove(name)
            self._tokens.remove(name, "prompt")
            self._tokens.remove(name, "completion")
        self._names &= names


def warn(exchange: HttpExchange, answer: Answer, warned: set[str]) -> None:
    """Add an answer's warning to the response, which has not begun. `warned` are the models that the log names."""
    exchange.headers.append((WARNING_HEADER, one_line(answer.warning).encode("ascii", "backslashreplace")))
    if answer.model not in warned:
        warned.add(answer.model)
        named = "" if answer.warning.startswith(answer.model) else f"{answer.model}: "
        log.warning(
            "%s%s (Said once; every such response has the header %s.)", named, answer.warning, WARNING_HEADER.decode()
        )


class ModelMetrics:
    """The per-model metrics with their label bound, so that observing one is an addition."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self.prompt_tokens = metrics.prompt_tokens.labels(model)
        self.completion_tokens = metrics.completion_tokens.labels(model)
        self.cached_tokens = metrics.cached_tokens.labels(model)
        self.first_token = metrics.first_token.of(model)
        self.inter_token = metrics.inter_token.of(model)


class Metrics:
    """Counts and times requests; reads the load of the engines when it is scraped."""

    def __init__(self, backend: Backend) -> None:
        # They would double the size of every scrape. The library can turn them off only for the whole process.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self._backend = backend
        self.warned: set[str] = set()
        """Models whose clients were warned of something."""
        model = ["model"]
        self.requests = Counter(
            "onward_requests",
            "HTTP requests by route, model and status.",
            ["route", "model", "status"],
            registry=registry,
        )
        self.in_flight = Gauge("onward_requests_in_flight", "HTTP requests in progress.", registry=registry)
        self.cancelled = Counter(
            "onward_requests_cancelled",
            "HTTP requests whose client disconnected before the response was complete.",
            registry=registry,
        )
        self.refused = Counter(
            "onward_completions_refused",
            "Completion requests refused with 503. Reason: overloaded, or stopped (draining or crashed).",
            ["model", "reason"],
            registry=registry,
        )
        self.keys = KeyMetrics(registry)
        self.prompt_tokens = Counter("onward_prompt_tokens", "Prompt tokens.", model, registry=registry)
        self.completion_tokens = Counter(
            "onward_completion_tokens", "Generated tokens, as reported in usage.", model, registry=registry
        )
        self.cached_tokens = Counter(
            "onward_cached_tokens", "Prompt tokens found in the prefix cache.", model, registry=registry
        )
        self.first_token = LatencyCollector(
            "onward_time_to_first_token_seconds", "Time from request to first token.", LONG, registry
        )
        self.inter_token = LatencyCollector(
            "onward_inter_token_seconds", "Time between successive tokens of a request.", SHORT, registry
        )
        self.request_seconds = Histogram(
            "onward_request_seconds",
            "Time from request to end of response.",
            ["route"],
            registry=registry,
            buckets=LONG,
        )
        build = Gauge("onward_build_info", "Always 1; the version is in the label.", ["version"], registry=registry)
        build.labels(onward.__version__).set(1)
        prometheus_client.ProcessCollector(registry=registry)
        registry.register(Reading(partial(load_metrics, backend)))
        self._models: dict[str, ModelMetrics] = {}

    def of(self, model: str) -> ModelMetrics:
        """Return the bound metrics of a served model (never of a name that a client made up)."""
        bound = self._models.get(model)
        if bound is None:
            bound = self._models[model] = ModelMetrics(self, model)
        return bound

    def finish(self, record: RequestRecord, seconds: float) -> None:
        """Count a request that has ended."""
        self.requests.labels(record.route, self._label(record.model), str(record.status)).inc()
        self.request_seconds.labels(record.route).observe(seconds)
        if record.cancelled:
            self.cancelled.inc()
        self.keys.count(record)

    def count_refused(self, record: RequestRecord, error: Overloaded) -> None:
        """Count a completion request that the backend refused."""
        reason = "stopped" if isinstance(error, EngineStopped) else "overloaded"
        self.refused.labels(self._label(record.model), reason).inc()

    def count_line(self, model: str, key: str, counts: TokenCounts) -> None:
        """Count the tokens of a line of a batch. It is no HTTP request, and has no latency that anybody waits for."""
        bound = self.of(model)
        bound.prompt_tokens.inc(counts.prompt)
        bound.completion_tokens.inc(counts.completion)
        self.keys.count_tokens(key, counts.prompt, counts.completion)

    def _label(self, name: str) -> str:
        """Return `name` if a served model has it, else an empty string: clients could create any number of labels."""
        if name in self._models or (name != "-" and any(name == model.id for model in self._backend.models())):
            return name
        return ""

    def render(self, grant: Grant | None = None) -> bytes:
        """Return the metrics in Prometheus' text format. To a key with a grant that is not an admin's, only samples of
        its own and of models that it may use."""
        text: bytes = generate_latest(
            self.registry if grant is None or grant.is_admin else _Visible(self.registry, grant, self._backend)
        )
        return text


class _Visible(Collector):
    """What a key may see of a registry: not other keys, and not models that it may not use."""

    def __init__(self, registry: CollectorRegistry, grant: Grant, backend: Backend) -> None:
        self._registry = registry
        self._grant = grant
        listed = (model for model in backend.models() if grant.allows({model.id, model.model}))
        self._models = {""}.union(*({model.id, model.model} for model in listed))

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            shown = copy.copy(metric)
            shown.samples = [sample for sample in metric.samples if self._shows(sample.labels)]
            yield shown

    def _shows(self, labels: dict[str, str]) -> bool:
        if labels.get("key", self._grant.name) != self._grant.name:
            return False
        return self._grant.models is None or labels.get("model", "") in self._models


class MeasuredAnswer:
    """An Answer that observes its latencies, and when it is closed adds its token counts to record and counters."""

    def __init__(
        self,
        answer: Answer,
        metrics: Metrics,
        record: RequestRecord,
        started: float,
        account: Account | None = None,
        transcript: Transcript | None = None,
        trace: CompletionTrace | None = None,
    ) -> None:
        """`account` is that of a team's server, where the request is billed; `transcript` logs it, `trace` has its
        spans."""
        self._answer = answer
        self._metrics = metrics
        self._bound = metrics.of(answer.model)
        self._record = record
        self._started = started
        self._left_at: TokenCounts | None = None
        self._is_settled = False
        self.has_ended = False
        self.account = account
        self._transcript = transcript
        self._trace = trace
        self._problem: Exception | None = None
        """Why it failed."""
        self._error_status = 0
        """Status of the response, if it is an error, which has no usage."""
        self.model = record.model = answer.model
        self.fingerprint = answer.fingerprint
        self.seed = answer.seed
        self.warning = answer.warning
        if account is not None:
            account.begin(lambda: answer.counts)

    @property
    def counts(self) -> TokenCounts:
        return self._answer.counts

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        last = self._started
        observe = self._bound.first_token.observe
        try:
            async for deltas in self._answer:
                now = time.perf_counter()
                observe(now - last)
                if self._record.first_token_ms is None:
                    self._record.first_token_ms = (now - self._started) * 1000
                    observe = self._bound.inter_token.observe
                last = now
                if self.account is not None:
                    self.account.generated(deltas)
                if self._transcript is not None:
                    self._transcript.generated(deltas)
                if self._trace is not None:
                    self._trace.generated(deltas)
                self.has_ended = self._answer.has_ended
                yield deltas
        except Exception as error:
            self._problem = error
            is_sent = isinstance(error, (ApiError, RequestRejected))
            if is_sent and self._record.status == CLIENT_LEFT:  # nothing was sent: the error will be
                self._error_status = api_error(error).status
            raise

    async def aclose(self) -> None:
        await self._answer.aclose()
        if not self._is_settled:
            self._is_settled = True
            self._settle()

    def abandon(self) -> None:
        self._answer.abandon()

    def leave(self) -> None:
        """Note that the connection of this record has ended: from now on the record is not changed."""
        self._fill_record()
        self._record = dataclasses.replace(self._record)
        self._left_at = self._answer.counts

    def _settle(self) -> None:
        """Count the tokens: the answer has ended or was cancelled."""
        counts = self._answer.counts
        if self.account is not None:
            billed = TokenCounts(computed=counts.computed) if self._error_status else counts
            self.account.end(billed, self._error_status or self._record.status)
        if self._transcript is not None:
            self._transcript.end(counts, self._error_status or self._record.status)
        if self._trace is not None:
            self._trace.end(counts, self._record.first_token_ms, self._problem)
        self._fill_record()
        self._bound.prompt_tokens.inc(counts.prompt)
        self._bound.completion_tokens.inc(counts.completion)
        self._bound.cached_tokens.inc(counts.cached)
        if self._left_at is not None:
            self._metrics.keys.count_tokens(
                self._record.key,
                counts.prompt - self._left_at.prompt,
                counts.completion - self._left_at.completion,
            )

    def _fill_record(self) -> None:
        counts, record = self._answer.counts, self._record
        record.prompt_tokens = counts.prompt
        record.completion_tokens = counts.completion
        record.cached_tokens = counts.cached
