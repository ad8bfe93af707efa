"""How many tokens per second a server passes on from an engine that costs nothing, and the processor time per token.

`python -m benchmarks.upstream_face [--faces 1 2]`. A stand-in for vLLM answers every request at once with all tokens,
several per event, as bytes prepared in advance; clients stream from `--faces` processes of `onward serve` in front of
it. Prints the tokens per second of all these processes together, and the tokens per second of their processor time. The
latter does not depend on what else the machine does; the former does on few cores, which clients and stand-in use too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.measure import run_main
from benchmarks.server_process import serve
from onward.model_files.toy import ToyTokenizer

TICKS = os.sysconf("SC_CLK_TCK")
END = b"data: [DONE]"
TOKENIZER = ToyTokenizer()


def answer(num_tokens: int, per_event: int) -> bytes:
    """Return vLLM's whole response with this many tokens."""
    events = []
    for start in range(0, num_tokens, per_event):
        ids = [97 + token % 26 for token in range(start, min(num_tokens, start + per_event))]
        finish = "length" if start + len(ids) == num_tokens else None
        events.append({"choices": [{"index": 0, "text": "", "token_ids": ids, "finish_reason": finish}]})
    body = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + END + b"\n\n"
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def described(path: str, body: bytes) -> bytes:
    """Return its response to other requests."""
    model = {"id": "toy", "max_model_len": 1 << 20, "root": "toy"}
    found: dict[str, object] = {"data": [model], "version": "0.32.0"}
    status = "200 OK"
    if path == "/tokenize":
        found = {"tokens": TOKENIZER.encode(json.loads(body)["prompt"], add_special_tokens=False)}
    elif path == "/v1/completions":
        status, found = "400 Bad Request", {"error": {"message": "more than --max-logprobs", "code": 400}}
    content = json.dumps(found).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def run_stand_in(ready: Connection, num_tokens: int, per_event: int) -> None:
    """Answer until terminated. Sends its port."""
    whole = answer(num_tokens, per_event)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length:")[2].split("\r\n")[0] or 0)
                body = await reader.readexactly(length)
                path = head.split(" ", 2)[1]
                is_stream = path == "/v1/completions" and b'"stream":true' in body
                writer.write(whole if is_stream else described(path, body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def stand_in(num_tokens: int, per_event: int) -> Iterator[str]:
    """Run the stand-in; yield its URL."""
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=run_stand_in, args=(there, num_tokens, per_event), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join()


async def load(urls: list[str], num_clients: int, num_requests: int, num_tokens: int) -> float:
    """Stream from servers in turn; return the seconds that all requests take."""
    body = json.dumps({"model": "toy", "prompt": "Say", "max_tokens": num_tokens, "stream": True, "temperature": 0})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    request = (head + "content-type: application/json\r\nconnection: close\r\n\r\n" + body).encode()
    left = iter(range(num_requests))

    async def client() -> None:
        for number in left:
            parts = urlsplit(urls[number % len(urls)])
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(request)
            tail = b""
            while chunk := await reader.read(1 << 16):
                tail = (tail + chunk)[-100:]
            writer.close()
            assert END in tail, tail

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(num_clients)))
    return time.perf_counter() - start


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure(num_faces: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """Return the tokens per second of this many servers, and per second of their processor time."""
    with ExitStack() as stack:
        upstream = stack.enter_context(stand_in(arguments.tokens, arguments.per_event))
        flags = ("--tokenizer", "toy=toy", "--no-access-log", "--log-level", "warning")
        servers = [stack.enter_context(serve(f"toy=vllm+{upstream}", *flags)) for _ in range(num_faces)]
        urls = [server.url for server in servers]
        asyncio.run(load(urls, arguments.clients, 2 * arguments.clients, arguments.tokens))  # warm
        before = sum(processor_seconds(server.pid) for server in servers)
        seconds = asyncio.run(load(urls, arguments.clients, arguments.requests, arguments.tokens))
        spent = sum(processor_seconds(server.pid) for server in servers) - before
    num_tokens = arguments.requests * arguments.tokens
    return num_tokens / seconds, num_tokens / spent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream_face", description=__doc__)
    parser.add_argument("--faces", type=int, nargs="+", default=[1, 2], help="how many servers (default 1 and 2)")
    parser.add_argument("--clients", type=int, default=32, help="streams at a time (default 32)")
    parser.add_argument("--requests", type=int, default=320, help="streams in all (default 320)")
    parser.add_argument("--tokens", type=int, default=512, help="tokens per stream (default 512)")
    parser.add_argument("--per-event", type=int, default=8, help="tokens per event of the upstream (default 8)")
    arguments = parser.parse_args()
    for num_faces in arguments.faces:
        rate, per_second = measure(num_faces, arguments)
        print(
            f"{num_faces} server(s): {rate:,.0f} tokens/s, {per_second:,.0f} per second of processor time", flush=True
        )


if __name__ == "__main__":
    run_main(main)
