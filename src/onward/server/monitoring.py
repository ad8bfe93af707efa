"""GET /health and GET /metrics."""

from __future__ import annotations

import msgspec

from onward.backends.base import Backend
from onward.server.exchange import Exchange
from onward.server.metrics import Metrics

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Monitoring:
    """What load balancers and Prometheus poll."""

    def __init__(self, backend: Backend, metrics: Metrics) -> None:
        self._backend = backend
        self._metrics = metrics

    async def health(self, exchange: Exchange, _: str | None = None) -> None:
        """Respond with 200 while requests are accepted, with 503 when draining or after a crash."""
        health = self._backend.health()
        body = msgspec.json.encode({"status": health.state, "detail": health.detail})
        exchange.headers.append((b"cache-control", b"no-store"))
        await exchange.respond(200 if health.state == "ready" else 503, body, "application/json")

    async def metrics(self, exchange: Exchange, _: str | None = None) -> None:
        await exchange.respond(200, self._metrics.render(), PROMETHEUS_TEXT)
