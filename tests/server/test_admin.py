"""Models of a running server: who may change them, what is audited, and the reloading of settings."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onward.api.admin import AdminModelList
from onward.backends.base import LiveModel, ModelChange, Permit
from onward.errors import ModelNameError, Overloaded, SetupError
from onward.server.admin import NOT_ADMIN, NOT_LIVE, ModelReload
from onward.server.app import App
from onward.service.keys import read_audit
from onward.service.prices import prices_of
from onward.service.store import DatabaseAway
from onward.service.team import Team
from onward.settings import Settings
from tests.server.fakes import Call, FakeBackend, in_loop, settings
from tests.service.databases import store_with
from tests.waiting import until

ADDED = LiveModel(id="tiny", status="ready", source="/models/tiny", is_added=True)


class FakeModels:
    """Implements LiveModels: records what it is asked to do."""

    folders = ("/models",)

    def __init__(self) -> None:
        self.is_busy = False
        self.asked: list[tuple[Any, ...]] = []
        self.problem: Exception | None = None
        self.change = ModelChange(("tiny (/models/tiny)",))

    def models(self) -> list[LiveModel]:
        return [ADDED, replace(ADDED, status="ending", num_running=2)]

    async def _do(self, permit: Permit, *asked: Any) -> None:
        self.asked.append(asked)
        if self.problem is not None:
            raise self.problem
        await permit(self.change)

    async def add(self, name: str, model_id: str | None, permit: Permit) -> LiveModel:
        await self._do(permit, name, model_id)
        return ADDED

    async def remove(self, model_id: str, permit: Permit) -> None:
        await self._do(permit, model_id)

    async def load_adapter(self, name: str, path: str, base: str | None, permit: Permit, *, in_place: bool) -> None:
        await self._do(permit, name, path, base, in_place)

    async def unload_adapter(self, name: str, permit: Permit) -> None:
        await self._do(permit, name)

    async def apply(self, settings: Settings, permit: Permit) -> ModelChange:
        await self._do(permit, settings.model)
        return self.change


class Served:
    """An application whose models can be changed, with keys of a database."""

    def __init__(self, folder: Path, store: Any, models: FakeModels | None, **given: Any) -> None:
        self.store = store
        self.settings = settings(api_key=("sk-file",), **given)
        self.team = Team(store, folder, prices_of(self.settings.price))
        self.backend = FakeBackend()
        self.backend.aliases = {each: "storyteller" for each, *_ in self.settings.price}
        self.app = App(self.backend, self.settings, team=self.team, live=models)

    async def call(self, method: str, path: str = "", body: object = None, *, key: str = "sk-chief") -> Call:
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        url = path if path.startswith("/v1/") else f"/v1/admin/models{path}"
        return await Call(self.app, method, url, content, authorization=f"Bearer {key}").done()

    @property
    def audit(self) -> list[tuple[str, str, str, str]]:
        with self.store.read() as connection:
            found = read_audit(connection)
        return [(each.actor, each.action, each.name, each.detail) for each in found if each.action == "models"]


def serving(folder: Path, test: Callable[[Served, FakeModels], Any], *, is_live: bool = True, **given: Any) -> None:
    models = FakeModels()
    with store_with(folder, chief={"is_admin": True}, alice={}) as store:

        @in_loop
        async def run() -> None:
            served = Served(folder, store, models if is_live else None, **given)
            with closing(served.team):
                await test(served, models)

        run()


REQUESTS = [("GET", "", None), ("POST", "", {"model": "tiny"}), ("DELETE", "/tiny", None)]


def test_only_an_admin_key_sees_and_changes_models(tmp_path: Path) -> None:
    async def test(served: Served, models: FakeModels) -> None:
        for method, path, body in REQUESTS:
            for key in ("sk-alice", "sk-file"):
                call = await served.call(method, path, body, key=key)
                assert (call.status, call.error["message"]) == (403, NOT_ADMIN)
            assert (await served.call(method, path, body, key="sk-wrong")).status == 401
        assert models.asked == [] and served.audit == []

    serving(tmp_path, test)


@in_loop
async def test_without_an_admin_key_nobody_does_even_on_a_loopback_address() -> None:
    app = App(FakeBackend(), settings(), live=FakeModels())
    for method, path, body in REQUESTS:
        call = Call(app, method, f"/v1/admin/models{path}", json.dumps(body).encode())
        call.scope["client"] = ("127.0.0.1", 1)
        await call.done()
        assert (call.status, call.error["message"]) == (403, NOT_ADMIN)


def test_a_database_without_keys_opens_nothing(tmp_path: Path) -> None:
    with store_with(tmp_path) as store:

        @in_loop
        async def run() -> None:
            with closing(Team(store, tmp_path)) as team:
                app = App(FakeBackend(), settings(), team=team, live=FakeModels())
                assert (await Call(app, "GET", "/v1/admin/models").done()).status == 403

        run()


def test_models_are_listed_added_and_removed_and_that_is_audited_without_a_key_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")

    async def test(served: Served, models: FakeModels) -> None:
        listed = (await served.call("GET")).json
        assert listed["folders"] == ["/models"] and listed["object"] == "list"
        assert [(each["id"], each["status"], each["running"]) for each in listed["data"]] == [
            ("tiny", "ready", 0),
            ("tiny", "ending", 2),
        ]
        assert listed["data"][0].keys() == {
            "id", "object", "status", "detail", "source", "added", "running", "waiting"
        }  # fmt: skip
        assert AdminModelList.__struct_fields__ == ("object", "folders", "data")
        added = await served.call("POST", "", {"model": "tiny", "id": "Qwen/tiny"})
        assert (added.status, added.json["source"], added.json["added"]) == (200, "/models/tiny", True)
        removed = await served.call("DELETE", "/Qwen/tiny")
        assert removed.json == {"id": "Qwen/tiny", "object": "admin.model.deleted", "deleted": True}
        assert models.asked == [("tiny", "Qwen/tiny"), ("Qwen/tiny",)]
        assert served.audit == [("the key chief", "models", "chief", "added tiny (/models/tiny)")] * 2

    serving(tmp_path, test)
    assert "/v1/admin/models" in caplog.text and "sk-" not in caplog.text


WRONG: list[tuple[object, str]] = [
    ({}, "Missing required parameter: 'model'."),
    ({"model": 3}, "Invalid type for 'model'"),
    ({"model": " "}, "Invalid 'model': empty string"),
    ({"model": "x" * 257}, "Invalid 'model': string too long"),
    ({"model": "a", "id": ["b"]}, "Invalid type for 'id'"),
    ({"model": "a", "id": "b\n"}, "Invalid 'id': it must consist of printable characters"),
    ({"model": "a", "path": "/b"}, "Unrecognized request argument supplied: path"),
    ([], "Invalid type for the request body"),
    (b"{", "could not parse the JSON body"),
]


def test_bad_requests_are_named(tmp_path: Path) -> None:
    async def test(served: Served, models: FakeModels) -> None:
        for body, words in WRONG:
            call = await served.call("POST", "", body)
            assert call.status == 400 and words in call.error["message"], call.error
        assert (await served.call("POST", "", b"{" + b" " * 10_000)).status == 413
        assert (await served.call("PUT", "", {})).status == 405
        assert models.asked == []

    serving(tmp_path, test)


def test_what_cannot_be_done_is_reported_in_one_message_and_not_audited(tmp_path: Path) -> None:
    async def test(served: Served, models: FakeModels) -> None:
        models.problem = SetupError("There is no such folder.")
        for method, path, body in REQUESTS[1:]:
            call = await served.call(method, path, body)
            assert (call.status, call.error["message"]) == (400, "There is no such folder.")
        models.problem = ModelNameError("No model is called that.")
        call = await served.call("DELETE", "/tiny")
        assert (call.status, call.error["code"]) == (404, "model_not_found")
        models.is_busy = True
        for method, path, body in REQUESTS[1:]:
            call = await served.call(method, path, body)
            assert (call.status, call.error["code"]) == (409, "models_busy")
        models.is_busy = False
        served.backend.drain()
        assert (await served.call("DELETE", "/tiny")).status == 503
        assert (await served.call("GET")).status == 200
        assert served.audit == []

    serving(tmp_path, test)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("", {"model": "tiny"}),
        ("/v1/load_lora_adapter", {"lora_name": "poet", "lora_path": "poet"}),
        ("/v1/unload_lora_adapter", {"lora_name": "poet"}),
    ],
)
def test_nothing_is_changed_while_it_cannot_be_audited(
    path: str, body: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served, models: FakeModels) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(type(served.store), "begin", lambda store: (_ for _ in ()).throw(DatabaseAway("it is away")))
            call = await served.call("POST", path, body)
            assert (call.status, call.headers["retry-after"]) == (503, "5")
        assert served.audit == []

    serving(tmp_path, test)


def test_models_of_a_cluster_are_listed_and_not_changed(tmp_path: Path) -> None:
    async def test(served: Served, models: FakeModels) -> None:
        listed = (await served.call("GET")).json
        assert [(each["id"], each["status"], each["running"]) for each in listed["data"]] == [
            ("fake-model:1", "ready", 3)
        ]
        for method, path, body in REQUESTS[1:]:
            call = await served.call(method, path, body)
            assert (call.status, call.error["message"]) == (400, NOT_LIVE)

    serving(tmp_path, test, is_live=False)


def test_the_metrics_count_models_that_are_ending(tmp_path: Path) -> None:
    async def test(served: Served, models: FakeModels) -> None:
        call = await Call(served.app, "GET", "/metrics", authorization="Bearer sk-chief").done()
        assert b"\nonward_models_ending 1.0\n" in call.body

    serving(tmp_path, test)


def reloading(
    folder: Path, test: Callable[[ModelReload, FakeModels, list[Settings], Team], Any], *, started: Settings
) -> None:
    """Run a test with a reload that applies the last of a list of settings."""
    with store_with(folder) as store:

        @in_loop
        async def run() -> None:
            given, models, team = [started], FakeModels(), Team(store, folder)
            reload = ModelReload(started, lambda: given[-1], FakeBackend(), models, team)
            running = asyncio.create_task(reload.run())
            try:
                await test(reload, models, given, team)
            finally:
                running.cancel()
                team.close()

        run()


def test_settings_are_applied_when_they_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onward.server")

    async def test(reload: ModelReload, models: FakeModels, given: list[Settings], team: Team) -> None:
        given.append(Settings(model=("a", "b"), price=(("org/tiny", 2, 3, 1),), threads=2, api_key=("sk-secret",)))
        reload.request()
        await until(lambda: "next start" in caplog.text)
        assert models.asked == [(("a", "b"),)]
        assert team.prices["org/tiny"].prompt == 2
        assert "the settings were read again: added tiny" in caplog.text
        assert "changed settings that take effect at the next start: api_key, threads" in caplog.text
        assert "sk-secret" not in caplog.text
        given.append(Settings(price=(("nobody", 2, 3, 1),)))
        reload.request()
        await until(lambda: "the prices stay as they were: --price names nobody" in caplog.text)
        assert list(team.prices) == ["org/tiny"]
        given.append(Settings())
        reload.request()
        await until(lambda: not team.prices)
        assert len(models.asked) == 3

    reloading(tmp_path, test, started=Settings(model=("a",)))


@in_loop
async def test_without_a_database_prices_are_not_applied_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    started, given = Settings(), Settings(price=(("storyteller", 2, 3, 1),))
    reload = ModelReload(started, lambda: given, FakeBackend(), FakeModels(), None)
    running = asyncio.create_task(reload.run())
    reload.request()
    await until(lambda: "take effect at the next start: price" in caplog.text)
    running.cancel()


def test_prices_follow_the_names_of_models(tmp_path: Path) -> None:
    """An alias may move to another model, by settings with the same prices or by a change with an admin key."""
    prices = (("best", 2, 3, 1),)

    async def test(served: Served, models: FakeModels) -> None:
        for change in (("POST", "", {"model": "tiny"}), ("DELETE", "/tiny", None)):
            for target in ("storyteller", "org/tiny"):
                served.backend.aliases["best"] = target
                assert (await served.call(*change)).status == 200
                assert list(served.team.prices) == [target]
        reload = ModelReload(served.settings, lambda: served.settings, served.backend, models, served.team)
        running = asyncio.create_task(reload.run())
        served.backend.aliases["best"] = "storyteller"
        reload.request()
        await until(lambda: list(served.team.prices) == ["storyteller"])
        running.cancel()

    serving(tmp_path, test, price=prices)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (SetupError("The file is broken."), "the models stay as they were: The file is broken."),
        (Overloaded("No database."), "the models stay as they were: No database."),
        (ValueError("unforeseen"), "ValueError: unforeseen"),
    ],
)
def test_settings_that_cannot_be_applied_leave_a_line_in_the_log(
    problem: Exception, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(reload: ModelReload, models: FakeModels, given: list[Settings], team: Team) -> None:
        models.problem = problem
        reload.request()
        await until(lambda: words in caplog.text)
        models.problem = None
        reload.request()
        await until(lambda: len(models.asked) == 2)

    reloading(tmp_path, test, started=Settings())
