"""The ASGI application: routes every request, and converts every error to a response."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import Metric

from onward.api import tokens
from onward.api.dialects import DIALECTS, served_dialects
from onward.api.ids import request_id
from onward.api.openai import routes as openai
from onward.api.routes import Services
from onward.backends.base import Backend, LiveModels
from onward.errors import RequestCancelled
from onward.offload import owner
from onward.server import admin as admin_routes
from onward.server import batches as batch_routes
from onward.server import files as file_routes
from onward.server import monitoring as monitoring_routes
from onward.server import organization, request_trace
from onward.server.addresses import TrustedProxies
from onward.server.admin import Admin
from onward.server.auth import Authenticator
from onward.server.batch_lines import OpenAIBatches
from onward.server.batches import BatchRoutes
from onward.server.collectors import Reading, database_metrics, ending_metrics, tracer_metrics
from onward.server.exchange import ClientDisconnected, HttpExchange, Receive, Scope, Send, convert_error, send_error
from onward.server.files import FileRoutes
from onward.server.handover import Predecessor
from onward.server.keys import Keys, collect_keys
from onward.server.logs import log_request
from onward.server.metrics import Metrics
from onward.server.monitoring import Monitoring
from onward.server.organization import Organization
from onward.server.origins import OriginGuard
from onward.server.pages import handlers as page_routes
from onward.server.pages.handlers import Pages
from onward.server.routes import Routes
from onward.server.running import Runner, Running
from onward.server.streams import handlers as streams
from onward.server.streams.handlers import Streams
from onward.server.streams.kept import KeptStreams
from onward.server.streams.run import completing
from onward.settings import Settings
from onward.tracing import Tracer

if TYPE_CHECKING:
    from onward.service.batch_runner import BatchRunner
    from onward.service.request_log import RequestLog
    from onward.service.team import Team

ROUTES = (
    *openai.COMPLETIONS,
    *streams.ROUTES,
    *openai.COMPLETIONS_OF_MODELS,
    *openai.CATALOGUE,
    *tokens.ROUTES,
    *file_routes.ROUTES,
    *batch_routes.ROUTES,
    *page_routes.SCHEMA_ROUTES,
    *monitoring_routes.ROUTES,
    *organization.ROUTES,
    *admin_routes.ROUTES,
    *page_routes.ROUTES,
)
"""All routes but those of dialects, in the order in which they are described."""
COMMON_HEADERS = [
    (b"openai-version", b"2020-10-01"),
    (b"access-control-expose-headers", b"X-Request-ID, Onward-Seed"),
    (b"x-content-type-options", b"nosniff"),
]
PREFLIGHT_MAX_AGE_SECONDS = b"86400"


class App:
    """An ASGI 3 application over a backend. All its state belongs to one event loop.

    `keys` None reads them from the settings and the key file; `team` has those of a database; `predecessor` may keep
    streams; `request_log` keeps requests; `live` changes the backend's models; `tracer` takes spans. Raises
    SetupError.
    """

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        keys: Keys | None = None,
        *,
        team: Team | None = None,
        predecessor: Predecessor | None = None,
        request_log: RequestLog | None = None,
        live: LiveModels | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._backend = backend
        self._keys = collect_keys(settings) if keys is None else keys
        self._team = team
        if team is not None:
            team.use_models(backend.models())
        self._accepted = self._all_keys
        self._authenticator = Authenticator(self._accepted, None if team is None else self._refresh_keys)
        self._origins = OriginGuard(settings, requires_key=self._authenticator.requires_key)
        self._proxies = TrustedProxies(settings.trusted_proxy)
        self._metrics = Metrics(backend)
        self._running = Running()
        self._kept = kept = KeptStreams(settings.resume_window, settings.resume_memory, self._running)
        self._metrics.registry.register(Reading(partial(_metrics_of_parts, kept, team, live, tracer)))
        runner = Runner(backend, self._metrics, self._running, settings.keep_alive, team, request_log)
        self.closes_connections = False
        """Whether each response closes its connection: another server listens in place of this one."""
        self._tracer = tracer
        self._log_requests = settings.access_log
        self._keeps_bodies = request_log is not None
        self._services = services = Services.create(backend, settings, completing(runner, kept))
        self.batches = None if team is None else self._batch_runner(services, team)
        """Works on batches while it runs; None without a database."""
        served = served_dialects(settings.dialects)
        pages = Pages(
            backend,
            ROUTES,
            profile=settings.profile,
            requires_key=self._authenticator.requires_key,
            has_ledger=team is not None,
            dialects=served,
        )
        monitoring = Monitoring(backend, self._metrics, self._authenticator.accepts, team)
        self._routes = Routes(
            [
                (services, (*openai.COMPLETIONS, *openai.COMPLETIONS_OF_MODELS, *openai.CATALOGUE, *tokens.ROUTES)),
                (Streams(kept, self._running, settings.keep_alive, predecessor), streams.ROUTES),
                (monitoring, monitoring_routes.ROUTES),
                (Organization(team), organization.ROUTES),
                (Admin(backend, live, team), admin_routes.ROUTES),
                (FileRoutes(team, settings), file_routes.ROUTES),
                (BatchRoutes(team, settings, self.batches), batch_routes.ROUTES),
                *((services, DIALECTS[name]) for name in served),
                (pages, (*page_routes.SCHEMA_ROUTES, *page_routes.ROUTES)),
            ]
        )

    def _batch_runner(self, services: Services, team: Team) -> BatchRunner:
        """Return the runner of batches, which works on enough lines at a time to use all rows of the largest engine."""

        def max_lines() -> int:
            max_rows = max((load.max_rows for load in services.backend.load().values()), default=1)
            return max_rows + (max_rows + 1) // 2

        dialect = OpenAIBatches(services, team, self._metrics, lambda: self._accepted)
        return team.batches.runner(dialect, max_lines)

    @property
    def _all_keys(self) -> Keys:
        return self._keys if self._team is None else self._keys.with_stored(self._team.keys)

    async def _refresh_keys(self) -> None:
        if self._team is not None and await self._team.refresh():
            self.replace_keys()

    def replace_keys(self, keys: Keys | None = None) -> None:
        """Accept these keys of flags and file from now on, by default those of before, and those of the database as
        they are now."""
        self._keys = self._keys if keys is None else keys
        self._accepted = self._all_keys
        self._authenticator.replace(self._accepted)
        self._metrics.keys.keep(self._accepted.names)

    @property
    def num_running(self) -> int:
        """Number of completion requests that have not ended."""
        return self._running.count

    @property
    def num_kept(self) -> int:
        """Number of streams that a client may come back for, running or ended."""
        return self._kept.num_streams

    async def wait_until_idle(self) -> None:
        """Return when no completion is running."""
        await self._running.wait_until_idle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._handle(HttpExchange(scope, receive, send, request_id()))
            case "lifespan":
                await _handle_lifespan(receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1000})

    async def _handle(self, exchange: HttpExchange) -> None:
        """Handle one request, whatever happens; count it and log it."""
        exchange.client = self._proxies.client(exchange.client, exchange.headers_named(b"x-forwarded-for"))
        exchange.headers += [*COMMON_HEADERS, (b"x-request-id", exchange.id.encode())]
        if self.closes_connections or self._backend.health().state in ("draining", "dead"):
            exchange.headers.append((b"connection", b"close"))
        exchange.keeps_body = self._keeps_bodies
        request_trace.begin(self._tracer, exchange)
        self._metrics.in_flight.inc()
        try:
            await self._dispatch(exchange)
        except (ClientDisconnected, RequestCancelled):
            exchange.record.cancelled = True
        except Exception as exception:
            await self._handle_error(exchange, exception)
        finally:
            self._metrics.in_flight.dec()
            self._metrics.finish(exchange.record, exchange.elapsed_ms / 1000)
            request_trace.end(exchange)
            if self._log_requests:
                log_request(exchange)

    async def _dispatch(self, exchange: HttpExchange) -> None:
        """Check origin and host, method and URL, then the key; then call the handler."""
        self._origins.check(exchange)
        if exchange.method == "OPTIONS":
            await self._handle_preflight(exchange)
            return
        (part, route), exchange.path_value = self._routes.find(exchange.method, exchange.path)
        exchange.record.route, exchange.words = route.path, route.words
        if not route.public:
            await self._authenticator.authenticate(exchange)
        owner.set(exchange.sender)
        if part is self._services and (grant := exchange.grant) is not None:
            part = self._services.restricted(grant.allows)
        await route.handler(part, exchange)

    async def _handle_preflight(self, exchange: HttpExchange) -> None:
        """Allow what the page asks for: OriginGuard has refused pages that may not send requests."""
        allowed = self._routes.allowed_methods(exchange.path)
        requested = exchange.header(b"access-control-request-headers") or "*"
        exchange.headers += [
            (b"allow", allowed.encode()),
            (b"access-control-allow-methods", allowed.encode()),
            (b"access-control-allow-headers", requested.encode("latin-1")),
            (b"access-control-max-age", PREFLIGHT_MAX_AGE_SECONDS),
        ]
        await exchange.respond(204, b"", "")

    async def _handle_error(self, exchange: HttpExchange, exception: Exception) -> None:
        error = convert_error(exception, exchange.id, exchange.words)
        if exchange.response_started:
            raise exception  # part of a response was sent: the server must close the connection
        if error.status == 400 and self._team is not None and exchange.key is not None and exchange.key.limited:
            exchange.add_headers(self._team.headers(exchange.key.limited))  # behaviour §16.1
        try:
            await send_error(exchange, error)
        except ClientDisconnected:
            exchange.record.cancelled = True


def _metrics_of_parts(
    kept: KeptStreams, team: Team | None, live: LiveModels | None, tracer: Tracer | None
) -> Iterator[Metric]:
    """Yield the metrics of those parts that this server has."""
    yield from kept.metrics()
    if team is not None:
        yield from database_metrics(team)
    if live is not None:
        yield from ending_metrics(live)
    if tracer is not None:
        yield from tracer_metrics(tracer)


async def _handle_lifespan(receive: Receive, send: Send) -> None:
    """Nothing to start or stop here: whoever made the application owns the backend."""
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
