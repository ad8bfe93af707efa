"""A proxy that cuts connections in the middle of a response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress


class Cutting:
    """Forwards connections to a local port. `budgets` has the bytes of a response after which each is cut, all of which
    the client receives; connections beyond are not cut. A budget of 0 refuses the connection."""

    def __init__(self, port: int, budgets: Iterator[int]) -> None:
        self.port = port
        self.url = ""
        self.num_connections = 0
        self.requests: list[bytes] = []
        self._budgets = budgets

    @property
    def methods(self) -> list[str]:
        """The method of each request that was forwarded."""
        return [request.split(b" ", 1)[0].decode() for request in self.requests]

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        budget = next(self._budgets, None)
        try:
            if budget == 0:
                return
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.port)
            sending = asyncio.create_task(self._send(reader, server_writer))
            try:
                await _receive(server_reader, writer, budget)
            finally:
                sending.cancel()
                server_writer.close()
        finally:
            writer.close() if budget != 0 else writer.transport.abort()

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            self.requests.append(data)
            writer.write(data)
        writer.close()


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536 if budget is None else budget):
            writer.write(data)
            await writer.drain()
            if budget is not None and (budget := budget - len(data)) <= 0:
                return


@asynccontextmanager
async def cutting(port: int, *budgets: int) -> AsyncIterator[Cutting]:
    proxy = Cutting(port, iter(budgets))
    server = await asyncio.start_server(proxy.forward, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield proxy
    finally:
        server.close()
