"""A stream whose connection is lost is resumed seamlessly, against a server that keeps it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest

from onward.cli.session import ServerConnection
from onward.cli.source.base import ConnectionFailed, Document
from onward.cli.source.http import HttpSource
from onward.cli.source.stream import resume_window
from onward.server.app import App
from tests.listening import listening, served_here
from tests.server.fakes import in_loop, settings
from tests.server.served import compose
from tests.waiting import until, wait_for

from .cutting import cutting

STORY: dict[str, Any] = {"model": "storyteller", "prompt": "Once", "stream": True}
HANGING = {**STORY, "prompt": "hang"}
HEAD_AND_ONE_EVENT = 800
"""More bytes than the head of the response and the first event, fewer than with all others."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """URL of a server with scripted answers, which keeps streams."""
    given = settings(keep_alive=0.05, resume_window=10, access_log=False)
    with listening(App(compose(given, print), given)) as url:
        yield url


@pytest.fixture(scope="module")
def engine_server() -> Iterator[str]:
    """URL of a server with the toy model, whose engine has a process of its own."""
    with served_here(engine_process=True) as url:
        yield url


def source_for(url: str, slept: list[float] | None = None) -> HttpSource:
    async def sleep(seconds: float) -> None:
        if slept is not None:
            slept.append(seconds)

    return HttpSource(ServerConnection(base_url=url), sleep=sleep, quiet=True)


async def read(url: str, fields: dict[str, Any], slept: list[float] | None = None) -> list[Document]:
    source = source_for(url, slept)
    try:
        async with aclosing(source.chunks(fields)) as chunks:
            return [chunk async for chunk in chunks]
    finally:
        await source.aclose()


def texts(documents: list[Document]) -> list[str]:
    return [document.value["choices"][0]["text"] for document in documents]


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def is_kept(server: str, id: str) -> bool:
    """Whether the server still works on a stream. Streams of other tests may be kept meanwhile."""
    try:
        urllib.request.urlopen(f"{server}/v1/completions/{id}", timeout=60).close()
    except urllib.error.HTTPError as refused:
        assert refused.code == 404
        return False
    return True


@in_loop
async def test_a_lost_connection_leaves_no_seam(server: str) -> None:
    whole = texts(await read(f"{server}/v1", STORY))
    async with cutting(port_of(server), HEAD_AND_ONE_EVENT, HEAD_AND_ONE_EVENT) as proxy:
        assert texts(await read(proxy.url, STORY)) == whole
        assert proxy.methods[:2] == ["POST", "GET"]


@in_loop
async def test_law_a_stream_that_is_cut_again_and_again_is_the_whole_one(engine_server: str) -> None:
    fields = {"model": "toy", "prompt": ["Once", "upon a"], "n": 2, "logprobs": 2, "seed": 7, "max_tokens": 24}
    fields |= {"stream": True, "ignore_eos": True, "temperature": 1, "stream_options": {"include_usage": True}}
    whole = await read(f"{engine_server}/v1", fields)
    async with cutting(port_of(engine_server), *[2_000] * 200) as proxy:
        pieces = await read(proxy.url, fields)
        assert proxy.num_connections > 6
    assert [_of_content(piece) for piece in pieces] == [_of_content(chunk) for chunk in whole]


def _of_content(chunk: Document) -> dict[str, Any]:
    """Return a chunk without what differs between two requests: id and time, and what the second found cached."""
    content = {name: value for name, value in chunk.value.items() if name not in ("id", "created")}
    if content.get("usage"):
        content["usage"] = {**content["usage"], "prompt_tokens_details": None}
    return content


@in_loop
async def test_it_reconnects_until_the_server_answers(server: str) -> None:
    slept: list[float] = []
    async with cutting(port_of(server), HEAD_AND_ONE_EVENT, 0, 0, 0) as proxy:
        assert len(await read(proxy.url, STORY, slept)) == 3
    assert len(slept) == 3


@in_loop
async def test_it_gives_up_when_the_server_has_forgotten_the_stream(server: str) -> None:
    slept: list[float] = []
    async with cutting(port_of(server), HEAD_AND_ONE_EVENT, *[0] * 100) as proxy:
        with pytest.raises(ConnectionFailed, match="was lost before the response was complete"):
            await read(proxy.url, STORY, slept)
    assert 5 < sum(slept) <= 10


@in_loop
async def test_closing_a_stream_ends_the_work(server: str) -> None:
    source = source_for(f"{server}/v1")
    async with aclosing(source.chunks(HANGING)) as chunks:
        first = await anext(chunks)
    assert not is_kept(server, first.value["id"])
    await source.aclose()


@in_loop
async def test_cancelling_the_reader_ends_the_work(server: str) -> None:
    received: list[Document] = []

    async def read_on(source: HttpSource) -> None:
        async with aclosing(source.chunks(HANGING)) as chunks:
            async for chunk in chunks:
                received.append(chunk)

    async with cutting(port_of(server)) as proxy:
        source = source_for(proxy.url)
        reading = asyncio.create_task(read_on(source))
        await until(lambda: received)
        reading.cancel()
        await asyncio.wait({reading})
        await source.aclose()
        assert "DELETE" in proxy.methods
    assert not is_kept(server, received[0].value["id"])


@pytest.mark.slow
def test_ctrl_c_ends_the_work(server: str) -> None:
    command = ["completions", "create", "hang", "--model", "storyteller", "--stream", "--base-url", f"{server}/v1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "onward", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        id = next(line.split('"')[3] for line in process.stdout if '"id"' in line)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
    assert "Traceback" not in process.communicate()[1]
    wait_for(lambda: not is_kept(server, id))


@pytest.mark.parametrize(
    ("header", "window"),
    [
        ("resumable; window=120", 120.0),
        ("respond-async, resumable;window=0.5;x=1", 0.5),
        ("resumable", None),
        ("resumable; window=soon", None),
        ("", None),
    ],
)
def test_the_window_is_in_the_answer_to_the_preference(header: str, window: float | None) -> None:
    assert resume_window({"preference-applied": header}) == window
