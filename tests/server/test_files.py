"""Uploads that are too large, fill the disk or a key's quota, or whose client leaves: nothing of them stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Table, func, select

from onward.api.openai import files as api
from onward.server.app import App
from onward.service.limits import Limits
from onward.service.store import DatabaseAway, Store
from onward.service.tables import CONTENTS, FILES
from onward.service.team import Team
from tests.server.fakes import Call, FakeBackend, in_loop, settings
from tests.service.databases import store_with
from tests.waiting import until

LINE = b'{"custom_id": "a"}\n'
HEAD = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
HEAD += b'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
TAIL = b"\r\n--b--\r\n"


class Served:
    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.team = Team(store, folder / "spool")
        self.app = App(FakeBackend(), settings(), team=self.team)

    def post(self, data: bytes | None, key: str = "a") -> Call:
        body = None if data is None else HEAD + data + TAIL
        kind = {"content-type": "multipart/form-data; boundary=b", "authorization": f"Bearer sk-{key}"}
        return Call(self.app, "POST", "/v1/files", body, **kind)

    async def emptied(self) -> None:
        """Wait until nothing is stored."""
        await until(lambda: not any(map(self.count, (FILES, CONTENTS))))

    def count(self, table: Table) -> int:
        with self.store.read() as connection:
            return connection.execute(select(func.count()).select_from(table)).scalar_one()


def serving(folder: Path, test: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
    with store_with(folder, a={"limits": Limits(stored_bytes=3000)}, free={}, chief={"is_admin": True}) as store:

        @in_loop
        async def run() -> None:
            served = Served(store, folder)
            with closing(served.team):
                await test(served)

        run()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.server.files.PART_BYTES", 1000)


def test_a_file_of_the_largest_size_is_taken_and_a_byte_more_is_a_413(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MAX_FILE_BYTES", 5000)

    async def test(served: Served) -> None:
        data = (LINE * 300)[:5001]
        refused = await served.post(data, "free").done()
        assert (refused.status, refused.error["param"]) == (413, "file") and "5000 bytes" in refused.error["message"]
        await served.emptied()
        taken = await served.post(data[:5000], "free").done()
        assert (taken.status, taken.json["bytes"]) == (200, 5000)

    serving(tmp_path, test)


def test_a_key_stores_what_it_may(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        refused = await served.post(LINE * 200).done()
        assert (refused.status, refused.error["code"]) == (429, "storage_limit_exceeded")
        assert refused.error["type"] == "insufficient_quota" and refused.headers["x-should-retry"] == "false"
        await served.emptied()
        assert (await served.post(LINE * 100).done()).status == 200
        assert (await served.post(LINE * 100).done()).status == 429

    serving(tmp_path, test)


def test_a_full_disk_refuses_uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(served: Served) -> None:
        call = served.post(None, "free")
        call.feed(HEAD + LINE * 100)
        await until(lambda: not call.unread)
        monkeypatch.setattr(Store, "has_room", lambda self, num_bytes: False)
        call.feed(LINE * 100 + TAIL, more=False)
        refused = await call.done()
        assert refused.status == 503 and "nearly full" in refused.error["message"]
        await served.emptied()
        assert (await served.post(LINE, "free").done()).status == 503

    serving(tmp_path, test)


def test_the_disk_is_not_waited_for_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def has_room(self: Store, num_bytes: int) -> bool:
        threads.append(threading.get_ident())
        return True

    async def test(served: Served) -> None:
        monkeypatch.setattr(Store, "has_room", has_room)
        assert (await served.post(LINE * 100, "free").done()).status == 200
        assert threads and threading.get_ident() not in threads

    serving(tmp_path, test)


def test_an_upload_that_failed_with_the_database_is_deleted_when_it_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: Store) -> AbstractContextManager[Connection]:
        raise DatabaseAway("it was unplugged.")

    async def test(served: Served) -> None:
        call = served.post(None, "free")
        call.feed(HEAD + LINE * 100)
        await until(lambda: served.count(FILES))
        with monkeypatch.context() as unplugged:
            unplugged.setattr(Store, "begin", away)
            call.feed(LINE * 100 + TAIL, more=False)
            refused = await call.done()
            assert refused.status == 503 and "does not answer" in refused.error["message"]
            assert (await served.post(LINE, "free").done()).status == 503
        await served.team.desk.transact(lambda connection: None)
        await served.emptied()

    serving(tmp_path, test)


def test_a_client_that_leaves_and_a_form_that_ends_early_leave_nothing(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        call = served.post(None, "free")
        call.feed(HEAD + LINE * 100)
        await until(lambda: not call.unread)
        call.leave()
        await call.done()
        await served.emptied()
        cut = served.post(None, "free")
        cut.feed(HEAD + LINE, more=False)
        assert (await cut.done()).status == 400
        await served.emptied()

    serving(tmp_path, test)


def test_a_key_that_is_revoked_during_an_upload_finishes_it(tmp_path: Path) -> None:
    """A request that was accepted continues, as a stream does."""

    async def test(served: Served) -> None:
        call = served.post(None, "free")
        call.feed(HEAD + LINE * 60)
        await until(lambda: not call.unread)
        served.team._keys.keys = [key for key in served.team.keys if key.name != "free"]
        served.app.replace_keys()
        call.feed(LINE * 60 + TAIL, more=False)
        assert (await call.done()).status == 200
        assert (await served.post(LINE, "free").done()).status == 401

    serving(tmp_path, test)


def test_an_admin_key_has_no_files(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        assert (await served.post(LINE, "chief").done()).status == 403

    serving(tmp_path, test)
