"""`onward requests`: what a server logged, shown and computed again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from onward.service.request_log import LoggedRequest

from ..conftest import onward

BODY = {"model": "toy", "prompt": "Once", "max_tokens": 8, "temperature": 1, "stream": True}
REQUEST = LoggedRequest(
    id="req_1", at_ms=1_795_694_400_000, key_id="key_1", key_name="alice", route="/v1/completions", model="toy",
    fingerprint="fp", seed=7, status=200, body=BODY, choices=[], prompt_tokens=1, completion_tokens=8,
)  # fmt: skip


def write(folder: Path, *requests: LoggedRequest) -> tuple[str, str]:
    """Log requests; return the flag that names the folder."""
    for request in requests:
        place = folder / (request.key_id or "no-key")
        place.mkdir(parents=True, exist_ok=True)
        with (place / "2026-11-26-1.jsonl").open("ab") as file:
            file.write(request.encoded() + b"\n")
    return "--log-requests", str(folder)


def test_the_newest_requests_are_listed_and_one_is_shown(tmp_path: Path) -> None:
    others = [replace(REQUEST, id=f"req_{n}", at_ms=REQUEST.at_ms + n, key_id="", key_name="") for n in (2, 3)]
    where = write(tmp_path, REQUEST, *others)
    found = json.loads(onward("requests", "list", *where, "--limit", "2", "--format", "json").stdout)["data"]
    assert [each["id"] for each in found] == ["req_3", "req_2"]
    found = json.loads(onward("requests", "list", *where, "--key", "alice", "--format", "json").stdout)["data"]
    assert [(each["id"], each["body"]["prompt"]) for each in found] == [("req_1", "Once")]
    assert "Once" in onward("requests", "list", *where, "--format", "text").stdout
    assert json.loads(onward("requests", "show", "req_1", *where, "--format", "json").stdout)["seed"] == 7
    hostile = replace(REQUEST, id="req_4", choices=[{"index": 0, "text": "\x1b]0;x\x07", "finish_reason": "stop"}])
    write(tmp_path, hostile)
    assert "\\x1b]0;x\\x07" in onward("requests", "show", "req_4", *where, "--format", "text").stdout
    missing = onward("requests", "show", "req_9", *where)
    assert missing.exit_code == 1 and "There is no request req_9" in missing.stderr


@pytest.mark.parametrize("format", ["json", "text"])
def test_a_replay_says_whether_the_answer_is_the_same(tmp_path: Path, format: str) -> None:
    flags = ("--model", "toy", "--prompt", "Once", "--max-tokens", "8", "--temperature", "1", "--seed", "7")
    document = json.loads(onward("completions", "create", *flags, "--format", "json").stdout)
    choices = [{"index": 0, "text": document["choices"][0]["text"], "finish_reason": "length"}]
    same = replace(REQUEST, choices=choices, fingerprint=document["system_fingerprint"])
    other = replace(same, id="req_2", choices=[choices[0] | {"text": "no"}], fingerprint="fp_other")
    chat = replace(same, id="req_3", route="/v1/chat")
    failed = replace(same, id="req_4", status=500, model="none")
    longer = replace(same, id="req_5", choices=[choices[0] | {"finish_reason": "stop"}])
    where = write(tmp_path, same, other, chat, failed, longer)
    ran = onward("requests", "replay", "req_1", *where, "--format", format)
    assert ran.exit_code == 0, ran.stderr
    differs = onward("requests", "replay", "req_2", *where, "--format", format)
    assert differs.exit_code == 1
    end = onward("requests", "replay", "req_5", *where, "--format", format)
    assert end.exit_code == 1
    if format == "text":
        assert ran.stdout == "The answer is the same.\n"
        assert "The answer differs. choice 0, character 0: 'no' was saved" in differs.stdout
        assert "The answer differs. choice 0, finish_reason: 'stop' was saved, 'length' is computed." in end.stdout
    if format == "json":
        assert json.loads(ran.stdout)["same"] is True and json.loads(differs.stdout)["same_fingerprint"] is False
    refused = onward("requests", "replay", "req_3", *where)
    assert (
        refused.exit_code == 1
        and "req_3 cannot be replayed: /v1/chat is not a route for completions." in refused.stderr
    )
    lost = onward("requests", "replay", "req_4", *where)
    assert lost.exit_code == 1 and "req_4 cannot be replayed: it got an error (500)." in lost.stderr


def test_without_a_log_there_is_nothing_to_show(tmp_path: Path) -> None:
    none = onward("requests", "list")
    assert none.exit_code == 1 and "--log-requests" in none.stderr
    gone = onward("requests", "list", "--log-requests", str(tmp_path / "none"))
    assert gone.exit_code == 1 and "There is no folder" in gone.stderr
    assert onward("requests", "list", "--log-requests", "database").exit_code == 1


def test_a_forgotten_key_is_forgotten_in_the_folder_too(tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    assert onward("key", "new", "alice", "--no-log-requests", *data).exit_code == 0
    shown = json.loads(onward("key", "show", "alice", *data, "--format", "json").stdout)
    assert shown["logged"] is False
    where = write(tmp_path / "log", replace(REQUEST, key_id=shown["id"]), replace(REQUEST, key_id="", id="req_2"))
    assert onward("key", "forget", "alice", "--yes", *data, *where).exit_code == 0
    left = json.loads(onward("requests", "list", *where, "--format", "json").stdout)["data"]
    assert [each["id"] for each in left] == ["req_2"]
