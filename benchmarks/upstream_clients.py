"""What a streamed request to an upstream costs in processor time: Onward's own HTTP client, aiohttp and httpx2.

`python -m benchmarks.upstream_clients`; aiohttp is compared where it is installed. A process answers with small events
in chunks and closes the connection, as llama-server does after a stream. The clients take turns, one request each, in a
different order every time, so that a busy machine affects all of them alike; the figure is this process's processor
time per request, the median of all requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection

import httpx2

from benchmarks.load import event_loop_runner
from benchmarks.measure import run_main
from onward.engines.upstreams.http import HTTPClient

EVENT = b'data: {"index":0,"content":" word","tokens":[1234],"stop":false}\n\n'
BODY = json.dumps({"prompt": list(range(32)), "stream": True}).encode()
Stream = Callable[[], AsyncIterator[bytes]]
"""Sends a request and yields the body of its answer as it arrives."""
WARM_UP = 20
"""Requests of each client that are not counted."""


def serve(ready: Connection, num_events: int) -> None:
    """Answer each request with that many events. Sends its port; runs until it is terminated."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    event = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(BODY))  # closing with unread bytes would reset the connection
        writer.write(head)
        for _ in range(num_events):
            writer.write(event)
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@asynccontextmanager
async def own(url: str) -> AsyncIterator[Stream]:
    client = HTTPClient(url, {}, 60.0)

    async def stream() -> AsyncIterator[bytes]:
        async with client.request("POST", "/completion", BODY, keep_alive=False) as response:
            response.expect_events(1 << 16)
            while chunk := await response.chunk():
                response.progressed()
                yield chunk

    yield stream
    await client.close()


@asynccontextmanager
async def with_aiohttp(url: str) -> AsyncIterator[Stream]:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:

        async def stream() -> AsyncIterator[bytes]:
            async with session.post(f"{url}/completion", data=BODY) as response:
                async for chunk in response.content.iter_any():
                    yield chunk

        yield stream


@asynccontextmanager
async def with_httpx2(url: str) -> AsyncIterator[Stream]:
    async with httpx2.AsyncClient(timeout=60, headers={"connection": "close"}) as client:

        async def stream() -> AsyncIterator[bytes]:
            async with client.stream("POST", f"{url}/completion", content=BODY) as response:
                async for chunk in response.aiter_bytes():
                    yield chunk

        yield stream


async def measure(url: str, rounds: int, num_events: int) -> dict[str, list[float]]:
    """Return the seconds of processor time of each request, by client."""
    makers = {"Onward's own": own, "httpx2": with_httpx2}
    if find_spec("aiohttp") is not None:
        makers["aiohttp"] = with_aiohttp
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    async with AsyncExitStack() as stack:
        streams = {name: await stack.enter_async_context(make(url)) for name, make in makers.items()}
        for number in range(rounds + WARM_UP):
            for name in random.Random(number).sample(list(streams), len(streams)):
                start = time.process_time()
                body = b"".join([chunk async for chunk in streams[name]()])
                if number >= WARM_UP:
                    seconds[name].append(time.process_time() - start)
                assert body == EVENT * num_events, name
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream_clients", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="requests of each client (default 300)")
    parser.add_argument("--events", type=int, default=32, help="events of each answer (default 32)")
    arguments = parser.parse_args()
    here, there = get_context("spawn").Pipe()
    server = get_context("spawn").Process(target=serve, args=(there, arguments.events), daemon=True)
    server.start()
    try:
        with event_loop_runner() as runner:
            seconds = runner.run(measure(f"http://127.0.0.1:{here.recv()}", arguments.rounds, arguments.events))
    finally:
        server.terminate()
        server.join()
    base = statistics.median(seconds["Onward's own"])
    for name, each in seconds.items():
        median = statistics.median(each)
        print(f"{name}: {median * 1e3:.2f} ms of processor time per request, {median / base:.2f} times Onward's own")


if __name__ == "__main__":
    run_main(main)
