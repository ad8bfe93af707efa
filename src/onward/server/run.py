"""The server process: bind the socket, load the model, serve requests, drain."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import uvicorn

from onward.backends.base import Backend, LiveModels
from onward.errors import SetupError
from onward.loop_thread import fast_event_loop
from onward.models.registry import BUILT_IN, real_model_hint
from onward.residency import share_heap
from onward.server.admin import ModelReload
from onward.server.app import App
from onward.server.auth import check_exposure
from onward.server.connection import check_uvicorn, server_config
from onward.server.handover import Handover, Predecessor, activated_listener
from onward.server.keys import KeyReload, collect_keys, file_version
from onward.server.logs import configure_logging, one_line
from onward.server.process import (
    DEAD_ENGINE_EXIT_CODE,
    READY,
    STOPPING,
    bind,
    bind_error,
    collect_when_idle,
    has_terminal,
    notify,
    prepare_interpreter,
    print_or_log,
    raise_open_files_limit,
    resolve_address,
    set_harmless_signals,
    wait_for_dead_engine,
)
from onward.settings import Settings
from onward.tracing import Tracer

if TYPE_CHECKING:
    from onward.service.request_log import RequestLog
    from onward.service.team import Team

Progress = Callable[[str], None]
"""Called with one sentence for each stage of loading."""

log = logging.getLogger("onward.server")

CLOSE_SECONDS = 5.0
"""Time for the engine to finish its step and for the error events of cancelled requests to reach their clients."""
STOP_NOW_SECONDS = 0.5
"""The same after a second signal."""
HANGUP_SECONDS = 1.0
"""How long a terminal is given to close after SIGHUP: some send it first."""
FINISHED_POLL_SECONDS = 0.1
BACKLOG = 2048
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""An address that means all addresses of a machine → the one at which this machine reaches the server."""
_SIGHUP = None if sys.platform == "win32" else signal.SIGHUP
_SHUTDOWN_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([_SIGHUP] if _SIGHUP else [])]


class Closable(Protocol):
    def close(self) -> object: ...


class ClosableTracer(Tracer, Closable, Protocol):
    """A tracer that sends what waits when it is closed."""


def serve(
    settings: Settings,
    compose: Callable[[Settings, Progress], Backend],
    *,
    show_progress: Callable[[Progress], AbstractContextManager[Progress]] = nullcontext,
    announcement: str | None = None,
    open_team: Callable[[Settings], Team | None] = lambda settings: None,
    open_request_log: Callable[[Settings, Team | None], RequestLog | None] = lambda settings, team: None,
    open_models: Callable[[Settings, Backend], LiveModels | None] = lambda settings, backend: None,
    again: Callable[[], Settings] | None = None,
    open_tracer: Callable[[Settings], ClosableTracer | None] = lambda settings: None,
) -> int:
    """Serve until a signal stops the process; return the exit code. Raises SetupError before anything listens.

    `show_progress(log)` may show the stages of loading in another way than `log`, as long as its context is open. The
    port is bound before the model loads, so that a port in use is reported at once. It accepts connections only when
    the model is ready. `announcement` is logged first. `open_team` opens the database that the settings may name,
    `open_request_log` the log of requests, `open_models` what changes the backend's models, `open_tracer` the way of
    traces. `again` reads the settings again, where a file has some.
    """
    set_harmless_signals()
    configure_logging(settings)
    if announcement is not None:
        log.info(announcement)
    check_uvicorn()
    share_heap()
    raise_open_files_limit()
    key_version = file_version(settings.api_key_file)
    keys = collect_keys(settings)
    stated, (settings, listener, predecessor) = settings, _listener(settings)
    team = request_log = tracer = None
    try:
        tracer = open_tracer(settings)
        team = open_team(settings)
        request_log = open_request_log(settings, team)
        if team is not None:
            keys.check_names(team.keys)
        check_exposure(settings, keys if team is None else keys.with_stored(team.keys))
        with show_progress(log.info) as progress:
            backend = compose(settings, progress)
        live = open_models(settings, backend)
        app = App(
            backend, settings, keys,
            team=team, predecessor=predecessor, request_log=request_log, live=live, tracer=tracer,
        )  # fmt: skip
        prepare_interpreter(settings)
    except BaseException:
        _close(listener, predecessor, request_log, tracer, team)
        raise
    # Never closed: that would restore the default actions of signals, and a further one would spoil the clean end.
    runner = asyncio.Runner(loop_factory=fast_event_loop)
    key_reload = KeyReload(settings, keys, key_version, app.replace_keys)
    model_reload = ModelReload(stated, again, backend, live, team) if live is not None and again is not None else None
    service = Service(
        app, backend, settings, listener, key_reload, team=team, predecessor=predecessor, model_reload=model_reload
    )
    status = runner.run(service.run())
    _close(request_log, tracer, team)
    logging.shutdown()
    return status


def _close(*opened: Closable | None) -> None:
    for each in opened:
        if each is not None:
            each.close()


def _listener(settings: Settings) -> tuple[Settings, socket.socket, Predecessor | None]:
    """Return the socket to listen on, the settings with its address, and the server that it is taken over from.

    Raises SetupError.
    """
    if (activated := activated_listener()) is not None:
        host, port = activated.getsockname()[:2]
        return replace(settings, host=host, port=port), activated, None
    if settings.take_over:
        host, port = resolve_address(settings.host, settings.port).address[:2]
        if (predecessor := Predecessor.find(host, port)) is not None:
            return settings, predecessor.listener, predecessor
    return settings, bind(settings.host, settings.port), None


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, because Service drains first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Service:
    """One run of the server, from listening to exit. Owns the backend and the socket."""

    def __init__(
        self,
        app: App,
        backend: Backend,
        settings: Settings,
        listener: socket.socket,
        key_reload: KeyReload,
        *,
        team: Team | None = None,
        predecessor: Predecessor | None = None,
        model_reload: ModelReload | None = None,
    ) -> None:
        self._app = app
        self._backend = backend
        self._settings = settings
        self._listener = listener
        self._key_reload = key_reload
        self._team = team
        self._predecessor = predecessor
        self._handover = Handover(listener)
        self._model_reload = model_reload
        self._had_terminal = has_terminal()
        self._signal: int | None = None
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._is_dead = False
        self._server = _Server(server_config(app))

    async def run(self) -> int:
        """Serve, drain and close; return the exit code. Raises SetupError if the port has been taken meanwhile."""
        try:
            self._listen()
        except SetupError:
            await self._backend.aclose()
            raise
        self._add_signal_handlers()
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        polling = None if self._team is None else asyncio.create_task(self._team.run(self._app.replace_keys))
        try:
            await _wait_until_started(self._server, serving)
            if self._predecessor is not None:
                await self._predecessor.replace()
            print_or_log(ready_line(list(self._backend.health().models), self._settings, self._listener))
            notify(READY)
            working = None if self._app.batches is None else asyncio.create_task(self._app.batches.run())
            await self._serve_until(serving, self._handover.wait_for_successor())
            if working is not None:
                working.cancel()  # its lines are for another server
            if self._handover.is_taken:
                await self._hand_over(serving)
            self._is_dead = self._backend.health().state == "dead"
            await self._drain()
        finally:
            await self._close()
            if polling is not None:  # until now, so that nobody takes a server that drains for dead
                polling.cancel()
            await asyncio.wait({serving})
            self._handover.close()
        serving.result()
        log.info("stopped")
        if self._stop_now.is_set():
            return 128 + (self._signal or signal.SIGINT)
        return DEAD_ENGINE_EXIT_CODE if self._is_dead else 0

    async def _serve_until(self, serving: asyncio.Task[None], event: Coroutine[object, object, None]) -> None:
        """Return at `event`, at a signal, or when the engine is dead."""
        await _wait_for_first(
            serving,
            event,
            self._stop.wait(),
            wait_for_dead_engine(self._backend),
            self._key_reload.run(),
            *([] if self._model_reload is None else [self._model_reload.run()]),
            *([] if self._predecessor is None else [self._predecessor.watch()]),
            collect_when_idle(lambda: self._app.num_running),
        )

    async def _hand_over(self, serving: asyncio.Task[None]) -> None:
        """Accept no more connections, and finish what has begun, however long that takes; a signal ends it as usual."""
        kept = _Server(server_config(self._app, str(self._handover.streams_path)))
        serving_kept = asyncio.create_task(kept.serve())
        try:
            await _wait_until_started(kept, serving_kept)
            self._app.closes_connections = True
            for server in self._server.servers:
                server.close()
            await self._handover.hand_over()
            log.info("process %s has taken over; this one ends when it has finished", self._handover.successor)
            await self._serve_until(serving, self._wait_until_finished())
        finally:
            kept.should_exit = True
            await asyncio.wait({serving_kept})

    async def _wait_until_finished(self) -> None:
        """Return when no request runs, no client is connected, and no stream is kept."""
        while self._app.num_running or self._app.num_kept or self._server.server_state.connections:
            await asyncio.sleep(FINISHED_POLL_SECONDS)

    def signal(self, number: int) -> None:
        """Drain on the first signal, stop at once on the second. SIGHUP drains only where a terminal closes; otherwise
        it reads the key file and the settings file again, where there are any: that is how service managers reload."""
        if number != _SIGHUP:
            self._end(number)
        elif self._had_terminal and has_terminal():
            asyncio.get_running_loop().call_later(HANGUP_SECONDS, self._hang_up)
        else:
            self._hang_up()

    def _end(self, number: int) -> None:
        if self._stop.is_set():
            self._stop_now.set()
        self._signal = number
        self._stop.set()

    def _hang_up(self) -> None:
        """End if the terminal is gone, which may send SIGHUP repeatedly; otherwise read the files again."""
        if not self._had_terminal or has_terminal():
            self._read_again()
        elif not self._stop.is_set():
            self._end(signal.SIGHUP)

    def _read_again(self) -> None:
        if self._settings.api_key_file is None and self._model_reload is None:
            log.warning(
                "SIGHUP: there is nothing to read again, neither --api-key-file nor a settings file with this server's "
                "models; restart it to change its settings"
            )
        self._key_reload.request()
        if self._model_reload is not None:
            self._model_reload.request()

    def _add_signal_handlers(self) -> None:
        """Call it on the main thread. On Windows loops cannot handle signals, and Ctrl-C interrupts without a drain."""
        loop = asyncio.get_running_loop()
        for number in _SHUTDOWN_SIGNALS:
            if number == _SIGHUP and signal.getsignal(number) is signal.SIG_IGN:  # nohup
                continue
            try:
                loop.add_signal_handler(number, self.signal, number)
            except NotImplementedError:
                pass

    def _listen(self) -> None:
        """Raise SetupError if another program took the port while the model loaded; uvloop would hide that."""
        try:
            self._listener.listen(BACKLOG)
        except OSError as error:
            self._listener.close()
            raise SetupError(bind_error(error, self._settings.host, self._settings.port)) from None

    async def _drain(self) -> None:
        """Refuse new completions and wait for the running ones. The port stays open, so that /health can report it."""
        notify(STOPPING)
        self._backend.drain()
        if self._app.num_running:
            repeat = "press Ctrl-C again" if self._signal == signal.SIGINT else "send the signal again"
            log.warning(
                "draining: %s may run for up to %g s; %s to stop now",
                _count_requests(self._app.num_running),
                self._settings.drain,
                repeat,
            )
        try:
            async with asyncio.timeout(self._settings.drain):
                await _wait_for_first(self._stop_now.wait(), self._app.wait_until_idle())
        except TimeoutError:
            log.warning("cancelling %s that did not finish in time", _count_requests(self._app.num_running))

    async def _close(self) -> None:
        """Cancel what is still running, with an error event each; then close the engine, then the connections. A
        second signal, and an engine that hangs, leave little time for that: it ends with the process."""
        closing = asyncio.create_task(self._close_backend())
        seconds = CLOSE_SECONDS + self._settings.save_seconds
        await _wait_for_first(closing, self._stop_now.wait(), asyncio.sleep(seconds))
        if self._stop_now.is_set():
            await asyncio.wait({closing}, timeout=STOP_NOW_SECONDS)
        if not closing.done():
            log.warning("the engine does not stop, or some requests could not be cancelled cleanly")
        self._server.should_exit = True

    async def _close_backend(self) -> None:
        await self._backend.aclose()
        await self._app.wait_until_idle()


async def _wait_until_started(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    while not server.started:
        if serving.done():
            serving.result()
        await asyncio.sleep(0.005)


def _count_requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


async def _wait_for_first(*awaitables: Awaitable[object]) -> None:
    """Wait until one of them is done. Cancels those that were started here, but not tasks that were passed in."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
    finally:
        for task, awaitable in zip(tasks, awaitables, strict=True):
            if task is not awaitable:
                task.cancel()


def ready_line(names: Sequence[str], settings: Settings, listener: socket.socket) -> str:
    """Return the lines that are printed when the server accepts requests, with the built-in model one more."""
    port = listener.getsockname()[1]
    named, elsewhere = settings.host.strip("[]"), ""
    if named in _ANY_ADDRESS:
        named, elsewhere = _ANY_ADDRESS[named], " and at the other addresses of this machine"
    host = f"[{named.replace('%', '%25')}]" if ":" in named else named
    noun, place = "model" if len(names) == 1 else "models", f"http://{host}:{port}"
    listed = one_line(", ".join(names))
    line = f"Onward is ready at {place}/v1{elsewhere} ({noun}: {listed}).\nWrite at {place}; Ctrl-C stops it."
    return f"{line}\n{real_model_hint()}" if list(names) == list(BUILT_IN) and not settings.cluster else line
