"""A model folder that cannot be used is one sentence in every command, without a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.hugging_face import write_folder
from tests.cli.conftest import create, onward

BROKEN = {
    "token id": ("tokenizer.json", None, "beyond any vocabulary"),
    "depth": ("config.json", b'{"a": ' + b"[" * 100_000, "nested too deeply"),
    "UTF-8": ("tokenizer.json", b"\xff\xfe{}", "tokenizer.json is not valid"),
    "wrong type": ("config.json", b"[1]", "is not a JSON object"),
}


def broken(folder: Path, problem: str) -> str:
    """Write a model with a problem; return its path."""
    name, content, _ = BROKEN[problem]
    write_folder(folder, "llama")
    if content is None:
        tokenizer = json.loads((folder / name).read_bytes())
        tokenizer["model"]["vocab"]["zz"] = 2**32 - 1
        content = json.dumps(tokenizer).encode()
    (folder / name).write_bytes(content)
    return str(folder)


@pytest.mark.parametrize("problem", BROKEN)
def test_every_command_that_reads_a_broken_model_reports_it(tmp_path: Path, problem: str) -> None:
    folder = broken(tmp_path / "model", problem)
    results = [onward("tokenize", "a", "--model", folder), create("a", "--model", folder)]
    if problem != "token id":  # found by building the tokenizer
        results += [onward("models", "show", folder), onward("models", "pull", folder)]
    for result in results:
        assert result.exit_code == 1, result.output
        assert BROKEN[problem][2] in result.stderr
        assert isinstance(result.exception, SystemExit)


@pytest.mark.slow
def test_a_server_does_not_start_with_a_broken_model(tmp_path: Path) -> None:
    folder = broken(tmp_path / "model", "token id")
    command = [sys.executable, "-m", "onward", "serve", folder, "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "beyond any vocabulary" in done.stderr
    assert "Traceback" not in done.stderr
