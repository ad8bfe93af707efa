"""The serving process: socket first, then the model, then requests, then a drain."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import uvicorn

from onward.backends.base import Backend
from onward.errors import SetupError
from onward.residency import share_heap
from onward.server.app import App, make_app
from onward.server.connection import server_config
from onward.server.guard import check_exposure, collect_keys
from onward.settings import Settings
from onward.stdio import silence_stdout

Progress = Callable[[str], None]
"""Takes one sentence for each stage of loading."""

log = logging.getLogger("onward.server")

FAREWELL_SECONDS = 5.0
"""Time for the engine to finish its step and for the error events of ended requests to reach their clients."""
BACKLOG = 2048
_HANG_UP = None if sys.platform == "win32" else signal.SIGHUP
_ENDING = [signal.SIGINT, signal.SIGTERM, *([_HANG_UP] if _HANG_UP else [])]


def serve(
    settings: Settings,
    compose: Callable[[Settings, Progress], Backend],
    show_progress: Callable[[Progress], AbstractContextManager[Progress]] = nullcontext,
) -> int:
    """Serve until a signal ends it; the exit code. Raises SetupError before anything listens.

    `show_progress(log)` may show the stages of loading in another way than `log`, as long as its context is open.
    The port is taken before the model loads, so that a port in use is told at once; it answers only when ready.
    """
    configure_logging(settings)
    share_heap()
    _allow_many_connections()
    keys = collect_keys(settings)
    check_exposure(settings, keys)
    listener = bind(settings.host, settings.port)
    try:
        with show_progress(log.info) as progress:
            backend = compose(settings, progress)
        app = make_app(backend, settings, keys)
        gc.freeze()  # libraries' objects live as long as the process: no collection needs to look at them
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
        self._signal: int | None = None
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
            announce(ready_line(self._settings, self._listener))
            await _first(serving, self._stop.wait())
            await self._drain()
        finally:
            await self._close()
            await asyncio.wait({serving})
        serving.result()
        log.info("stopped")
        return 128 + (self._signal or signal.SIGINT) if self._stop_now.is_set() else 0

    def signal(self, number: int) -> None:
        """First time: drain. Second time: end at once; but a terminal that closes says so more than once."""
        if self._stop.is_set() and number == _HANG_UP:
            return
        if self._stop.is_set():
            self._stop_now.set()
        self._signal = number
        self._stop.set()

    def _handle_signals(self) -> None:
        """Needs the main thread. Where the loop cannot (Windows), Ctrl-C interrupts without a drain."""
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            if number == _HANG_UP and signal.getsignal(number) is signal.SIG_IGN:  # nohup
                continue
            try:
                loop.add_signal_handler(number, self.signal, number)
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
            again = "press Ctrl-C again" if self._signal == signal.SIGINT else "send the signal again"
            log.warning(
                "draining: %s may run for %g s more; %s to end now",
                _requests(self._app.running),
                self._settings.drain,
                again,
            )
        try:
            async with asyncio.timeout(self._settings.drain):
                await _first(self._stop_now.wait(), self._app.idle())
        except TimeoutError:
            log.warning("ending %s that did not finish in time", _requests(self._app.running))

    async def _close(self) -> None:
        """End what still runs, with an error event each; then the engine, then the connections."""
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._backend.aclose()
                await self._app.idle()
        except TimeoutError:
            log.warning("some requests could not be ended properly")
        self._server.should_exit = True


def _allow_many_connections() -> None:
    """Open as many files as this process may: the usual soft limit, 1024, is for programs that use select()."""
    if sys.platform != "win32":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        except (OSError, ValueError):  # macOS refuses what it calls unlimited
            log.debug("the limit of open files stays")


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


async def _first(*waits: Awaitable[object]) -> None:
    """Wait until one of them is done. Stops those that were begun here, leaves tasks alone."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
    finally:
        for task, wait in zip(tasks, waits, strict=True):
            if task is not wait:
                task.cancel()


def announce(line: str) -> None:
    """Print a line. That standard output is closed or full is no reason not to serve: the log has it then."""
    try:
        print(line, flush=True)
    except OSError:
        silence_stdout()
        log.info(line)


def ready_line(settings: Settings, listener: socket.socket) -> str:
    """What is printed when the first request can come."""
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    noun = "model" if len(settings.model) == 1 else "models"
    return f"Onward is ready at http://{host}:{port}/v1 ({noun}: {', '.join(settings.model)})"
