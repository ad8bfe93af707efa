"""A server that is stopped, or killed, and started again with the same folder: it computes no prompt twice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.processes import served, server_process
from tests.waiting import PATIENCE_SECONDS, wait_for

WORDS = "once upon a time there was a fox who lived at the edge of a great wood and went to the river "
LONG: dict[str, Any] = {"prompt": WORDS * 5, "max_tokens": 24, "temperature": 1, "seed": 5}
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": LONG,
    "choices": {**LONG, "n": 3},
    "logprobs": {**LONG, "logprobs": 2},
    "echo": {**LONG, "logprobs": 2, "echo": True},
    "prompt_logprobs": {**LONG, "prompt_logprobs": 3},
    "salted": {**LONG, "cache_salt": "a secret"},
}


def ask(url: str, fields: dict[str, Any]) -> tuple[Any, int]:
    """The choices and the cached tokens of a request."""
    answer = httpx2.post(f"{url}/v1/completions", json={"model": "toy", **fields}, timeout=PATIENCE_SECONDS)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["choices"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def metric(url: str, name: str) -> float:
    text = httpx2.get(f"{url}/metrics", timeout=PATIENCE_SECONDS).text
    return sum(map(float, re.findall(rf'^{name}{{model="toy"}} (\S+)$', text, re.MULTILINE)))


@pytest.mark.slow
@pytest.mark.parametrize("engine_process", ["on", "off"])
def test_law_3_a_restart_changes_no_byte_and_computes_no_prompt_again(tmp_path: Path, engine_process: str) -> None:
    flags = ("--engine-process", engine_process)
    folder = ("--prefix-cache-dir", str(tmp_path / "cache"))
    with served(*flags, "--no-prefix-cache") as url:
        expected = {name: ask(url, fields)[0] for name, fields in REQUESTS.items()}
    for attempt in range(2):
        with served(*flags, *folder) as url:
            found = {name: ask(url, fields) for name, fields in reversed(REQUESTS.items())}
            assert {name: choices for name, (choices, _) in found.items()} == expected
            if attempt:
                assert all(cached >= 256 for _, cached in found.values()), found
                assert metric(url, "onward_prefix_cache_disk_tokens_total") >= 2 * 256
                assert metric(url, "onward_prefix_cache_disk_read_bytes_total") > 0
                assert metric(url, "onward_prefix_cache_damaged_files_total") == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "cache").rglob("*"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_server_leaves_what_it_had_written(tmp_path: Path) -> None:
    folder = ("--prefix-cache-dir", str(tmp_path / "cache"))
    prompts = [{**LONG, "prompt": f"{number} " + WORDS * 20, "max_tokens": 4} for number in range(20)]
    with server_process(*folder) as server:
        expected = [ask(server.url, fields)[0] for fields in prompts]
        wait_for(lambda: len(list((tmp_path / "cache").rglob("*.kv"))) > 64)  # all blocks of the first prompt
        wait_for(lambda: metric(server.url, "onward_prefix_cache_disk_written_bytes_total") > 0)
        server.popen.kill()
        server.popen.wait(PATIENCE_SECONDS)
    with served(*folder) as url:
        found = [ask(url, fields) for fields in prompts]
        assert [choices for choices, _ in found] == expected
        assert found[0][1] > 1000, "what was evicted first lies on the disk"
        assert metric(url, "onward_prefix_cache_damaged_files_total") == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="folders have no modes there")
def test_a_folder_that_others_may_read_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    command = [sys.executable, "-m", "onward", "serve", "--port", "0", "--model", "toy"]
    done = subprocess.run(
        [*command, "--prefix-cache-dir", str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 1 and "chmod 700" in done.stderr + done.stdout
