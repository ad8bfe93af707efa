"""Computes lines of batches: OpenAI's dialect for the runner, over the backend, the limits and the ledger."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from onward.api.body import decode_object
from onward.api.errors import api_error
from onward.api.openai import batch_lines as api
from onward.api.openai.decode import check_request
from onward.api.openai.errors import error_response
from onward.api.openai.reply import Identity, OpenAIReply
from onward.api.routes import Services
from onward.backends.base import Backend, Needs
from onward.backends.restricted import RestrictedBackend
from onward.completions.answer import Answer, TokenCounts
from onward.completions.request import CompletionRequest
from onward.errors import ApiError, Overloaded, RequestRejected
from onward.offload import inline_or_on_thread, on_thread
from onward.server.keys import Keys
from onward.server.metrics import Metrics
from onward.service.batch_records import BatchLine, Computed, EngineLost, Result, StoredBatch, TryLater
from onward.service.grant import Grant, StoredKey
from onward.service.records import LedgerRow
from onward.service.refusals import ORGANIZATION

if TYPE_CHECKING:  # a server without a database does not import what needs one
    from onward.service.team import Admitted, Team

log = logging.getLogger("onward.server")

ROUTE = "/v1/batches"
"""The route of lines in the ledger."""


class OpenAIBatches:
    """Implements `service.batch_runner.BatchDialect`."""

    def __init__(self, services: Services, team: Team, metrics: Metrics, keys: Callable[[], Keys]) -> None:
        """`keys` returns those that are accepted."""
        self._services = services
        self._team = team
        self._metrics = metrics
        self._keys = keys

    def check(self, batch: StoredBatch) -> api.BatchFileCheck:
        listed = self._backend_of(batch.key_id).models()
        names = {model.id for model in listed}
        takes_any = (
            self._services.settings.profile == "lenient" and len({each.model or each.id for each in listed}) == 1
        )
        return api.BatchFileCheck(batch.endpoint, lambda name: takes_any or name in names, self._services.body_limits)

    def missing_file(self, batch: StoredBatch) -> str:
        return api.faults_json([api.missing_file(batch.input_file_id, ORGANIZATION)])

    def queue_full(self, batch: StoredBatch, most: int) -> str:
        models = self._backend_of(batch.key_id).models()
        model = models[0].id if models else "any model"  # the file, which names it, has not been read
        return api.faults_json([api.queue_full(model, ORGANIZATION, most)])

    def not_computed(self, batch_id: str, number: int, custom_id: bytes, code: str) -> bytes:
        return api.not_computed(batch_id, number, custom_id, code)

    def key_is_valid(self, key_id: str) -> bool:
        key = self._key(key_id)
        if key is None:  # of a file or flag, or there were no keys
            keys = self._keys()
            return not key_id or not keys.are_required or keys.known_as(key_id) is not None
        expires_ms = key.grant.expires_ms
        return key.revoked_ms is None and (expires_ms is None or expires_ms > self._team.now_ms)

    def weight_of(self, key_id: str) -> int:
        key = self._key(key_id)
        return 1 if key is None else key.grant.priority

    def _key(self, key_id: str) -> StoredKey | None:
        return next((key for key in self._team.keys if key.grant.id == key_id), None)

    def _backend_of(self, key_id: str) -> Backend:
        key, backend = self._key(key_id), self._services.backend
        if key is None or key.grant.models is None:
            return backend
        return RestrictedBackend(backend, key.grant.allows)

    async def compute(self, line: BatchLine) -> Computed:
        """Return the result of a line. Raises TryLater, BudgetSpent, EngineLost."""
        backend, key = self._backend_of(line.key_id), self._key(line.key_id)
        named, grant = key or self._keys().known_as(line.key_id), None if key is None else key.grant
        name = "" if named is None else named.name
        return await _LineRun(self._services, self._team, self._metrics, backend, line, name, grant).run()


@dataclass(slots=True)
class _LineRun:
    """One line on its way through the backend. `needs` and `admitted` are known once it was admitted, `answer` once it
    is computed."""

    services: Services
    team: Team
    metrics: Metrics
    backend: Backend
    line: BatchLine
    key_name: str
    grant: Grant | None
    needs: Needs | None = None
    admitted: Admitted | None = None
    answer: Answer | None = None
    started_ms: int = 0
    finish_reasons: list[str] = field(default_factory=list)

    async def run(self) -> Computed:
        """Return the result of the line. Raises TryLater, BudgetSpent, EngineLost; then nothing stays reserved."""
        try:
            try:
                return await self._complete()
            except (ApiError, RequestRejected) as problem:
                if self.backend.health().state == "dead":
                    raise EngineLost from None
                if isinstance(problem, Overloaded):
                    raise TryLater from None
                return await self._failed(problem)
        except BaseException:
            if self.admitted is not None:
                self.team.release(self.admitted)
            raise

    @property
    def reservation_id(self) -> str | None:
        return None if self.admitted is None else self.admitted.request_id

    async def _complete(self) -> Computed:
        line, settings, ids, grant = self.line, self.services.settings, self.ids, self.grant
        self.started_ms = self.team.now_ms

        def decoded() -> CompletionRequest:
            fields = decode_object(line.request, self.services.body_limits)
            request = check_request(fields, profile=settings.profile)
            weight = 1 if grant is None else grant.priority
            return msgspec.structs.replace(request, random_seed=ids.seed, is_background=True, weight=weight)

        async def admit(needs: Needs) -> None:
            self.needs = needs
            self.admitted = await self.team.admit(
                grant, needs.model, needs.prompt_tokens, needs.completion_tokens, is_batch=True
            )

        request = await inline_or_on_thread(len(line.request), decoded)
        answer = self.answer = await self.backend.complete(request, client=f"batches of {line.key_id}", admit=admit)
        reply = OpenAIReply(request, identity=Identity(ids.completion, line.created_ms // 1000))
        reply.begin(answer)
        try:
            async for deltas in answer:
                await reply.feed(deltas, answer.counts)
                self.finish_reasons += [delta.finish.reason for delta in deltas if delta.finish is not None]
        finally:
            await answer.aclose()
        counts = timeless(answer.counts)
        (whole,) = await reply.end(counts)
        body = whole if isinstance(whole, bytes) else await on_thread(lambda: b"".join(whole))
        data = await inline_or_on_thread(
            len(body), partial(api.answered, ids.record, ids.request, line.custom_id, 200, body, answer.seed)
        )
        self.metrics.count_line(answer.model, self.key_name or "-", counts)
        result = Result(
            data=data,
            is_output=True,
            prompt_tokens=counts.prompt,
            completion_tokens=counts.completion,
            reasoning_tokens=counts.reasoning,
        )
        return Computed(result, self._row(counts, 200), grant, self.reservation_id)

    @property
    def ids(self) -> api.LineIds:
        return api.LineIds.of(self.line.batch_id, self.line.number)

    async def _failed(self, problem: ApiError | RequestRejected) -> Computed:
        """Return the result of a line that got an error. If it was computed before, it has a row, in which nothing is
        billed."""
        error, row = api_error(problem), None
        if self.answer is not None:
            counts = self.answer.counts
            self.metrics.count_line(self.answer.model, self.key_name or "-", counts)
            row = self._row(TokenCounts(computed=counts.computed), error.status)
        if error.status >= 500:
            log.error("line %d of %s failed: %s", self.line.number, self.line.batch_id, problem, exc_info=problem)
        status, body, _ = error_response(error)
        data = api.answered(self.ids.record, self.ids.request, self.line.custom_id, status, body, None)
        return Computed(Result(data=data, is_output=False), row, self.grant, self.reservation_id)

    def _row(self, counts: TokenCounts, status: int) -> LedgerRow:
        needs = self.needs
        assert needs is not None
        costs = self.team.parts(needs.model, counts.prompt, counts.cached, counts.completion)
        return LedgerRow(
            id=self.ids.request,
            started_ms=self.started_ms,
            ended_ms=self.team.now_ms,
            key_id=self.line.key_id,
            key_name=self.key_name,
            model=needs.model,
            fingerprint=needs.fingerprint,
            route=ROUTE,
            batch=self.line.batch_id,
            seed=str(needs.seed),
            finish_reasons=",".join(self.finish_reasons),
            status=status,
            prompt_tokens=counts.prompt,
            cached_tokens=counts.cached,
            completion_tokens=counts.completion,
            computed_tokens=counts.computed,
            delivered_tokens=counts.completion,
            first_token_ms=None,
            prompt_cost=costs[0],
            completion_cost=costs[1],
        )


def timeless(counts: TokenCounts) -> TokenCounts:
    """Return counts without those that depend on when a line was computed and what ran at the same time: what was
    cached or drafted. So a line that is computed again has the same bytes (behaviour §18.7)."""
    return msgspec.structs.replace(counts, cached=0, written=0, accepted_prediction=0, rejected_prediction=0)
