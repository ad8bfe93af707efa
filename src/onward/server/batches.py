"""The routes that create, list and cancel batches, which `service.batch_runner` runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from onward.api.body import decode_object
from onward.api.openai import batches as api
from onward.api.openai.files import PURPOSE, list_limit, list_page
from onward.api.openai.routes import check_content_type
from onward.api.routes import JSON, JsonObject, Route, respond_json
from onward.server.exchange import HttpExchange
from onward.server.files import Stored, everywhere
from onward.service.batch_records import WINDOW_MS, StoredBatch, new_batch_id
from onward.settings import Settings

if TYPE_CHECKING:  # a server without a database does not import what needs one
    from onward.service.batch_runner import BatchRunner
    from onward.service.team import Team

MAX_BODY_BYTES = 1_000_000


class BatchRoutes(Stored):
    """`runner` works on batches; it is woken for new ones. None without a team."""

    def __init__(self, team: Team | None, settings: Settings, runner: BatchRunner | None) -> None:
        super().__init__(team, settings)
        self._runner = runner

    async def create(self, exchange: HttpExchange) -> None:
        """Create a batch from a file. Raises InvalidRequest; NotFound without a database."""
        store, key_id = self.store, self.key_of(exchange)
        check_content_type(exchange)
        new = api.check_new(decode_object(await exchange.body(MAX_BODY_BYTES)))
        file = await store.find_file(key_id, new.input_file_id)
        if file is not None and file.purpose != PURPOSE:
            raise api.wrong_purpose(file.purpose)
        now = store.now_ms
        batch = StoredBatch(
            id=new_batch_id(now),
            key_id=key_id,
            endpoint=new.endpoint,
            input_file_id=new.input_file_id,
            completion_window=new.completion_window,
            status="validating",
            metadata=new.metadata,
            idempotency_key=exchange.header(b"idempotency-key"),
            created_ms=now,
            expires_ms=now + WINDOW_MS,
            output_seconds=new.output_seconds,
        )
        created = await store.create_batch(batch)
        self._wake()
        await respond_json(exchange, batch_object(created))

    async def retrieve(self, exchange: HttpExchange) -> None:
        await respond_json(exchange, batch_object(await self._find(exchange, exchange.path_value or "")))

    async def list(self, exchange: HttpExchange) -> None:
        limit = list_limit(exchange.query("limit"), api.DEFAULT_LISTED, api.MAX_LISTED)
        after = await self._find(exchange, last) if (last := exchange.query("after")) else None
        found = await self.store.list_batches(self.key_of(exchange), limit + 1, after)
        await respond_json(exchange, list_page(api.BatchList, list(map(batch_object, found)), limit))

    async def cancel(self, exchange: HttpExchange) -> None:
        """Cancel a batch; the body of the request, if there is one, is ignored. Raises NotFound, CannotCancel."""
        batch_id = exchange.path_value or ""
        found = await self.store.cancel_batch(self.key_of(exchange), batch_id)
        if found is None:
            raise api.no_such_batch(batch_id)
        if found.status not in ("cancelling", "cancelled"):
            raise api.cannot_cancel(found.status)
        self._wake()
        await respond_json(exchange, batch_object(found))

    async def _find(self, exchange: HttpExchange, batch_id: str) -> StoredBatch:
        """Return a batch of the key. Raises NotFound, also for another's."""
        found = await self.store.find_batch(self.key_of(exchange), batch_id)
        if found is None:
            raise api.no_such_batch(batch_id)
        return found

    def _wake(self) -> None:
        if self._runner is not None:
            self._runner.wake()


def batch_object(batch: StoredBatch) -> api.BatchObject:
    times: dict[str, Any] = {}
    for name in ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"):
        at = getattr(batch, f"{name}_ms")
        times[f"{name}_at"] = None if at is None else at // 1000
    errors = None if batch.errors is None else json.loads(batch.errors)
    return api.BatchObject(
        id=batch.id,
        endpoint=batch.endpoint,
        model=batch.model,
        errors=None if errors is None else api.BatchErrors(data=[api.BatchError(**each) for each in errors["data"]]),
        input_file_id=batch.input_file_id,
        completion_window=batch.completion_window,
        status=batch.status,  # type: ignore[arg-type]
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=batch.created_ms // 1000,
        expires_at=batch.expires_ms // 1000,
        **times,
        request_counts=api.BatchCounts(total=batch.num_lines, completed=batch.num_completed, failed=batch.num_failed),
        usage=api.BatchUsage(
            input_tokens=batch.prompt_tokens,
            input_tokens_details=api.BatchInputDetails(),
            output_tokens=batch.completion_tokens,
            output_tokens_details=api.BatchOutputDetails(reasoning_tokens=batch.reasoning_tokens),
            total_tokens=batch.prompt_tokens + batch.completion_tokens,
        ),
        metadata=None if batch.metadata is None else json.loads(batch.metadata),
    )


def _route(method: str, path: str, handler: Any, operation: Any, example: JsonObject) -> Route:
    parameters = (api.BATCH_ID,) if "{id}" in path else ()
    return Route(method, path, handler, operation=operation, example={JSON: example}, parameters=parameters)


ROUTES = everywhere(
    _route("POST", "/v1/batches", BatchRoutes.create, api.CREATE, api.EXAMPLE),
    _route("GET", "/v1/batches", BatchRoutes.list, api.LIST, api.LIST_EXAMPLE),
    _route("GET", "/v1/batches/{id}", BatchRoutes.retrieve, api.RETRIEVE, api.EXAMPLE),
    _route("POST", "/v1/batches/{id}/cancel", BatchRoutes.cancel, api.CANCEL, api.EXAMPLE),
)
