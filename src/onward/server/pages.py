"""What people and monitors read: health, metrics, schemas, the reference page, the landing page."""

from __future__ import annotations

import functools

import msgspec

import onward
from onward.backends.base import Backend
from onward.protocol.schema import completion_schema, openapi
from onward.server.exchange import Exchange
from onward.server.landing_page import landing_page
from onward.server.metrics import Metrics
from onward.server.reference_page import reference_page
from onward.server.schema_link import own_address

HTML = "text/html; charset=utf-8"
FALLBACK_ADDRESS = "http://127.0.0.1:8000"
"""For a client that names no host: the address of the default settings."""
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


@functools.cache
def _openapi() -> bytes:
    return msgspec.json.encode(openapi(onward.__version__))


@functools.cache
def _reference() -> bytes:
    return reference_page(openapi(onward.__version__)).encode()


class Pages:
    """Answers that need no completion."""

    def __init__(self, backend: Backend, metrics: Metrics, *, keyed: bool) -> None:
        self._backend = backend
        self._keyed = keyed
        self._metrics = metrics

    async def health(self, exchange: Exchange, _: str | None = None) -> None:
        """200 when requests are taken, 503 when draining or dead."""
        health = self._backend.health()
        body = msgspec.json.encode({"status": health.state, "detail": health.detail})
        exchange.headers.append((b"cache-control", b"no-store"))
        await exchange.answer(200 if health.state == "ready" else 503, body, "application/json")

    async def metrics(self, exchange: Exchange, _: str | None = None) -> None:
        await exchange.answer(200, self._metrics.render(), EXPOSITION)

    async def openapi(self, exchange: Exchange, _: str | None = None) -> None:
        await exchange.answer(200, _openapi(), "application/json")

    async def completion_schema(self, exchange: Exchange, _: str | None = None) -> None:
        await exchange.answer(200, msgspec.json.encode(completion_schema()), "application/schema+json")

    async def docs(self, exchange: Exchange, _: str | None = None) -> None:
        await exchange.answer(200, _reference(), HTML)

    async def landing(self, exchange: Exchange, _: str | None = None) -> None:
        names = [model.id for model in self._backend.models()]
        page = landing_page(names, own_address(exchange) or FALLBACK_ADDRESS, keyed=self._keyed)
        await exchange.answer(200, page.encode(), HTML)
