"""The ASGI application: every request comes through here, and every failure leaves through here."""

from __future__ import annotations

from onward.backends.base import Backend
from onward.errors import RequestCancelled
from onward.protocol.ids import request_id
from onward.server import access_log
from onward.server.catalogue import Catalogue
from onward.server.completions import Completions
from onward.server.exchange import ClientGone, Exchange, Receive, Scope, Send
from onward.server.failures import answer_error, as_told
from onward.server.guard import Guard, collect_keys
from onward.server.metrics import Metrics
from onward.server.pages import Pages
from onward.server.routes import Route, Routes
from onward.server.schema_link import SCHEMA_PATH
from onward.server.tokens import Tokens
from onward.settings import Settings

COMMON_HEADERS = [
    (b"openai-version", b"2020-10-01"),
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", b"X-Request-ID"),
    (b"x-content-type-options", b"nosniff"),
]
PREFLIGHT_SECONDS = b"86400"


def make_app(backend: Backend, settings: Settings, keys: list[str] | None = None) -> App:
    """The application over a backend. Reads the key file unless `keys` are given; raises SetupError."""
    return App(backend, settings, collect_keys(settings) if keys is None else keys)


class App:
    """An ASGI 3 application. All its state belongs to one event loop."""

    def __init__(self, backend: Backend, settings: Settings, keys: list[str]) -> None:
        self._backend = backend
        self._guard = Guard(keys)
        self._metrics = Metrics(backend)
        self._completions = Completions(backend, settings, self._metrics)
        self._write_log = settings.access_log
        self._routes = Routes(
            [
                *_completion_routes(self._completions),
                *_catalogue_routes(Catalogue(backend)),
                *_token_routes(Tokens(backend, settings.max_body)),
                *_page_routes(Pages(backend, self._metrics, keyed=self._guard.asks)),
            ]
        )

    @property
    def running(self) -> int:
        """Completions that have not ended yet."""
        return self._completions.running

    async def idle(self) -> None:
        """Return when no completion runs."""
        await self._completions.idle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._answer(Exchange(scope, receive, send, request_id()))
            case "lifespan":
                await _live(receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, exchange: Exchange) -> None:
        """Answer one request, whatever happens; count it and log it."""
        exchange.headers += [*COMMON_HEADERS, (b"x-request-id", exchange.id.encode())]
        if self._backend.health().state == "draining":
            exchange.headers.append((b"connection", b"close"))
        self._metrics.in_flight.inc()
        try:
            await self._route(exchange)
        except (ClientGone, RequestCancelled):
            exchange.record.cancelled = True
        except Exception as problem:
            await self._fail(exchange, problem)
        finally:
            self._metrics.in_flight.dec()
            self._metrics.finish(exchange.record, exchange.elapsed_ms / 1000)
            if self._write_log:
                access_log.write(exchange)

    async def _route(self, exchange: Exchange) -> None:
        """Method and URL, then the key, then the handler."""
        if exchange.method == "OPTIONS":
            await self._preflight(exchange)
            return
        route, name = self._routes.find(exchange.method, exchange.path)
        exchange.record.route = route.template
        if not route.open:
            self._guard.check(exchange)
        await route.handler(exchange, name)

    async def _preflight(self, exchange: Exchange) -> None:
        """Let pages of any origin ask, as OpenAI does: the key is what protects, not the origin."""
        allowed = self._routes.methods(exchange.path)
        wanted = exchange.header(b"access-control-request-headers") or "*"
        exchange.headers += [
            (b"allow", allowed.encode()),
            (b"access-control-allow-methods", allowed.encode()),
            (b"access-control-allow-headers", wanted.encode("latin-1")),
            (b"access-control-max-age", PREFLIGHT_SECONDS),
        ]
        await exchange.answer(204, b"", "")

    async def _fail(self, exchange: Exchange, problem: Exception) -> None:
        error = as_told(problem, exchange)
        if exchange.answering:
            raise problem  # half an answer is out: the server must cut the connection
        try:
            await answer_error(exchange, error)
        except ClientGone:
            exchange.record.cancelled = True


def _completion_routes(completions: Completions) -> list[Route]:
    return [
        Route("POST", "/v1/completions", completions.create),
        Route("POST", "/openai/v1/completions", completions.create_linked),
        Route("POST", "/v1/engines/{id}/completions", completions.create),
    ]


def _catalogue_routes(catalogue: Catalogue) -> list[Route]:
    routes = [Route("GET", "/v1/engines", catalogue.engines), Route("GET", "/v1/engines/{id}", catalogue.engine)]
    for root in ("/v1", "/openai/v1"):
        routes += [
            Route("GET", f"{root}/models", catalogue.models),
            Route("GET", f"{root}/models/{{id}}", catalogue.model),
        ]
    return routes


def _token_routes(tokens: Tokens) -> list[Route]:
    return [
        Route("POST", "/tokenize", tokens.tokenize),
        Route("POST", "/detokenize", tokens.detokenize),
        Route("GET", "/tokenizer_info", tokens.info),
    ]


def _page_routes(pages: Pages) -> list[Route]:
    """/metrics names models and tells of traffic, so it asks for a key where keys are set; the rest is public."""
    return [
        Route("GET", "/health", pages.health, open=True),
        Route("GET", "/metrics", pages.metrics),
        Route("GET", "/openapi.json", pages.openapi, open=True),
        Route("GET", SCHEMA_PATH, pages.completion_schema, open=True),
        Route("GET", "/docs", pages.docs, open=True),
        Route("GET", "/", pages.landing, open=True),
    ]


async def _live(receive: Receive, send: Send) -> None:
    """Nothing to start or stop here: the backend belongs to who made the application."""
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
