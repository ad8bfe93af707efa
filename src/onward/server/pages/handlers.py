"""Handlers of the documents: OpenAPI, JSON Schema, API reference, playground, usage."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

import onward
from onward.api.dialects import DIALECTS
from onward.api.openai.response import completion_schema
from onward.api.openai.routes import SCHEMA_PATH, public_url
from onward.api.openapi import openapi
from onward.api.operations import get
from onward.api.parameter import Profile
from onward.api.routes import OpenAPIOperation, Route
from onward.backends.base import Backend
from onward.server.exchange import HttpExchange
from onward.server.pages.layout import ASSET_ROOT, HEADERS, document, send_asset
from onward.server.pages.playground import landing, new_nonce, playground_headers, playground_page
from onward.server.pages.reference import reference_page

Handler = Callable[["Pages", HttpExchange], Awaitable[None]]
HTML = "text/html; charset=utf-8"
FALLBACK_URL = "http://127.0.0.1:8000"
"""Shown to a client that sends no usable Host: the address of the default settings."""
_USAGE_BODY = (
    '<div id="usage"><h1>Usage</h1><noscript><p>This page needs scripts; <code>onward usage</code> shows the same '
    "on the command line.</p></noscript></div>"
)


class Pages:
    """Documents that need no engine. They describe `routes` and those of the dialects, and the served `profile`.

    `requires_key`: whether clients must send an API key. `has_ledger`: whether there is usage to see.
    """

    def __init__(
        self,
        backend: Backend,
        routes: tuple[Route, ...],
        *,
        profile: Profile,
        requires_key: bool,
        has_ledger: bool = False,
        dialects: tuple[str, ...] = tuple(DIALECTS),
    ) -> None:
        self._routes = routes
        self._backend = backend
        self._profile = profile
        self._dialects = dialects
        self._requires_key = requires_key
        self._has_ledger = has_ledger
        self._references: dict[str, bytes] = {}
        """The API reference, by the relative URL of the server's root."""

    @functools.cached_property
    def _document(self) -> dict[str, Any]:
        return openapi(onward.__version__, self._routes, profile=self._profile, dialects=self._dialects)

    @functools.cached_property
    def _openapi_json(self) -> bytes:
        return msgspec.json.encode(self._document)

    async def openapi(self, exchange: HttpExchange) -> None:
        await exchange.respond(200, self._openapi_json, "application/json")

    async def completion_schema(self, exchange: HttpExchange) -> None:
        await exchange.respond(200, msgspec.json.encode(completion_schema()), "application/schema+json")

    async def reference(self, exchange: HttpExchange) -> None:
        root = "../" if exchange.path.endswith("/") else "./"
        if root not in self._references:
            page = reference_page(self._document, root=root, has_ledger=self._has_ledger)
            self._references[root] = page.encode()
        await _respond_page(exchange, self._references[root])

    async def usage(self, exchange: HttpExchange) -> None:
        """The page has no figures: its script asks for them with an admin's key."""
        await _respond_page(exchange, document("Usage · Onward", _USAGE_BODY, name="usage", here="usage").encode())

    async def playground(self, exchange: HttpExchange) -> None:
        """The names of models are not public where keys are required."""
        names = [] if self._requires_key else [model.id for model in self._backend.models()]
        plain = landing(names, public_url(exchange) or FALLBACK_URL, requires_key=self._requires_key)
        nonce = new_nonce()
        page = playground_page(
            plain,
            profile=self._profile,
            requires_key=self._requires_key,
            has_ledger=self._has_ledger,
            nonce=nonce,
        )
        exchange.headers += playground_headers(nonce)
        await exchange.respond(200, page.encode(), HTML)

    async def asset(self, exchange: HttpExchange) -> None:
        await send_asset(exchange, exchange.path_value)

    async def favicon(self, exchange: HttpExchange) -> None:
        """The icon, at the URL that browsers try where a page names none."""
        await send_asset(exchange, "favicon.svg")


def _page(path: str, handler: Handler, operation: OpenAPIOperation) -> Route:
    return Route("GET", path, handler, public=True, operation=operation)


_SCHEMA = get("completionSchema", "The JSON Schema of a completion.", "application/schema+json", is_open=True)
_REFERENCE = _page("/docs", Pages.reference, get("docs", "The API reference as a page.", "text/html", is_open=True))
_FAVICON = Route("GET", "/favicon.svg", Pages.favicon, public=True)
SCHEMA_ROUTES = (_page(SCHEMA_PATH, Pages.completion_schema, _SCHEMA),)
ROUTES = (
    _page("/openapi.json", Pages.openapi, get("openapi", "This document.", schema="JsonObject", is_open=True)),
    _REFERENCE,
    _REFERENCE.also("/docs/"),
    _page(
        "/",
        Pages.playground,
        get("playground", "A web page to write with the models of this server.", "text/html", is_open=True),
    ),
    _page(
        "/tokenizer",
        Pages.playground,
        get("tokenizer", "The same page, opened where it shows a text's tokens.", "text/html", is_open=True),
    ),
    _page(
        "/usage",
        Pages.usage,
        get("usagePage", "A web page with the usage of all keys, for admins.", "text/html", is_open=True),
    ),
    _FAVICON,
    _FAVICON.also("/favicon.ico"),
    Route("GET", f"{ASSET_ROOT}{{id}}", Pages.asset, public=True),
)


async def _respond_page(exchange: HttpExchange, page: bytes) -> None:
    exchange.headers += HEADERS
    await exchange.respond(200, page, HTML)
