"""A port that passes from one server process to the next, or comes from the service manager."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.errors import SetupError
from onward.server.handover import IS_SUPPORTED, Handover, Predecessor, check_private, control_path
from tests.processes import free_port
from tests.server.conftest import ROOT, Process, start_process
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.skipif(not IS_SUPPORTED, reason="needs Unix sockets")

STORY = {"model": "m", "prompt": "Once"}


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the servers of a test find each other. Its path is short enough for a Unix socket."""
    path = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    return path / "onward"


@pytest.fixture
def old(folder: Path, start: Any) -> Process:
    """A server that can be taken over."""
    return started(start, folder, drain=300)


def started(start: Any, folder: Path, drain: float) -> Process:
    server: Process = start(f"drain={drain}")
    wait_for(lambda: any(folder.glob("127.0.0.1-*.sock")))
    return server


class Loading:
    """A server that takes over, and loads its models until `finish`."""

    def __init__(self, port: int, folder: Path, monkeypatch: pytest.MonkeyPatch, old: Process) -> None:
        self._pipe = folder.parent / "loads"
        os.mkfifo(self._pipe)
        with monkeypatch.context() as environment:
            environment.setenv("SERVED_LOADS", str(self._pipe))
            self.popen = start_process(str(port), "take_over=true")
        self._writer = self._pipe.open("w")  # opens when the server reads

    def finish(self, problem: str = "") -> None:
        self._writer.write(problem)
        self._writer.close()

    def end(self) -> str:
        self._writer.close()
        self.popen.kill()
        return self.popen.communicate()[1]


@pytest.fixture
def loading(old: Process, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loading]:
    server = Loading(old.port, folder, monkeypatch, old)
    yield server
    server.end()


def complete(server: Process, client: httpx2.Client | None = None, **fields: Any) -> httpx2.Response:
    post = httpx2.post if client is None else client.post
    return post(f"{server.url}/v1/completions", json=STORY | fields, timeout=PATIENCE_SECONDS)


def first_event(stream: httpx2.Response) -> Any:
    return json.loads(next(line for line in stream.iter_lines() if line.startswith("data: ")).removeprefix("data: "))


def test_a_new_server_answers_at_the_same_port_and_the_old_one_ends(old: Process, start: Any) -> None:
    assert complete(old).status_code == 200
    new: Process = start("take_over=true", port=old.port)
    assert old.popen.wait(PATIENCE_SECONDS) == 0 and "has taken over" in old.end()
    assert complete(new).status_code == 200


@pytest.mark.slow
def test_without_a_server_to_replace_it_starts_as_usual(start: Any) -> None:
    port = free_port()
    server: Process = start("take_over=true", port=port)
    assert server.port == port and complete(server).status_code == 200


@pytest.mark.slow
def test_requests_that_the_old_server_began_are_finished(old: Process, start: Any) -> None:
    """A stream that hangs continues on its connection; the next answer on another one closes it."""
    with (
        httpx2.Client(limits=httpx2.Limits(keepalive_expiry=None), timeout=PATIENCE_SECONDS) as client,
        httpx2.stream(
            "POST",
            f"{old.url}/v1/completions",
            json=STORY | {"prompt": "hang", "stream": True},
            timeout=PATIENCE_SECONDS,
        ) as stream,
    ):
        chunks = stream.iter_text()
        assert "a" in next(chunks)
        assert complete(old, client).headers.get("connection") is None
        new: Process = start("take_over=true", port=old.port)
        last = complete(old, client)
        assert last.status_code == 200 and last.headers["connection"] == "close"
        assert complete(new, client).headers.get("connection") is None
        assert old.popen.poll() is None
    assert old.popen.wait(PATIENCE_SECONDS) == 0


@pytest.mark.slow
def test_a_kept_stream_is_resumed_through_the_new_one(old: Process, start: Any) -> None:
    fields = STORY | {"prompt": "hang", "stream": True, "stream_options": {"resumable": True}}
    with httpx2.stream("POST", f"{old.url}/v1/completions", json=fields, timeout=PATIENCE_SECONDS) as stream:
        first, seed = first_event(stream), stream.headers["onward-seed"]
    new: Process = start("take_over=true", port=old.port)
    url = f"{new.url}/v1/completions/{first['id']}"
    assert httpx2.head(url, timeout=PATIENCE_SECONDS).status_code == 200
    with httpx2.stream("GET", url, timeout=PATIENCE_SECONDS) as stream:
        assert first_event(stream) == first and stream.headers["onward-seed"] == seed
    assert httpx2.get(f"{new.url}/v1/completions/cmpl-unknown", timeout=PATIENCE_SECONDS).status_code == 404
    assert httpx2.get(f"{new.url}/v1/completions/x%0d%0ay", timeout=PATIENCE_SECONDS).status_code == 404
    assert httpx2.delete(url, timeout=PATIENCE_SECONDS).json()["deleted"] is True
    assert old.popen.wait(PATIENCE_SECONDS) == 0
    assert httpx2.get(url, timeout=PATIENCE_SECONDS).status_code == 404


@pytest.mark.slow
def test_a_signal_ends_what_is_left_of_the_old_one(folder: Path, start: Any) -> None:
    old = started(start, folder, drain=0.1)
    with httpx2.stream(
        "POST", f"{old.url}/v1/completions", json=STORY | {"prompt": "hang", "stream": True}, timeout=PATIENCE_SECONDS
    ) as stream:
        received = stream.iter_text()
        next(received)
        start("take_over=true", port=old.port)
        old.popen.terminate()
        assert "error" in "".join(received)
    assert old.popen.wait(PATIENCE_SECONDS) == 0


@pytest.mark.slow
def test_a_new_one_that_cannot_start_changes_nothing(old: Process, loading: Loading, start: Any) -> None:
    assert complete(old).status_code == 200
    loading.finish("The model is broken.")
    assert loading.popen.wait(PATIENCE_SECONDS) == 1 and loading.end().endswith("The model is broken.\n")
    for _ in range(3):
        assert complete(old).headers.get("connection") is None
    start("take_over=true", port=old.port)
    assert old.popen.wait(PATIENCE_SECONDS) == 0


@pytest.mark.slow
def test_a_new_one_that_is_killed_changes_nothing(old: Process, loading: Loading, start: Any) -> None:
    loading.end()
    assert complete(old).status_code == 200
    start("take_over=true", port=old.port)
    assert old.popen.wait(PATIENCE_SECONDS) == 0


@pytest.mark.slow
def test_one_takes_over_at_a_time(old: Process, loading: Loading) -> None:
    second = start_process(str(old.port), "take_over=true")
    assert second.wait(PATIENCE_SECONDS) == 1
    assert f"Process {loading.popen.pid} is taking it over already." in second.communicate()[1]
    loading.finish()
    assert old.popen.wait(PATIENCE_SECONDS) == 0


@pytest.mark.slow
def test_the_next_one_takes_over_from_the_new_one(old: Process, start: Any) -> None:
    new: Process = start("take_over=true", port=old.port)
    newest: Process = start("take_over=true", port=old.port)
    assert new.popen.wait(PATIENCE_SECONDS) == 0 and complete(newest).status_code == 200


@pytest.mark.slow
def test_another_users_folder_is_not_trusted(old: Process, folder: Path) -> None:
    folder.chmod(0o777)
    refused = start_process(str(old.port), "take_over=true")
    assert refused.wait(PATIENCE_SECONDS) == 1 and "not a folder of this user alone" in refused.communicate()[1]
    assert complete(old).status_code == 200


@pytest.mark.slow
def test_a_server_starts_where_the_folder_cannot_be_used(folder: Path, start: Any) -> None:
    folder.write_text("no folder", encoding="utf-8")
    server: Process = start()
    assert complete(server).status_code == 200 and "no other server can take this one over" in server.end()


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", b"no json", b'{"type":"hello","protocol":99,"pid":1}', b'{"type":"accepting"}'])
def test_a_peer_that_speaks_another_protocol_gets_no_port(said: bytes, old: Process, folder: Path, start: Any) -> None:
    (path,) = folder.glob("127.0.0.1-*.sock")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        data, descriptors, _, _ = socket.recv_fds(connection, 4096, 1)
    assert not descriptors and (b"not-granted" in data) == (b"99" in said)
    start("take_over=true", port=old.port)
    assert old.popen.wait(PATIENCE_SECONDS) == 0


def test_a_server_that_says_nothing_is_not_taken_over(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(control_path("127.0.0.1", 7)))
        silent.listen()
        answering = threading.Thread(target=lambda: silent.accept()[0].close())
        answering.start()
        with pytest.raises(SetupError, match="is not taken over: It does not answer"):
            Predecessor.find("127.0.0.1", 7)
        answering.join()


def test_a_link_is_not_a_private_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    check_private(tmp_path / "mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(SetupError):
        check_private(tmp_path / "link")


def test_closing_twice_removes_nothing_of_another(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        handover = Handover(listener)
        handover.close()
        handover.close()
    assert not folder.exists()


def activated(*flags: str, host: str = "127.0.0.1", count: str = "1", family: int = socket.AF_INET) -> Any:
    """Run a server as systemd does: with its socket as descriptor 3. Returns the process and the socket's address."""
    listener = socket.socket(family)
    listener.bind("" if family == socket.AF_UNIX else (host, 0))
    listener.listen()
    command = [sys.executable, "-m", "tests.server.served", "1", *flags]
    script = f'LISTEN_PID=$$ LISTEN_FDS={count} exec "$@" 3<&{listener.fileno()}'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, pass_fds=[listener.fileno()],
    )  # fmt: skip
    address = listener.getsockname()
    listener.close()
    return process, address


@pytest.mark.slow
def test_the_service_managers_socket_is_listened_on() -> None:
    """Whatever --port says; a connection from before the server's start waits for it."""
    process, address = activated()
    try:
        answer = httpx2.post(f"http://127.0.0.1:{address[1]}/v1/completions", json=STORY, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 200 and f":{address[1]}/v1" in process.stdout.readline()
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.slow
def test_systemds_own_program_passes_its_socket_on(folder: Path) -> None:
    """It starts the server on the first connection, which waits."""
    if (activate := shutil.which("systemd-socket-activate")) is None:
        pytest.skip("systemd is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    variables = [f"--setenv={name}" for name in ("PATH", "HOME", "XDG_RUNTIME_DIR") if name in os.environ]
    command = [activate, f"--listen={address}", *variables, sys.executable, "-m", "tests.server.served", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stderr is not None
        while "Listening on" not in (line := process.stderr.readline()):
            assert line, "it has ended"
        answer = httpx2.post(f"http://{address}/v1/completions", json=STORY, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 200
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host": "0.0.0.0"}, "Listening on 0.0.0.0 without a key"),
        ({"count": "2"}, "The service manager passed 2 sockets"),
        ({"family": socket.AF_UNIX}, "not a TCP socket"),
    ],
)
def test_a_socket_that_does_not_fit_is_refused(options: dict[str, Any], said: str) -> None:
    process, _ = activated(**options)
    assert said in process.communicate()[1] and process.returncode == 1
