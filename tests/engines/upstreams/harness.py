"""A backend whose engine is a stand-in of some kind, and requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from onward.api.openai.decode import check_request
from onward.api.openai.errors import openai_words
from onward.api.openai.reply import fold_whole
from onward.api.openai.response import Completion
from onward.backends.embedded import EmbeddedBackend
from onward.compose import compose
from onward.engines.upstreams.wire import Wire
from onward.model_files.toy import END
from onward.settings import Settings
from tests.engines.upstreams.standin import TOKENIZER, StandIn, spelling
from tests.waiting import PATIENCE_SECONDS

PROMPT = "Say:"
Test = Callable[[EmbeddedBackend], Coroutine[Any, Any, Any]]


def settings(*servers: StandIn, **more: Any) -> Settings:
    """The settings of one model with these addresses."""
    models = tuple(server.url.replace("http://", f"there={server.kind}+http://") for server in servers)
    return Settings(model=models, tokenizer=(("there", "toy"),), **more)


def on(server: StandIn | list[StandIn], test: Test, **more: Any) -> Any:
    """Run an async test with a backend whose engine is the stand-in, or several of them."""
    servers = server if isinstance(server, list) else [server]

    async def run() -> Any:
        backend = await asyncio.to_thread(compose, settings(*servers, **more))
        try:
            return await asyncio.wait_for(test(backend), PATIENCE_SECONDS)
        finally:
            await backend.aclose()

    return asyncio.run(run())


async def complete(backend: EmbeddedBackend, **fields: Any) -> Completion:
    fields = {"model": "there", "prompt": PROMPT, "temperature": 0, **fields}
    request = check_request(fields)
    with openai_words():
        return await fold_whole(await backend.complete(request), request)


def ask(server: StandIn, **fields: Any) -> Completion:
    found: Completion = on(server, lambda backend: complete(backend, **fields))
    return found


def give_up(monkeypatch: pytest.MonkeyPatch, is_meant: Callable[[bytes], bool], seconds: float = 0.3) -> None:
    """Wait so long for the answer to requests that `is_meant` accepts; to others as always, however slow the machine
    is."""
    send = Wire.send

    async def sent(wire: Wire, message: bytes, silence: float) -> None:
        await send(wire, message, seconds if is_meant(message) else silence)

    monkeypatch.setattr(Wire, "send", sent)


def spell(server: StandIn, text: str) -> None:
    """Have the stand-in spell a text after PROMPT, then end."""
    server.script = spelling(text, len(TOKENIZER.encode(PROMPT, add_special_tokens=False)))


def ignores_ends_within_min_tokens(server: StandIn) -> None:
    """Check what `min_tokens` bans, with `ignore_eos`: the ends that a request has, and no others."""
    spell(server, "abc")
    for stops, text, finish in (([], "abc", "length"), ([END], "abczz", "stop"), ([ord("b")], "a\0c", "length")):
        [choice] = ask(server, max_tokens=6, min_tokens=5, ignore_eos=True, stop_token_ids=stops).choices
        assert (choice.text, choice.finish_reason) == (text, finish)
