"""Which process of `onward serve` holds what."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from pathlib import Path

import pytest
from benchmarks.processes import process_tree
from benchmarks.server_process import serve

from onward.settings import Settings

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

COMPUTING = ("llvmlite",)


def mapped_files(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def complete(url: str) -> str:
    body = json.dumps({"model": "storyteller", "prompt": "Once", "max_tokens": 8, "seed": 1, "logprobs": 2}).encode()
    request = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return str(json.load(response)["choices"][0]["text"])


@pytest.mark.slow
def test_only_the_engines_process_loads_what_computes() -> None:
    assert Settings().engine_process == "on"
    with serve("storyteller") as server:
        text = complete(server.url)
        server_pid, engine_pid = process_tree(server.pid)
        for name in COMPUTING:
            assert name not in mapped_files(server_pid) and name in mapped_files(engine_pid), name
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(engine_pid, number)  # as a terminal or a service manager does
        assert complete(server.url) == text
        assert process_tree(server.pid) == [server_pid, engine_pid], "the engine was replaced"
    assert not Path(f"/proc/{engine_pid}").exists()
