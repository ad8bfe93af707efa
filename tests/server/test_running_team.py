"""A server whose keys come from a database: limits and refusals in every dialect, and what a key may see."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from onward.api.dialects import DIALECTS
from onward.errors import ServerError, SetupError
from onward.server.app import App
from onward.server.keys import KeyReload, Keys, collect_keys
from onward.server.process import bind
from onward.server.run import Service
from onward.service.grant import new_secret
from onward.service.keys import create_key, forget_key, read_keys, rotate_key
from onward.service.limits import Limits
from onward.service.reservations import read_usages
from onward.service.store import DatabaseAway, Store, unix_ms
from onward.service.tables import RESERVATIONS
from onward.service.team import Team
from tests.server.fakes import Call, FakeBackend, completion, delta, in_loop, settings
from tests.server.streams.resumable import id_of
from tests.service.databases import store_with
from tests.waiting import until

Test = Callable[["Served"], Coroutine[Any, Any, None]]


class Served:
    """An application over a scripted backend, with keys of a database."""

    def __init__(self, store: Store, folder: Path, backend: FakeBackend, **given: Any) -> None:
        self.store = store
        self.backend = backend
        self.team = Team(store, folder)
        self.app: App = App(backend, settings(**given), team=self.team)

    def complete(self, key: str, **fields: Any) -> Call:
        return completion(self.app, headers={"authorization": f"Bearer sk-{key}"}, **fields)

    def get(self, path: str, key: str) -> Call:
        return Call(self.app, "GET", path, authorization=f"Bearer sk-{key}")

    async def settled(self) -> None:
        await until(lambda: not self.team._spool.num_waiting)

    def used(self, name: str) -> tuple[int, int]:
        """Return a key's tokens today and its running requests, as the database has them."""
        (grant,) = (key.grant for key in self.team.keys if key.name == name)
        with self.store.read() as connection:
            usage = read_usages(connection)[grant.id]
            assert connection.execute(select(func.count()).select_from(RESERVATIONS)).scalar_one() == usage.num_running
        return usage.day_tokens, usage.num_running


def serving(folder: Path, test: Test, *script: Any, keys: dict[str, dict[str, Any]], **given: Any) -> None:
    with store_with(folder, **keys) as store:

        @in_loop
        async def run() -> None:
            served = Served(store, folder, FakeBackend(*script), **given)
            with closing(served.team):
                await test(served)

        run()


def test_limits_are_in_the_headers_and_billed_tokens_are_settled(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        call = await served.complete("a", max_tokens=20).done()
        assert call.status == 200
        limits = {name: value for name, value in call.headers.items() if name.startswith("x-ratelimit")}
        assert limits == {
            "x-ratelimit-limit-requests": "500",
            "x-ratelimit-remaining-requests": "499",
            "x-ratelimit-reset-requests": "120ms",
            "x-ratelimit-limit-tokens": "1000",
            "x-ratelimit-remaining-tokens": "973",
            "x-ratelimit-reset-tokens": "1.62s",
        }
        await served.settled()
        usage = call.json["usage"]
        assert served.used("a") == (usage["total_tokens"], 0)
        for path in ("/v1/models", "/metrics"):
            assert not any(name.startswith("x-ratelimit") for name in (await served.get(path, "a").done()).headers)
        plain = await served.complete("free").done()
        assert plain.status == 200 and not any(name.startswith("x-ratelimit") for name in plain.headers)
        invalid = await served.complete("a", max_tokens=-1).done()
        assert invalid.status == 400 and invalid.headers["x-ratelimit-limit-requests"] == "500"
        wrong = await served.complete("wrong").done()
        assert wrong.status == 401 and not any(name.startswith("x-ratelimit") for name in wrong.headers)

    limits = Limits(requests_per_minute=500, tokens_per_minute=1000)
    serving(tmp_path, test, keys={"a": {"limits": limits}, "free": {}})


def test_a_client_that_leaves_and_an_answer_that_fails_leave_nothing_reserved(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        call = served.complete("a", stream=True, max_tokens=50)
        await call.until(2)
        assert served.used("a") == (57, 1)
        refused = await served.complete("a", stream=True).done()
        assert (refused.status, refused.error["type"]) == (429, "requests")
        assert "parallel requests: Limit 1, Used 1" in refused.error["message"]
        call.leave()
        await call.done()
        await served.settled()
        assert served.used("a") == (8, 0)
        served.backend.script_of = lambda _: [ServerError()]
        assert (await served.complete("a").done()).status == 500
        await served.settled()
        assert served.used("a") == (8, 0), "a request that got an error is not billed"
        served.backend.error_to_raise = ServerError()
        assert (await served.complete("a").done()).status == 500
        assert served.used("a") == (8, 0)

    script = [delta("a"), asyncio.Event()]
    serving(tmp_path, test, *script, keys={"a": {"limits": Limits(parallel_requests=1)}})


def test_a_refusal_comes_before_the_first_byte_of_a_stream(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        call = await served.complete("a", stream=True, max_tokens=4).done()
        assert call.status == 429 and call.headers["x-should-retry"] == "false"
        assert "Request too large" in call.error["message"] and call.error["type"] == "tokens"
        assert call.headers["x-ratelimit-remaining-tokens"] == "10"
        assert served.backend.answers == []

    serving(tmp_path, test, keys={"a": {"limits": Limits(tokens_per_minute=10)}})


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_every_dialect_refuses_with_429_and_its_headers(tmp_path: Path, dialect: str) -> None:
    path, body = import_module(f"tests.api.test_{dialect.replace('-', '_')}").REQUEST

    async def test(served: Served) -> None:
        call = Call(served.app, "POST", path, json.dumps(body).encode(), authorization="Bearer sk-a")
        assert (await call.done()).status == 429, call.body
        assert call.headers["x-ratelimit-limit-requests"] == "1"
        assert int(call.headers["retry-after"]) >= 59
        assert b"requests per min (RPM)" in call.body

    async def after_one(served: Served) -> None:
        assert (await served.complete("a").done()).status == 200
        await test(served)

    serving(tmp_path, after_one, keys={"a": {"limits": Limits(requests_per_minute=1)}})


def test_a_key_sees_and_uses_its_models_only(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        listed = await served.get("/v1/models", "a").done()
        assert [model["id"] for model in listed.json["data"]] == ["org/tiny"]
        assert (await served.get("/v1/models/storyteller", "a").done()).status == 404
        refused = await served.complete("a", model="storyteller", stream=True).done()
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")
        assert refused.error["message"] == ("The model `storyteller` does not exist or you do not have access to it.")
        assert (await served.complete("a", model="org/tiny").done()).status == 200
        call = Call(
            served.app, "POST", "/tokenize", b'{"model": "storyteller", "prompt": "a"}', authorization="Bearer sk-a"
        )
        assert (await call.done()).status == 404
        ollama = Call(served.app, "POST", "/api/generate", b'{"model": "storyteller"}', authorization="Bearer sk-a")
        assert (await ollama.done()).status == 404
        assert (await served.complete("b", model="storyteller").done()).status == 200

    serving(tmp_path, test, keys={"a": {"models": frozenset({"org/tiny"})}, "b": {}})


def test_metrics_show_a_key_itself_and_an_admin_everyone(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        for key in ("alice", "bob"):
            assert (await served.complete(key).done()).status == 200
        seen = {key: (await served.get("/metrics", key).done()).body.decode() for key in ("alice", "chief")}
        assert 'key="alice"' in seen["alice"] and 'key="bob"' not in seen["alice"]
        assert "fake-model:1" not in seen["alice"] and "onward_build_info" in seen["alice"]
        assert 'key="alice"' in seen["chief"] and 'key="bob"' in seen["chief"] and "fake-model:1" in seen["chief"]

    keys: dict[str, dict[str, Any]] = {
        "alice": {"models": frozenset({"storyteller"})},
        "bob": {},
        "chief": {"is_admin": True},
    }
    serving(tmp_path, test, keys=keys)


def test_metrics_say_whether_the_database_answers_and_what_waits_for_it(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        def sampled() -> list[float | None]:
            names = ("onward_database_up", "onward_ledger_rows_waiting")
            return [served.app._metrics.registry.get_sample_value(name) for name in names]

        assert sampled() == [1, 0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(served.store), "begin", lambda store: (_ for _ in ()).throw(DatabaseAway("it is away")))
            assert (await served.complete("alice").done()).status == 200
            await until(lambda: not served.team.database[0])
            assert sampled() == [0, 1]

    serving(tmp_path, test, keys={"alice": {}})


def test_requests_have_the_weight_of_their_key(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        for key in ("large", "usual"):
            assert (await served.complete(key).done()).status == 200
        assert [request.weight for request in served.backend.requests] == [4, 1]

    serving(tmp_path, test, keys={"large": {"priority": 4}, "usual": {}})


def test_an_admin_key_completes_nothing(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        call = await served.complete("chief").done()
        assert call.status == 403 and "admin key" in call.error["message"]
        assert served.backend.requests == []

    serving(tmp_path, test, keys={"chief": {"is_admin": True}})


def test_a_key_that_was_just_made_is_accepted_at_once(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        secret = new_secret()
        assert (await served.complete(secret.removeprefix("sk-")).done()).status == 401
        with served.store.begin() as connection:
            create_key(connection, secret, "new", Limits(), served.store.clock())
        served.team._refreshed = -1.0
        assert (await served.complete(secret.removeprefix("sk-")).done()).status == 200

    serving(tmp_path, test, keys={"a": {}})


def test_keys_of_a_file_work_together_with_those_of_a_database(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        for key, status in (("file", 200), ("a", 200), ("none", 401)):
            assert (await served.complete(key).done()).status == status

    serving(tmp_path, test, keys={"a": {}}, api_key=("sk-file",))


def test_a_name_belongs_to_one_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("a = sk-of-the-file\n", encoding="utf-8")
    file.chmod(0o600)

    async def test(served: Served) -> None:
        assert "the key a of the database is not accepted" in caplog.text
        assert (await served.complete("a").done()).status == 401
        assert (await served.complete("of-the-file").done()).status == 200

    serving(tmp_path, test, keys={"a": {}}, api_key_file=file)
    with store_with(tmp_path / "other", a={}) as store, store.read() as connection:
        stored = read_keys(connection)
    with pytest.raises(SetupError, match="a key of the same name, a:"):
        collect_keys(settings(api_key_file=file)).check_names(stored)


def test_a_server_that_drains_says_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise other servers would consider it dead, and release what its requests have reserved."""
    monkeypatch.setattr("onward.service.team.POLL_SECONDS", 0.01)
    asked: list[str] = []

    class Watched(Team):
        async def _poll(self) -> None:
            asked.append(backend.state)
            await super()._poll()

    backend = FakeBackend(delta("a"), asyncio.Event())

    @in_loop
    async def run() -> None:
        with store_with(tmp_path, a={}) as store:
            team = Watched(store, tmp_path)
            given = settings(drain=30)
            app = App(backend, given, team=team)
            listener = bind("127.0.0.1", 0)
            reload = KeyReload(given, Keys([]), None, app.replace_keys)
            service = Service(app, backend, given, listener, reload, team=team)
            running = asyncio.create_task(service.run())
            call = completion(app, headers={"authorization": "Bearer sk-a"}, stream=True)
            await call.until(2)
            service.signal(signal.SIGTERM)
            await until(lambda: "draining" in asked)
            call.leave()
            await call.done()
            assert await running == 0
            team.close()

    run()


def test_a_stream_ends_as_usual_though_its_key_expires_meanwhile(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def test(served: Served) -> None:
        call = served.complete("a", stream=True)
        await call.until(2)
        served.app._keys._clock = lambda: time.time() + 7_200
        served.app.replace_keys()
        assert (await served.complete("a").done()).status == 401
        go.set()
        await call.done()
        assert call.status == 200 and call.body.endswith(b"data: [DONE]\n\n")
        await served.settled()
        tokens, num_running = served.used("a")
        assert tokens > 2 and num_running == 0

    script = delta("a"), go, delta("b"), delta("c", finish="length")
    limited = {"limits": Limits(tokens_per_day=1000, parallel_requests=5), "expires_ms": unix_ms() + 3_600_000}
    serving(tmp_path, test, *script, keys={"a": limited})


def test_a_stream_belongs_to_a_key_of_the_database_whatever_its_secret_and_not_to_its_name(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        call = await served.complete("a", stream=True, stream_options={"resumable": True}).done()
        path = f"/v1/completions/{id_of(call)}"

        async def status(secret: str, method: str = "GET") -> int:
            served.team._refreshed = -1.0
            return (await Call(served.app, method, path, b"", authorization=f"Bearer {secret}").done()).status

        rotated, reused = (new_secret() for _ in range(2))
        with served.store.begin() as connection:
            rotate_key(connection, "a", rotated, 60_000, served.store.clock())
        assert [await status(rotated), await status("sk-a")] == [200, 200]
        with served.store.begin() as connection:
            forget_key(connection, "a", served.store.clock())
            create_key(connection, reused, "a", Limits(), served.store.clock())
        assert [await status(reused), await status(reused, "DELETE")] == [404, 404]

    serving(tmp_path, test, keys={"a": {}})
