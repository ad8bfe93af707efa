"""Requests to an application over the toy model, in the API of another server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from onward.server.app import App
from onward.server.keys import Keys
from tests.server.fakes import Call, settings
from tests.toy_backend import make_backend


@asynccontextmanager
async def toy_app(keys: Keys | None = None, **given: Any) -> AsyncIterator[App]:
    """Yield an application over a toy model of its own."""
    backend = make_backend()
    try:
        yield App(backend, settings(**given), keys)
    finally:
        await backend.aclose()


async def post(app: App, path: str, **fields: Any) -> Call:
    """Send a request and wait for the whole answer."""
    return await Call(app, "POST", path, json.dumps(fields).encode()).done()


async def openai_text(app: App, **fields: Any) -> str:
    """Return the text of the same completion by /v1/completions."""
    answer = (await post(app, "/v1/completions", model="toy", **fields)).json
    return str(answer["choices"][0]["text"])


def events(call: Call) -> list[dict[str, Any]]:
    """Return the objects of a stream of server-sent events."""
    lines = call.body.decode().split("\n\n")
    return [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]
