"""Servers on real sockets in this process, for tests of their answers: processes of their own would take seconds of
processor time. For tests of how a process starts, ends and is interrupted, see `tests.processes`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import uvicorn

from onward.cli.settings_command import SettingsCommand
from onward.compose import compose
from onward.compose.team import open_request_log, open_team
from onward.loop_thread import LoopThread
from onward.server.app import App
from onward.server.connection import server_config
from onward.server.process import bind
from onward.settings import Settings
from tests.waiting import until, wait_for


class ServerInLoop(uvicorn.Server):
    """uvicorn's server, but told when to end: uvicorn's looks every tenth of a second, and then waits for another."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ends = asyncio.Event()

    def end(self) -> None:
        """Call it in the server's event loop."""
        self._ends.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._ends.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        state = self.server_state
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await until(lambda: not state.connections and not state.tasks)
        except TimeoutError:
            for task in state.tasks:
                task.cancel()


class Connected(NamedTuple):
    """A connection to a server in the test's event loop; `served` is the server's end of it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    served: asyncio.Protocol


@asynccontextmanager
async def connected_to(config: uvicorn.Config) -> AsyncIterator[Connected]:
    """Serve in the running event loop and connect to the server."""
    listener = bind("127.0.0.1", 0)
    listener.listen()
    server = ServerInLoop(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    await until(lambda: server.server_state.connections)
    (served,) = server.server_state.connections
    try:
        yield Connected(reader, writer, served)
    finally:
        writer.close()
        server.end()
        await serving


@contextmanager
def listening(app: App) -> Iterator[str]:
    """Serve an application on a thread of this process. Yields its base URL, `http://127.0.0.1:PORT`."""
    loop = LoopThread("served")
    loop.start()
    try:
        with listening_on(loop, app) as url:
            yield url
    finally:
        loop.stop(lambda: None)


@contextmanager
def listening_on(loop: LoopThread, app: App) -> Iterator[str]:
    listener = bind("127.0.0.1", 0)
    server = ServerInLoop(server_config(app))
    serving = asyncio.run_coroutine_threadsafe(server.serve(sockets=[listener]), loop.loop)
    wait_for(lambda: server.started or serving.done(), "the server")
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        loop.loop.call_soon_threadsafe(server.end)
        serving.result()


def parsed(*flags: str) -> Settings:
    """Return the settings of `onward serve` with these flags."""
    settings: Settings = SettingsCommand("serve", callback=lambda resolved: resolved.settings).main(
        ["--no-access-log", *flags], standalone_mode=False
    )
    return settings


@contextmanager
def served_here(*flags: str, model: str | Path = "toy", engine_process: bool = False) -> Iterator[str]:
    """The base URL of the server that `onward serve` would be with these flags, on a thread of this process.
    `engine_process`: its engines have processes of their own, as they have there by default."""
    settings = parsed("--model", str(model), *flags)
    loop, team = LoopThread("served"), open_team(settings)
    loop.start()
    request_log = open_request_log(settings, team)
    backend = compose(settings, lambda message: None, own_process=engine_process)
    app = App(backend, settings, team=team, request_log=request_log)
    try:
        with listening_on(loop, app) as url:
            batches = None if app.batches is None else asyncio.run_coroutine_threadsafe(app.batches.run(), loop.loop)
            try:
                yield url
            finally:
                if batches is not None:
                    batches.cancel()
    finally:
        loop.run(backend.aclose())
        loop.stop(lambda: None)
        for each in (request_log, team):
            if each is not None:
                each.close()
