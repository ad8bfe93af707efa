"""Constraints that once ended a command: it continues, and says which request is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

MIN64 = -(2**63)
REFUSED: dict[str, Any] = {"grammar": f'start: "x" %json {{"items": {{"const": {MIN64}}}}}'}


def onward(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onward", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_a_batch_continues_after_a_line_whose_constraint_is_refused(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = [{}, REFUSED, {"json_schema": {"const": MIN64}, "max_tokens": 40}, {}]
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "storyteller", "prompt": "A", "max_tokens": 9} | body,
        }
        for number, body in enumerate(bodies)
    ]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    done = onward("batch", "run", "--model", "storyteller", str(source), "-o", str(output))
    assert done.returncode >= 0, "the process was ended by a signal"
    answers = {line["custom_id"]: line for line in map(json.loads, output.read_text(encoding="utf-8").splitlines())}
    assert answers.keys() == {"0", "2", "3"}
    assert answers["2"]["response"]["body"]["choices"][0]["text"] == str(MIN64)
    [refused] = map(json.loads, (tmp_path / "out.errors.jsonl").read_text(encoding="utf-8").splitlines())
    assert refused["custom_id"] == "1" and str(MIN64) in json.dumps(refused)


def test_a_command_answers_or_says_what_is_refused() -> None:
    create = ("completions", "create", "-m", "storyteller", "-p", "x", "-M", "40", "--format", "text")
    done = onward(*create, "--json-schema", json.dumps({"const": MIN64}))
    assert (done.returncode, done.stdout.strip()) == (0, str(MIN64))
    refused = onward(*create, "--grammar", REFUSED["grammar"])
    assert refused.returncode > 0 and str(MIN64) in refused.stderr and "Traceback" not in refused.stderr
