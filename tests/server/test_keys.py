"""The keys of the settings and of the key file, and how the file is read again."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import httpx2
import pytest

from onward.errors import SetupError
from onward.offload import on_thread
from onward.server import keys as keys_module
from onward.server.app import App
from onward.server.keys import KeyReload, Keys, collect_keys, file_version
from tests.server.conftest import Process
from tests.server.fakes import Call, FakeBackend, completion, in_loop, settings
from tests.waiting import PATIENCE_SECONDS, until, wait_for


def key_file(folder: Path, text: str | bytes) -> Path:
    """Write a file of keys. One that is replaced is so at once: a server may read it at any time."""
    path = folder / "keys"
    new = path.with_name("new")
    new.write_bytes(text if isinstance(text, bytes) else text.encode())
    new.chmod(0o600)
    return new.replace(path)


def read(folder: Path, text: str | bytes) -> Keys:
    return collect_keys(settings(api_key_file=key_file(folder, text)))


def name_of(keys: Keys, text: str) -> str | None:
    found = keys.find(text)
    return None if found is None else found.name


def sha256(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def test_a_key_file_contains_one_key_per_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = key_file(tmp_path, "# team\nsk-a\n\n  sk-b  \n")
    keys = collect_keys(settings(api_key=("sk-c",), api_key_file=path))
    assert len(keys) == 3
    assert [name_of(keys, text) for text in ("sk-a", "sk-b", "sk-c", "sk-d", "")] == ["", "", "", None, None]
    assert caplog.text == ""


def test_keys_have_names_and_may_be_digests(tmp_path: Path) -> None:
    lines = ["alice = sk-a", "bob.smith@example.org= sk-b==", f"carol ={sha256('sk-c')}", sha256("sk-d"), "sk-e=="]
    keys = read(tmp_path, "\n".join(lines))
    found = [name_of(keys, text) for text in ("sk-a", "sk-b==", "sk-c", "sk-d", "sk-e==")]
    assert found == ["alice", "bob.smith@example.org", "carol", "", ""]
    assert keys.names == {"alice", "bob.smith@example.org", "carol"}
    assert keys.find(sha256("sk-c")) is None, "a digest must not be accepted as a key"


def test_a_key_shows_neither_itself_nor_its_digest(tmp_path: Path) -> None:
    keys = read(tmp_path, "alice = sk-secret")
    assert repr(keys.find("sk-secret")) == "Key(name='alice')"


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    keys = read(tmp_path, b"\xef\xbb\xbfsk-a\nsk-b\n")
    assert name_of(keys, "sk-a") == name_of(keys, "sk-b") == ""


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such permissions")
def test_a_key_file_that_others_can_read_logs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = key_file(tmp_path, "sk-a\n")
    path.chmod(0o644)
    collect_keys(settings(api_key_file=path))
    assert "chmod 600" in caplog.text
    assert "sk-a" not in caplog.text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("# none\n", "contains no keys"),
        ("sk-a\ntwo secret-words\n", "Line 2 .* visible ASCII"),
        (b"\xff\n", "not valid UTF-8"),
        ("alice=secret-key", "Line 1 .* spaces around the ="),
        ("alice smith = secret-key", "no spaces"),
        ("= secret-key", "a name must have letters"),
        ("alice =", "visible ASCII"),
        ("alice = sha256:secret-key", "64 hexadecimal digits"),
        ("a = secret-key\nb = secret-key", "contains a key twice"),
        ("a = secret-1\na = secret-2", "the name a twice"),
        ("#" * 4_000_001, "larger than 4 MB"),
    ],
)
def test_a_key_file_with_anything_else_is_refused(tmp_path: Path, content: str | bytes, words: str) -> None:
    with pytest.raises(SetupError, match=words) as raised:
        read(tmp_path, content)
    assert "secret" not in str(raised.value)


def test_a_key_file_that_is_missing_or_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(SetupError, match=r"cannot be read|regular file"):
            collect_keys(settings(api_key_file=path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such pipes here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys", 0o600)
    with pytest.raises(SetupError, match="regular file"):
        collect_keys(settings(api_key_file=tmp_path / "keys"))


@in_loop
async def test_the_log_and_the_metrics_have_the_name_of_a_key_but_no_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "onward")
    given = settings(api_key=("sk-plain-secret",), api_key_file=key_file(tmp_path, "alice = sk-named-secret"))
    app = App(FakeBackend(), given)
    await completion(app, headers={"authorization": "Bearer sk-named-secret"}).done()
    await completion(app, headers={"authorization": "Bearer sk-plain-secret"}).done()
    await completion(app, headers={"authorization": "Bearer sk-wrong-secret"}).done()
    metrics = (await Call(app, "GET", "/metrics", b"", **{"api-key": "sk-named-secret"}).done()).body.decode()
    assert 'onward_key_requests_total{key="alice"} 1.0' in metrics
    assert 'onward_key_tokens_total{key="alice",kind="prompt"} 7.0' in metrics
    assert metrics.count("onward_key_requests_total{") == 1
    assert [" key=alice " in line for line in caplog.messages].count(True) == 2
    assert "secret" not in caplog.text + metrics
    app.replace_keys(Keys([]))
    assert "alice" not in app._metrics.render().decode(), "names that the file no longer has are dropped"


class Reloading:
    """A key file that is watched, and what was passed on."""

    def __init__(self, path: Path) -> None:
        given = settings(api_key_file=path)
        self.seen: list[Keys] = []
        self.read = asyncio.Event()
        self.reload = KeyReload(given, collect_keys(given), file_version(path), self._replace)
        self.task = asyncio.create_task(self.reload.run())

    def _replace(self, keys: Keys) -> None:
        self.seen.append(keys)
        self.read.set()

    async def next(self) -> Keys:
        await self.read.wait()
        self.read.clear()
        return self.seen[-1]


@in_loop
async def test_a_changed_file_is_read_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(keys_module, "POLL_SECONDS", 0.01)
    watched = Reloading(key_file(tmp_path, "sk-a"))
    key_file(tmp_path, "two broken words")
    await until(lambda: "the keys stay as they were" in caplog.text)
    await asyncio.sleep(0.05)
    assert caplog.text.count("the keys stay as they were") == 1, "one line for each change, not for each look"
    key_file(tmp_path, "sk-b\nsk-c\nsk-d")
    keys = await watched.next()
    assert (name_of(keys, "sk-a"), name_of(keys, "sk-c")) == (None, "")
    assert "the keys were read again: 3 accepted" in caplog.text
    watched.task.cancel()


@in_loop
async def test_a_request_reads_a_file_that_looks_unchanged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watched = Reloading(key_file(tmp_path, "sk-a"))
    watched.reload.request()
    await watched.next()
    assert "the keys were read again: 1 accepted" in caplog.text
    watched.task.cancel()


@in_loop
async def test_a_removed_key_stops_working_at_once(tmp_path: Path) -> None:
    app = App(FakeBackend(), settings(api_key=("sk-old",)))
    assert (await completion(app, headers={"api-key": "sk-old"}).done()).status == 200
    app.replace_keys(collect_keys(settings(api_key=("sk-new",))))
    assert (await completion(app, headers={"api-key": "sk-old"}).done()).status == 401
    assert (await completion(app, headers={"api-key": "sk-new"}).done()).status == 200


def test_a_removed_key_is_refused_while_other_work_holds_every_thread(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("a = sk-first\nb = sk-second\n", encoding="utf-8")
    path.chmod(0o600)
    release = threading.Event()
    accepted: list[Keys] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        held = [loop.run_in_executor(None, release.wait, PATIENCE_SECONDS) for _ in range(64)]
        held += [asyncio.ensure_future(on_thread(partial(release.wait, PATIENCE_SECONDS))) for _ in range(64)]
        given = settings(api_key_file=path)
        reload = KeyReload(given, collect_keys(given), file_version(path), accepted.append)
        task = asyncio.create_task(reload.run())
        path.write_text("a = sk-first\n", encoding="utf-8")
        reload.request()
        await until(lambda: accepted)
        release.set()
        task.cancel()
        await asyncio.gather(*held)

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))
    assert len(accepted[0]) == 1


if sys.platform == "win32":
    pytest.skip("needs POSIX signals", allow_module_level=True)


def status(server: Process, key: str) -> int:
    return httpx2.get(
        f"{server.url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_SECONDS
    ).status_code


@pytest.mark.slow
def test_new_keys_are_accepted_and_old_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("alice = sk-first", encoding="utf-8")
    path.chmod(0o600)
    server = Process(f"api_key_file={path}")
    try:
        assert (status(server, "sk-first"), status(server, "sk-second")) == (200, 401)
        path.write_text("bob = sk-second", encoding="utf-8")
        server.popen.send_signal(signal.SIGHUP)
        wait_for(lambda: status(server, "sk-second") == 200)
        assert status(server, "sk-first") == 401
        path.write_text("a broken line", encoding="utf-8")
        server.popen.send_signal(signal.SIGHUP)
        assert status(server, "sk-second") == 200
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait(PATIENCE_SECONDS) == 0
    finally:
        said = server.end()
    assert "the keys were read again: 1 accepted" in said
    assert "key=bob" in said
    assert "sk-" not in said
