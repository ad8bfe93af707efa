"""GET /health, GET /live and GET /metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from onward.api.operations import get, health
from onward.api.routes import JSON, Route, respond_json
from onward.backends.base import Backend
from onward.backends.restricted import RestrictedBackend
from onward.server.exchange import HttpExchange
from onward.server.metrics import Metrics

if TYPE_CHECKING:
    from onward.service.team import Team

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Monitoring:
    """What load balancers, orchestrators and Prometheus poll. `may_see_models`: whether a request may see the names of
    models, which are not public where there are keys."""

    def __init__(
        self,
        backend: Backend,
        metrics: Metrics,
        may_see_models: Callable[[HttpExchange], bool],
        team: Team | None = None,
    ) -> None:
        self._backend = backend
        self._metrics = metrics
        self._may_see_models = may_see_models
        self._team = team

    async def health(self, exchange: HttpExchange) -> None:
        """Readiness: respond with 200 while every model is served at once, with 503 while one of them is not.

        While an engine is being started again, requests are accepted and wait, but other servers could take them.
        """
        health = self._backend.health()
        may_see_models = self._may_see_models(exchange)
        if (grant := exchange.grant) is not None:
            health = RestrictedBackend(self._backend, grant.allows).health()
        if health.state == "ready" and self._team is not None and self._team.detail:
            health = replace(health, detail=self._team.detail)
        body: dict[str, object] = {"status": health.state, "detail": health.detail}
        if may_see_models:
            body["models"] = {name: {"status": one.state, "detail": one.detail} for name, one in health.models.items()}
        exchange.headers.append((b"cache-control", b"no-store"))
        await respond_json(exchange, body, status=200 if health.state == "ready" else 503)

    async def live(self, exchange: HttpExchange) -> None:
        """Liveness: respond with 200 as long as the event loop runs. A server whose engine is dead ends by itself."""
        exchange.headers.append((b"cache-control", b"no-store"))
        await respond_json(exchange, {"status": "live"})

    async def metrics(self, exchange: HttpExchange) -> None:
        """The metrics: of a key of a database only what concerns it, unless it is an admin's."""
        await exchange.respond(200, self._metrics.render(exchange.grant), PROMETHEUS_TEXT)


_METRICS = 'onward_requests_total{model="storyteller",status="200"} 1.0\n'
_HEALTH = {"status": "ready", "detail": "", "models": {"storyteller": {"status": "ready", "detail": ""}}}

ROUTES = (
    Route("GET", "/health", Monitoring.health, public=True, operation=health(), example={JSON: _HEALTH}),
    Route(
        "GET",
        "/live",
        Monitoring.live,
        public=True,
        operation=get("live", "Whether the server runs, ready or not.", schema="Live", errors=(), is_open=True),
        example={JSON: {"status": "live"}},
    ),
    Route(
        "GET",
        "/metrics",
        Monitoring.metrics,
        operation=get("metrics", "Counters in Prometheus text format.", "text/plain"),
        example={"text/plain": _METRICS},
    ),
)
"""/metrics names models and reveals traffic, so it needs a key where keys are set."""
