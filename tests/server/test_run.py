"""The server process: failing starts, signals, the drain."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.errors import SetupError
from onward.server import run
from onward.server.admin import ModelReload
from onward.server.process import DEAD_ENGINE_EXIT_CODE, bind
from onward.server.run import ready_line, serve
from onward.settings import Settings
from tests.server.conftest import Process, start_process
from tests.server.fakes import FakeBackend, events, settings
from tests.server.test_admin import FakeModels
from tests.waiting import PATIENCE_SECONDS, until, wait_for

if sys.platform == "win32":
    pytest.skip("needs POSIX signals", allow_module_level=True)


class Streaming:
    """A streaming request in the background that has received its first chunk."""

    def __init__(self, server: Process, prompt: str = "hang") -> None:
        self.body = b""
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(server.url, prompt), daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE_SECONDS)

    def _run(self, url: str, prompt: str) -> None:
        fields = {"model": "m", "prompt": prompt, "stream": True}
        with httpx2.stream("POST", f"{url}/v1/completions", json=fields, timeout=PATIENCE_SECONDS) as answer:
            for chunk in answer.iter_raw():
                self.body += chunk
                self._started.set()

    def wait(self) -> list[Any]:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        return events(self.body)


Start = Callable[..., Process]


def wait_for_drain(server: Process) -> None:
    """Wait until `/health` reports that the server is draining."""
    wait_for(lambda: httpx2.get(f"{server.url}/health", timeout=PATIENCE_SECONDS).json()["status"] == "draining")


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_an_idle_server_ends_at_once_and_its_port_is_free_again(start: Start, number: signal.Signals) -> None:
    server = start()
    httpx2.get(f"{server.url}/health", timeout=PATIENCE_SECONDS)
    server.popen.send_signal(number)
    assert server.popen.wait(PATIENCE_SECONDS) == 0
    bind("127.0.0.1", server.port).close()
    assert re.fullmatch(r"[-\d]+ [:,\d]+ INFO onward\.server: stopped\n", server.end())


@pytest.mark.slow
def test_the_end_of_a_drain_ends_running_requests_with_an_error_event(start: Start) -> None:
    server = start("drain=0.1")
    streams = [Streaming(server) for _ in range(4)]
    server.popen.send_signal(signal.SIGTERM)
    for streaming in streams:
        first, last = streaming.wait()
        assert first["choices"][0]["text"] == "a"
        assert last["error"]["type"] == "server_error"
    assert server.popen.wait(PATIENCE_SECONDS) == 0
    said = server.end()
    assert "draining: 4 requests may run for up to 0.1 s; send the signal again to stop now" in said
    assert "cancelling 4 requests that did not finish in time" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_server_whose_engine_is_dead_drains_and_ends_with_a_code_of_its_own(start: Start) -> None:
    """Not 0, so that systemd's `Restart=on-failure` and the like restart it."""
    server = start("drain=0.5")
    streaming = Streaming(server)
    assert (
        httpx2.post(
            f"{server.url}/v1/completions", json={"model": "m", "prompt": "die"}, timeout=PATIENCE_SECONDS
        ).status_code
        == 200
    )
    assert streaming.wait()[-1]["error"]["type"] == "server_error"
    assert server.popen.wait(PATIENCE_SECONDS) == DEAD_ENGINE_EXIT_CODE == 70
    said = server.end()
    assert "CRITICAL onward.server: the engine of fake-model:1 is dead: the server ends with exit code 70" in said
    # The request that ended the engine may not have ended itself.
    assert re.search(r"draining: (1 request|2 requests) may run for up to 0\.5 s", said) and said.endswith("stopped\n")


@pytest.mark.parametrize(
    ("number", "code", "again"),
    [
        pytest.param(signal.SIGINT, 130, "press Ctrl-C again", marks=pytest.mark.slow),
        (signal.SIGTERM, 143, "send the signal again"),
    ],
)
def test_a_drain_refuses_new_requests_and_a_second_signal_ends_it(
    start: Start, number: signal.Signals, code: int, again: str
) -> None:
    server = start("drain=300")
    streaming = Streaming(server)
    server.popen.send_signal(number)
    wait_for_drain(server)
    refused = httpx2.post(f"{server.url}/v1/completions", json={"model": "m", "prompt": "x"}, timeout=PATIENCE_SECONDS)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["connection"] == "close"
    server.popen.send_signal(number)
    assert server.popen.wait(PATIENCE_SECONDS) == code
    assert "error" in streaming.wait()[-1]
    said = server.end()
    assert f"draining: 1 request may run for up to 300 s; {again} to stop now" in said
    assert said.endswith("stopped\n")


@pytest.mark.slow
def test_a_key_file_that_others_can_read_is_logged_once_with_time_and_level(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("sk-a\n", encoding="utf-8")
    path.chmod(0o644)
    said = start(f"api_key_file={path}").end()
    assert re.fullmatch(r"[-\d]+ [:,\d]+ WARNING onward\.server: the key file .*; run chmod 600 on it\n", said)


def no_model(settings: Settings, progress: object) -> FakeBackend:
    raise SetupError("The model is broken.")


def test_a_port_taken_while_the_model_loads_is_reported() -> None:
    backend = FakeBackend()
    with bind("127.0.0.1", 0) as other:  # both may be bound while neither listens
        port = other.getsockname()[1]

        def slow(settings: Settings, progress: object) -> FakeBackend:
            other.listen()
            return backend

        with pytest.raises(SetupError, match=f"Port {port} on 127.0.0.1 is in use"):
            serve(settings(port=port), slow)
    assert backend.closed


def test_a_port_in_use_is_reported_before_the_model_loads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError) as raised:
            serve(settings(port=port), no_model)
    assert str(raised.value) == (
        f"Port {port} on 127.0.0.1 is in use. Stop the program that uses it, or choose another --port."
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "The model is broken"),
        ({"host": "0.0.0.0"}, "without a key"),
        ({"host": "203.0.113.7", "no_auth": True}, "203.0.113.7 is not an address of this machine"),
        ({"host": "no.such.host.invalid"}, "The host name 'no.such.host.invalid' cannot be resolved"),
        ({"host": "a" * 64 + ".invalid"}, "cannot be resolved"),
        ({"api_key_file": Path("/nowhere/keys")}, "cannot be read"),
    ],
)
def test_a_start_that_fails_raises_one_sentence_and_nothing_listens(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        serve(settings(port=0, **given), no_model)


def test_nothing_answers_before_the_model_is_loaded() -> None:
    listener = bind("127.0.0.1", 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname())
    listener.close()


def test_a_privileged_port_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(SetupError, match="reserved for privileged users"):
        bind("127.0.0.1", 80)


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("::1", "http://[::1]:{}/v1"),
        ("[::1]", "http://[::1]:{}/v1"),
        ("localhost", "http://localhost:{}/v1"),
        ("0.0.0.0", "http://127.0.0.1:{}/v1 and at the other addresses of this machine"),
        ("::", "http://[::1]:{}/v1 and at the other addresses of this machine"),
        ("[::]", "http://[::1]:{}/v1 and at the other addresses of this machine"),
    ],
)
def test_the_ready_line_has_a_url_that_works_on_this_machine(host: str, place: str) -> None:
    with bind(host, 0) as listener:
        line = ready_line(["a", "b"], settings(host=host), listener)
        where = place.format(listener.getsockname()[1])
        page = where.split("/v1")[0]
        assert line == f"Onward is ready at {where} (models: a, b).\nWrite at {page}; Ctrl-C stops it."


def test_a_server_of_the_built_in_model_names_a_real_one_but_not_of_a_cluster() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert "serve smollm2" in ready_line(["storyteller"], settings(), listener)
        assert "serve smollm2" not in ready_line(["storyteller"], settings(cluster="auto"), listener)


@pytest.mark.slow
def test_without_a_terminal_sighup_ends_no_server_that_starts_or_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`systemctl reload` sends it, even if there is no file to reload."""
    os.mkfifo(loads := tmp_path / "loads")
    monkeypatch.setenv("SERVED_LOADS", str(loads))
    process = start_process("0")
    with loads.open("w"):  # opens once the server waits for its models
        process.send_signal(signal.SIGHUP)
    assert process.stdout is not None
    found = re.search(r"Onward is ready at (http://127\.0\.0\.1:\d+/v1)", process.stdout.readline())
    assert found is not None
    for _ in range(2):
        process.send_signal(signal.SIGHUP)
    fields = {"model": "m", "prompt": "x"}
    assert httpx2.post(f"{found[1]}/completions", json=fields, timeout=PATIENCE_SECONDS).status_code == 200
    process.terminate()
    said = process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert process.returncode == 0
    assert "SIGHUP while the server starts: send it again later" in said
    assert "SIGHUP: there is nothing to read again" in said and said.endswith("stopped\n")


@pytest.mark.slow
def test_a_closing_terminal_ends_a_server_and_may_send_sighup_twice(start: Start) -> None:
    leader, follower = os.openpty()
    server = start("drain=1", terminal=os.ttyname(follower))
    os.close(follower)
    streaming = Streaming(server)
    os.close(leader)
    log = server.popen.stderr
    assert log is not None and any("draining: 1 request" in line for line in log)
    server.popen.send_signal(signal.SIGHUP)
    assert "error" in streaming.wait()[-1]
    assert server.popen.wait(PATIENCE_SECONDS) == 0
    assert "cancelling 1 request that did not finish in time" in log.read()


@pytest.mark.slow
def test_sighup_on_a_terminal_that_stays_open_reads_again(start: Start) -> None:
    """As `kill -HUP` of a server in the background of a shell."""
    leader, follower = os.openpty()
    server = start("drain=1", terminal=os.ttyname(follower))
    os.close(follower)
    assert server.popen.stderr is not None
    server.popen.send_signal(signal.SIGHUP)
    assert "SIGHUP: there is nothing to read again" in server.popen.stderr.readline()
    server.popen.send_signal(signal.SIGHUP)
    os.close(leader)
    assert server.popen.wait(PATIENCE_SECONDS) == 0
    assert server.end().endswith("stopped\n")


def test_the_address_of_a_socket_that_was_passed_is_not_a_changed_setting(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stated, models = settings(port=1), FakeModels()

    class ReadingAgain:
        """Replaces the service: settings are reloaded, and nothing is served."""

        def __init__(self, *_: Any, model_reload: ModelReload, **__: Any) -> None:
            self.reload = model_reload

        async def run(self) -> int:
            self.reload.request()
            running = asyncio.create_task(self.reload.run())
            await until(lambda: models.asked)
            await asyncio.sleep(0)  # everything after it runs without waiting
            running.cancel()
            return 0

    with bind("127.0.0.1", 0) as listener:
        monkeypatch.setattr(run, "activated_listener", lambda: listener)
        monkeypatch.setattr(run, "Service", ReadingAgain)
        serve(
            stated, lambda *_: FakeBackend(), open_models=lambda *_: models, again=lambda: replace(stated, threads=3)
        )  # fmt: skip
    assert "take effect at the next start: threads\n" in capfd.readouterr().err


def test_the_limit_of_open_files_is_raised_to_the_hard_limit() -> None:
    resource = pytest.importorskip("resource")
    program = "import resource; from onward.server.process import raise_open_files_limit as more; "
    program += "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128)); more(); "
    program += "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == f"{(128, 128)}\n" and resource
