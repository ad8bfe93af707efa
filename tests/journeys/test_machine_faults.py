"""What a server does where its machine fails: clocks that jump, a full log disk, a cache that others use too, a model's
file that is cut short."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from onward.models.resolve import built_in_folder
from tests.processes import served, server_process
from tests.waiting import PATIENCE_SECONDS, wait_for

JUMPING_CLOCK = """
import time
_real, _calls = time.time, 0
def _jumping():
    "Forward by ten years, back by ten years, and as it is, by turns."
    global _calls
    _calls += 1
    return _real() + (3e8, -3e8, 0.0)[_calls % 3]
time.time = _jumping
time.time_ns = lambda: int(_jumping() * 1e9)
"""
BODY = {"model": "toy", "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "seed": 1}


def post(url: str, key: str = "", **fields: object) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx2.post(f"{url}/v1/completions", json=BODY | fields, headers=headers, timeout=PATIENCE_SECONDS)


def text_of(answer: httpx2.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.slow
def test_clocks_that_jump_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every process of the server: time limits, drains and the reloading of keys use another clock."""
    (tmp_path / "sitecustomize.py").write_text(JUMPING_CLOCK, encoding="utf-8")
    keys = tmp_path / "keys"
    first, second = (f"sk-{letter * 32}" for letter in "ab")
    keys.write_text(first + "\n", encoding="utf-8")
    keys.chmod(0o600)
    with served() as url:
        expected = text_of(post(url))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    with server_process("--api-key-file", str(keys), "--max-wait", "5") as server:
        assert text_of(post(server.url, first)) == expected
        stream = post(server.url, first, stream=True).text
        assert stream.count("data: ") > 2 and stream.rstrip().endswith("data: [DONE]")
        assert len(text_of(post(server.url, first, regex="[a-z]{3}"))) == 3
        keys.write_text(second + "\n", encoding="utf-8")
        wait_for(lambda: post(server.url, second).status_code == 200)
        assert post(server.url, first).status_code == 401
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait(PATIENCE_SECONDS) == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_log_disk_stops_nobody() -> None:
    command = [sys.executable, "-m", "onward", "serve", "--port", "0", "--model", "toy", "--log-level", "debug"]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=full, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("Onward is ready at "), line
        url = line.split()[4].removesuffix("/v1")
        assert len({text_of(post(url)) for _ in range(20)}) == 1
        assert post(url, temperature="warm").status_code == 400
    finally:
        server.terminate()
        assert server.stdout is not None
        server.stdout.close()
        assert server.wait(PATIENCE_SECONDS) == 0


@pytest.mark.slow
def test_servers_that_start_together_share_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled kernels, hashes, tokenizers: written by both at once, and read by both."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def completed(_: int) -> str:
        with served("--model", "storyteller", model=None) as url:
            return text_of(post(url, model="storyteller"))

    with ThreadPoolExecutor(3) as executor:
        texts = set(executor.map(completed, range(3)))
    assert len(texts) == 1
    assert any((tmp_path / "onward").rglob("*")), "they have a cache"
    assert not list((tmp_path / "onward").rglob("*.tmp")), "nothing is left half-written"
    assert {completed(0)} == texts, "what they left is whole"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="SIGBUS")
def test_a_file_that_is_cut_short_while_it_is_mapped_is_reported_in_one_message(tmp_path: Path) -> None:
    """The engine dies, and the next one finds the reason."""
    model = tmp_path / "story.gguf"
    shutil.copy(built_in_folder("storyteller") / "storyteller.gguf", model)
    with server_process("--model", str(model), model=None) as server:
        assert text_of(post(server.url, model="story"))
        os.truncate(model, 4096)
        answer = post(server.url, model="story", prompt="Another dragon flew over the hills")
        assert answer.status_code == 500 and "error" in answer.json()
        assert server.popen.wait(PATIENCE_SECONDS) == 70
        said = "".join(server.output)
    assert f"the files of its model have changed since they were loaded: {model} is broken" in said
