"""Work of one kind that blocks its threads does not block other kinds: keys, texts, constraints, files and the ledger
have threads of their own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onward.api.openai.batch_lines import BatchFileCheck
from onward.constraints.process.client import GrammarProcess
from onward.server.app import App
from onward.service import batch_store
from onward.service import team as team_module
from onward.service.keys import revoke_key
from onward.service.team import Team
from tests.examples import slow_but
from tests.server.fakes import Call, in_loop, settings
from tests.server.test_files import HEAD, TAIL
from tests.service.databases import store_with
from tests.toy_backend import make_backend, running
from tests.waiting import PATIENCE_SECONDS, until

NAMES = [f"k{number}" for number in range(8)]
LINE = json.dumps(
    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "toy", "prompt": "x"}}
).encode()


class Held:
    """Work that lasts until the test ends. `count`: how much of it has begun."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.released = threading.Event()
        self.count = 0

    def hold(self, target: Any, name: str) -> None:
        """Make a function wait until `released` before it runs."""
        original: Callable[..., Any] = getattr(target, name)

        def held(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            assert self.released.wait(PATIENCE_SECONDS)
            return original(*arguments, **named)

        self._patch.setattr(target, name, held)


class Clients:
    def __init__(self, app: App) -> None:
        self._app = app

    def get(self, path: str, key: str) -> Call:
        return Call(self._app, "GET", path, authorization=f"Bearer sk-{key}")

    def post(self, path: str, key: str, **fields: Any) -> Call:
        return Call(self._app, "POST", path, json.dumps(fields).encode(), authorization=f"Bearer sk-{key}")

    async def upload(self, key: str) -> str:
        kind = {"content-type": "multipart/form-data; boundary=b", "authorization": f"Bearer sk-{key}"}
        call = await Call(self._app, "POST", "/v1/files", HEAD + LINE + TAIL, **kind).done()
        found: str = call.json["id"]
        return found


async def hold_checks(clients: Clients, held: Held) -> list[Call]:
    held.hold(GrammarProcess, "call")
    return [
        clients.post("/v1/completions", name, model="toy", prompt="x", max_tokens=2, regex=f"{name}{number}")
        for name in NAMES
        for number in range(8)
    ]


async def hold_reads(clients: Clients, held: Held) -> list[Call]:
    files = {name: await clients.upload(name) for name in NAMES}
    held.hold(batch_store, "read_parts")
    return [clients.get(f"/v1/files/{file}/content", name) for name, file in files.items() for _ in range(8)]


async def hold_validation(clients: Clients, held: Held) -> list[Call]:
    held.hold(BatchFileCheck, "feed")
    for name in NAMES:
        given = {"input_file_id": await clients.upload(name), "endpoint": "/v1/completions"}
        assert (await clients.post("/v1/batches", name, **given, completion_window="24h").done()).status == 200
    return []


async def hold_sums(clients: Clients, held: Held) -> list[Call]:
    held.hold(team_module, "sums")
    return [clients.get("/v1/organization/usage/completions?start_time=1", "chief") for _ in range(64)]


KINDS = [hold_checks, hold_reads, hold_validation, hold_sums]


@pytest.mark.parametrize("hold", slow_but([hold_sums], KINDS))
def test_no_kind_of_work_waits_for_threads_that_another_kind_holds(
    hold: Callable[[Clients, Held], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long text is tokenized, a long prompt completed; and a key that was revoked is refused."""
    long = "word " * 5_000

    @in_loop
    async def run() -> None:
        keys: dict[str, dict[str, Any]] = {name: {} for name in (*NAMES, "other", "gone")}
        async with running(make_backend()) as backend:
            with store_with(tmp_path, chief={"is_admin": True}, **keys) as store:
                team = Team(store, tmp_path)
                app = App(backend, settings(), team=team)
                assert app.batches is not None
                tasks = [asyncio.create_task(team.run(app.replace_keys)), asyncio.create_task(app.batches.run())]
                held, clients = Held(monkeypatch), Clients(app)
                try:
                    waiting = await hold(clients, held)
                    await until(lambda: held.count)
                    tokens = await clients.post("/tokenize", "other", model="toy", prompt=long).done()
                    assert tokens.status == 200 and tokens.json["count"] == len(long)
                    given = {"model": "toy", "prompt": long, "truncate_prompt_tokens": 100, "max_tokens": 2}
                    assert (await clients.post("/v1/completions", "other", **given).done()).status == 200
                    assert (await clients.get("/v1/models", "gone").done()).status == 200
                    with store.begin() as connection:
                        revoke_key(connection, "gone", store.clock())
                    while (await clients.get("/v1/models", "gone").done()).status != 401:
                        await asyncio.sleep(0.01)
                    assert not any(call.ended for call in waiting), "the work is held to the end"
                finally:
                    held.released.set()
                    await asyncio.gather(*(call.task for call in waiting), return_exceptions=True)
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                    team.close()

    run()
