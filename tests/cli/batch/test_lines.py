"""The input of a batch: pipes, lines that are too long, and lines that have changed since they were completed."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from onward.cli.batch import lines as batch_lines
from tests.cli.batch.test_run import records, run, write_input

from ..conftest import onward
from ..scripted import answer, completion, scripted


def piped(content: bytes, *arguments: str) -> Any:
    """Run a batch whose input is a pipe, as with `<(…)`."""
    if not Path("pipe").exists():
        os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(content), daemon=True)
    writer.start()
    result = onward("batch", "run", "pipe", "-o", "out.jsonl", *arguments)
    writer.join(60)
    return result


def test_a_pipe_is_read_once_and_run_whole() -> None:
    write_input(6)
    content = Path("in.jsonl").read_bytes()
    assert piped(content).stderr.startswith("6 lines completed")
    assert set(records()) == {f"line {number}" for number in range(6)}
    assert piped(content).stderr.startswith("Nothing left to do · 6 before")
    write_input(8)
    assert piped(Path("in.jsonl").read_bytes()).stderr.startswith("2 lines completed · 6 before")
    result = piped(b"")
    assert (result.exit_code, result.stderr) == (0, "Nothing left to do\n")


@pytest.mark.parametrize("change", [{"max_tokens": 5}, {"prompt": "other"}, {"temperature": 0.5}])
def test_a_completed_line_that_has_changed_is_not_passed_off_as_done(change: dict[str, Any]) -> None:
    write_input(3)
    assert run().exit_code == 0
    before = Path("out.jsonl").read_bytes()
    write_input(3, **change)
    result = run()
    assert result.exit_code == 1
    assert (
        "out.jsonl has a result of another request than line 1 of in.jsonl for the custom_id 'line 0'" in result.stderr
    )
    assert Path("out.jsonl").read_bytes() == before


def test_another_model_for_all_lines_is_another_request() -> None:
    write_input(2)
    assert run("--model", "toy").exit_code == 0
    assert run("--model", "toy").stderr.startswith("Nothing left to do · 2 before")
    assert "has a result of another request" in run("--model", "storyteller").stderr


def test_the_order_of_fields_and_lines_does_not_matter() -> None:
    write_input(3)
    assert run().exit_code == 0
    lines = [json.loads(line) for line in Path("in.jsonl").read_text(encoding="utf-8").splitlines()]
    turned = [{**dict(reversed(line.items())), "body": dict(reversed(line["body"].items()))} for line in lines[::-1]]
    Path("in.jsonl").write_text("".join(f" {json.dumps(line, indent=None)} \n\n" for line in turned), encoding="utf-8")
    assert run().stderr.startswith("Nothing left to do · 3 before")


def test_a_rejected_line_that_was_corrected_is_reported_with_how_to_run_it() -> None:
    write_input(1, temperature=9)
    assert run().exit_code == 1
    write_input(1)
    assert "out.errors.jsonl has a result of another request" in (words := run().stderr) and "delete it" in words
    Path("out.errors.jsonl").unlink()
    assert run().exit_code == 0


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_line_that_is_too_long_is_rejected_unsent(position: int, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_lines, "MAX_LINE_BYTES", 1000)
    write_input(2)
    lines = Path("in.jsonl").read_text(encoding="utf-8").splitlines()
    lines.insert(position, json.dumps({"custom_id": "big", "body": {"prompt": "x" * 5000}}))
    Path("in.jsonl").write_text("\n".join(lines) + end, encoding="utf-8")
    for _ in range(2):
        assert run().exit_code == 1
        assert set(records()) == {"line 0", "line 1"}
        (rejected,) = map(json.loads, Path("out.errors.jsonl").read_text(encoding="utf-8").splitlines())
        assert rejected["response"] is None
        assert rejected["error"] == {
            "code": "line_too_long",
            "message": rejected["error"]["message"],
            "line": position + 1,
        }


@pytest.mark.slow  # the client connects again, with pauses
def test_a_line_whose_connection_a_living_server_always_closes_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.cli.batch.patience.RECONNECT_SECONDS", 0.01)
    write_input(2)
    good = answer(200, completion("x"))
    closes = [lambda server, connection: None] * 3  # once, and two retries
    with scripted(*closes, answer(200, {"data": []}), *closes, answer(404, {}), good) as server:
        result = run("--base-url", server.url, "--concurrency", "1")
    assert result.exit_code == 1, result.stderr
    assert set(records()) == {"line 1"}
    rejected = records("out.errors.jsonl")["line 0"]
    assert rejected["error"]["code"] == "connection_lost" and "too large" in rejected["error"]["message"]
    assert run("--base-url", server.url).stderr.startswith("Nothing left to do · 2 before")
