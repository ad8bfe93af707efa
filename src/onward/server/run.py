"""The serving process: socket first, then the model, then requests, then a drain."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from prometheus_client import disable_created_metrics
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from onward.backends.base import Backend
from onward.errors import InvalidRequest, SetupError
from onward.protocol.error_body import error_envelope
from onward.server.app import App, make_app
from onward.server.guard import check_exposure, collect_keys
from onward.server.progress import loading
from onward.settings import Settings

log = logging.getLogger("onward.server")

FAREWELL_SECONDS = 5.0
"""Time for the engine to finish its step and for the error events of ended requests to reach their clients."""
IDLE_SECONDS = 65
"""Idle connections stay open longer than clients keep theirs (5 to 60 s), so that a client never writes into
a connection that is just being closed."""
BACKLOG = 2048
UPGRADE = re.compile(rb"^Upgrade(?=:)", re.IGNORECASE | re.MULTILINE)
INTERRUPTED = 130


def serve(settings: Settings, compose: Callable[[Settings, Callable[[str], None]], Backend]) -> int:
    """Serve until a signal ends it; the exit code. Raises SetupError before anything listens.

    The port is taken before the model loads, so that a port in use is told at once; it answers only when ready.
    """
    keys = collect_keys(settings)
    check_exposure(settings, keys)
    configure_logging(settings)
    disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double what every scrape carries
    listener = bind(settings.host, settings.port)
    try:
        with loading() as progress:
            backend = compose(settings, progress)
        app = make_app(backend, settings)
    except BaseException:
        listener.close()
        raise
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(Service(app, backend, settings, listener).run())


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises SetupError in one sentence."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise SetupError(f"{host} is no address of this machine: give another --host.") from None
    listener = socket.socket(family, kind, number)
    if sys.platform != "win32":  # there it would let two programs share the port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.set_inheritable(False)
    except OSError as problem:
        listener.close()
        raise SetupError(_bind_words(problem, host, port)) from None
    return listener


def _bind_words(problem: OSError, host: str, port: int) -> str:
    match problem.errno:
        case errno.EADDRINUSE:
            return f"Port {port} on {host} is in use: stop the program that has it, or give another --port."
        case errno.EACCES:
            return f"Port {port} needs more rights than this user has: give a --port above 1023."
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine: give another --host."
    return f"Cannot listen on {host} port {port}: {problem.strerror}."


def configure_logging(settings: Settings) -> None:
    """Log to stderr, with time and level. Leaves libraries at warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("onward")
    logger.handlers[:] = [handler]
    logger.setLevel(settings.log_level.upper())
    logger.propagate = False
    libraries = logging.getLogger("uvicorn")
    libraries.handlers[:] = [handler]
    libraries.setLevel(logging.WARNING)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    if sys.platform == "win32":
        return asyncio.new_event_loop
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, strict where our rules ask for more."""

    _answering: RequestResponseCycle | None = None

    def data_received(self, data: bytes) -> None:
        """Pass over an offer to change the protocol, as RFC 9110 §7.8 allows; Java's client makes one by default.

        The parser would take it at its word and drop the request's body, so it must not see it. The header keeps
        its length, and no line of a JSON body can look like it.
        """
        if b"pgrade:" in data:
            data = UPGRADE.sub(b"Ignored", data)
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP are told in the same envelope as every other error (spec/wire-rules 6)."""
        body, content_type = error_envelope(InvalidRequest(msg))
        head = f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[400] + head.encode() + body)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request being answered, too: uvicorn tells only the last one of a pipeline."""
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: ours drains first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Service:
    """One run of the server: from listening to the last goodbye."""

    def __init__(self, app: App, backend: Backend, settings: Settings, listener: socket.socket) -> None:
        self._app = app
        self._backend = backend
        self._settings = settings
        self._listener = listener
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._server = _Server(server_config(app))

    async def run(self) -> int:
        """Serve, drain, close. Returns the exit code. Raises SetupError when the port has been taken."""
        try:
            self._listen()
        except SetupError:
            await self._backend.aclose()
            raise
        self._handle_signals()
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        try:
            await self._wait_until_started(serving)
            print(ready_line(self._settings, self._listener), flush=True)
            await _first(serving, self._stop.wait())
            await self._drain()
        finally:
            await self._close()
            await asyncio.wait({serving})
        serving.result()
        return INTERRUPTED if self._stop_now.is_set() else 0

    def signal(self) -> None:
        """First time: drain. Second time: end at once."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    def _handle_signals(self) -> None:
        """Needs the main thread. Where the loop cannot (Windows), Ctrl-C interrupts without a drain."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, self.signal)
            except NotImplementedError:
                pass

    def _listen(self) -> None:
        """Raises SetupError when another program took the port while the model loaded: uvloop would hide that."""
        try:
            self._listener.listen(BACKLOG)
        except OSError as problem:
            self._listener.close()
            raise SetupError(_bind_words(problem, self._settings.host, self._settings.port)) from None

    async def _wait_until_started(self, serving: asyncio.Task[None]) -> None:
        while not self._server.started:
            if serving.done():
                serving.result()
            await asyncio.sleep(0.005)

    async def _drain(self) -> None:
        """Refuse new completions, wait for the running ones. The port stays open: /health tells what goes on."""
        self._backend.drain()
        if self._app.running:
            log.warning(
                "draining: %d requests may run for %.0f s more; press Ctrl-C again to end them now",
                self._app.running,
                self._settings.drain,
            )
        try:
            async with asyncio.timeout(self._settings.drain):
                await _first(self._stop_now.wait(), self._app.idle())
        except TimeoutError:
            log.warning("ending %d requests that did not finish in time", self._app.running)

    async def _close(self) -> None:
        """End what still runs, with an error event each; then the engine, then the connections."""
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._backend.aclose()
                await self._app.idle()
        except TimeoutError:
            log.warning("some requests could not be ended properly")
        self._server.should_exit = True


async def _first(*waits: Awaitable[object]) -> None:
    """Wait until one of them is done. Stops those that were begun here, leaves tasks alone."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
    finally:
        for task, wait in zip(tasks, waits, strict=True):
            if task is not wait:
                task.cancel()


def server_config(app: App) -> uvicorn.Config:
    """How uvicorn serves the application, in the process and in tests."""
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=1,
    )


def ready_line(settings: Settings, listener: socket.socket) -> str:
    """What is printed when the first request can come."""
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    noun = "model" if len(settings.model) == 1 else "models"
    return f"Onward is ready at http://{host}:{port}/v1 ({noun}: {', '.join(settings.model)})"
