"""Changes the models of a running server, by an admin key or when settings are read again; every change is audited
where there is a database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from onward.api import adapters
from onward.api import admin as api
from onward.api.body import decode_object
from onward.api.openai.routes import check_content_type
from onward.api.operations import MODEL_ID
from onward.api.routes import JSON, Route, respond_json, with_words
from onward.backends.base import Backend, LiveModel, LiveModels, ModelChange, Permit
from onward.errors import ApiError, EngineStopped, Forbidden, InvalidRequest, ModelNameError, NotFound, SetupError
from onward.server.exchange import HttpExchange
from onward.service.prices import prices_of
from onward.settings import MODEL_SETTINGS, Settings, options

if TYPE_CHECKING:  # a server without a database does not import what needs one
    from onward.service.team import Team

log = logging.getLogger("onward.server")

NOT_ADMIN = "This needs an admin key: one that was made with `onward key new NAME --admin`."
NOT_LIVE = (
    "The models of this server cannot be changed while it runs: they are those of a cluster. Change cluster.toml, and "
    "run `onward cluster up`."
)


class Admin:
    """The routes below /v1/admin, and vLLM's for adapters. They need an admin key, also on a loopback address. `live`
    None: the models cannot be changed."""

    def __init__(self, backend: Backend, live: LiveModels | None, team: Team | None) -> None:
        self._backend = backend
        self._live = live
        self._team = team

    async def list(self, exchange: HttpExchange) -> None:
        """Raises Forbidden."""
        self._allowed(exchange)
        folders = [] if self._live is None else list(self._live.folders)
        found = _unchangeable(self._backend) if self._live is None else self._live.models()
        await respond_json(exchange, api.AdminModelList(folders=folders, data=list(map(api.model_object, found))))

    async def add(self, exchange: HttpExchange) -> None:
        """Load a model, however long that takes, and serve it. Raises Forbidden, InvalidRequest, ModelsBusy."""
        team, permit = self._allowed(exchange)
        check_content_type(exchange)
        new = api.check_new(decode_object(await exchange.body(api.MAX_BODY_BYTES)))
        live = self._changeable()
        exchange.record.model = new.id or new.model
        try:
            model = await live.add(new.model, new.id, permit)
        except SetupError as problem:
            raise InvalidRequest(str(problem), param="model") from None
        team.use_models(self._backend.models())
        await respond_json(exchange, api.model_object(model))

    async def remove(self, exchange: HttpExchange) -> None:
        """Raises Forbidden, NotFound, InvalidRequest, ModelsBusy."""
        team, permit = self._allowed(exchange)
        live, model_id = self._changeable(), exchange.path_value or ""
        try:
            await live.remove(model_id, permit)
        except ModelNameError as problem:
            raise NotFound(str(problem), param="model", code="model_not_found") from None
        except SetupError as problem:
            raise InvalidRequest(str(problem), param="model") from None
        team.use_models(self._backend.models())
        await respond_json(exchange, api.AdminModelDeleted(id=model_id))

    async def load_adapter(self, exchange: HttpExchange) -> None:
        """Load an adapter, however long that takes, and serve it. Raises Forbidden, InvalidRequest, NotFound,
        ModelsBusy."""
        team, permit = self._allowed(exchange)
        check_content_type(exchange)
        new = adapters.check_load(decode_object(await exchange.body(api.MAX_BODY_BYTES)))
        live = self._changeable()
        exchange.record.model = new.name
        with _vllm_errors():
            await live.load_adapter(new.name, new.path, new.base, permit, in_place=new.in_place)
        team.use_models(self._backend.models())
        await exchange.respond(200, adapters.loaded(new.name), adapters.TEXT)

    async def unload_adapter(self, exchange: HttpExchange) -> None:
        """Raises Forbidden, NotFound, InvalidRequest, ModelsBusy."""
        team, permit = self._allowed(exchange)
        check_content_type(exchange)
        name = adapters.check_unload(decode_object(await exchange.body(api.MAX_BODY_BYTES)))
        live = self._changeable()
        exchange.record.model = name
        with _vllm_errors():
            await live.unload_adapter(name, permit)
        team.use_models(self._backend.models())
        await exchange.respond(200, adapters.unloaded(name), adapters.TEXT)

    def _allowed(self, exchange: HttpExchange) -> tuple[Team, Permit]:
        """Return the team, and what audits a change by the admin key of a request. Raises Forbidden."""
        grant = exchange.grant
        if self._team is None or grant is None or not grant.is_admin:
            raise Forbidden(NOT_ADMIN)
        return self._team, partial(audit, self._team, f"the key {grant.name}", grant.id)

    def _changeable(self) -> LiveModels:
        """Return the models, if they may be changed now. Raises InvalidRequest, ModelsBusy, EngineStopped."""
        if self._live is None:
            raise InvalidRequest(NOT_LIVE)
        if self._backend.health().state == "draining":
            raise EngineStopped
        if self._live.is_busy:
            raise api.ModelsBusy
        return self._live


@contextmanager
def _vllm_errors() -> Iterator[None]:
    """Convert what keeps an adapter from being loaded or unloaded."""
    try:
        yield
    except ModelNameError as problem:
        raise adapters.AdapterNotFound(str(problem)) from None
    except SetupError as problem:
        raise adapters.InvalidUserInput(str(problem)) from None


async def audit(team: Team, actor: str | None, key_id: str, change: ModelChange) -> None:
    """Record who changes models: a key, or, where `actor` is None, whoever runs the server. Raises Overloaded if the
    database is unreachable: then nothing may be changed."""
    await team.desk.record_change("models", str(change), actor, key_id)


def _unchangeable(backend: Backend) -> list[LiveModel]:
    health, load = backend.health().models, backend.load()
    return [
        LiveModel(
            id=id,
            status=one.state,
            detail=one.detail,
            num_running=load[id].num_running,
            num_waiting=load[id].num_waiting,
        )
        for id, one in health.items()
    ]


ROUTES = (
    Route("GET", "/v1/admin/models", Admin.list, operation=api.LIST, example={JSON: api.LIST_EXAMPLE}),
    Route("POST", "/v1/admin/models", Admin.add, operation=api.CREATE, example={JSON: api.EXAMPLE}),
    Route(
        "DELETE",
        "/v1/admin/models/{id}",
        Admin.remove,
        operation=api.DELETE,
        example={JSON: api.DELETED_EXAMPLE},
        parameters=(MODEL_ID,),
    ),
    *with_words(
        adapters.ERRORS,
        Route(
            "POST",
            "/v1/load_lora_adapter",
            Admin.load_adapter,
            operation=adapters.LOAD,
            example={adapters.TEXT: adapters.loaded("poet").decode()},
        ),
        Route(
            "POST",
            "/v1/unload_lora_adapter",
            Admin.unload_adapter,
            operation=adapters.UNLOAD,
            example={adapters.TEXT: adapters.unloaded("poet").decode()},
        ),
    ),
)


class ModelReload:
    """Applies the settings for models when they are read again. Belongs to one event loop. `again` reads them."""

    def __init__(
        self, settings: Settings, again: Callable[[], Settings], backend: Backend, live: LiveModels, team: Team | None
    ) -> None:
        self._started = settings
        self._again = again
        self._backend = backend
        self._live = live
        self._team = team
        self._is_due = asyncio.Event()

    def request(self) -> None:
        """Read the settings soon."""
        self._is_due.set()

    async def run(self) -> None:
        """Apply the settings whenever it is requested, until the task is cancelled."""
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            try:
                await self._apply()
            except (SetupError, ApiError) as problem:
                log.error("the models stay as they were: %s", problem)
            except Exception:
                log.exception("the models stay as they were: the settings could not be applied")

    async def _apply(self) -> None:
        settings = await asyncio.to_thread(self._again)
        change = await self._live.apply(settings, self._permit)
        log.info("the settings were read again: %s", change)
        self._apply_prices(settings)
        applied = MODEL_SETTINGS if self._team is None else (*MODEL_SETTINGS, "price")
        later = [
            each.name
            for each in options()
            if each.name not in applied and getattr(settings, each.name) != getattr(self._started, each.name)
        ]
        if later:
            log.warning("changed settings that take effect at the next start: %s", ", ".join(later))

    def _apply_prices(self, settings: Settings) -> None:
        """Bill by the prices of the settings, and by the models that their names are now."""
        if self._team is None:
            return
        models = self._backend.models()
        try:
            self._team.use_models(models, prices_of(settings.price))
        except SetupError as problem:
            log.error("the prices stay as they were: %s", problem)
            self._team.use_models(models)

    async def _permit(self, change: ModelChange) -> None:
        if self._team is not None:
            await audit(self._team, None, "", change)
