"""A real vLLM on a port of its own, as an operator starts it for Onward to use."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from onward.engines.programs.kinds import KINDS
from tests.processes import free_port
from tests.real_models.vllm.install import ENVIRONMENT, FLAGS

START_SECONDS = 900
"""Fifty seconds on a quiet machine."""


@contextmanager
def vllm_server(program: Path, model: Path, name: str = "toy") -> Iterator[str]:
    """Run it with a model; yield its URL."""
    port = free_port()
    command = [str(program), "serve", str(model), "--served-model-name", name, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--max-logprobs", "-1", "--enable-prompt-tokens-details", *FLAGS]
    environment = KINDS["vllm"].variables() | ENVIRONMENT
    with running(command, environment, f"http://127.0.0.1:{port}", model.with_suffix(".log")) as url:
        yield url


@contextmanager
def running(command: list[str], environment: dict[str, str], url: str, log: Path) -> Iterator[str]:
    """Run a server whose address is `url`; yield that when it is healthy. Kills its processes at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        wait_for_server(process, url, log)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_server(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until a server says that it is healthy. Raises AssertionError, with its log, when it has ended."""
    for _ in range(START_SECONDS):
        assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")[-4000:]
        try:
            if httpx2.get(url + "/health", timeout=30).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(1)
    raise AssertionError(f"the server does not answer: {log.read_text(encoding='utf-8', errors='replace')[-4000:]}")
