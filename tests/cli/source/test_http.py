"""The command line and our own server, over a real socket: the same answers as in process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onward.settings import OPENAI_NAMES

from ..conftest import create, onward

TOY = ("--model", "toy", "--seed", "1", "--max-tokens", "8")


def same_parts(document: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from call to call, and what an earlier call left in the cache."""
    usage = {**document["usage"], "prompt_tokens_details": None}
    return {**document, "id": None, "created": None, "usage": usage}


@pytest.mark.parametrize(
    "arguments",
    [
        ["Once upon a time"],
        ["--prompt", "[1, 2, 3]"],
        ["--prompt", '["a", "b"]', "--n", "2", "--logprobs", "2", "--echo"],
        ["Once", "--suffix", " end", "--stop", '[".", "q"]', "--logit-bias", "{101: 2.5}", "--top-k", "5"],
    ],
    ids=["text", "ids", "batch", "many flags"],
)
def test_a_server_answers_as_this_process_does(arguments: list[str], server: str) -> None:
    remote = create(*TOY, *arguments, "--base-url", server)
    local = create(*TOY, *arguments)
    assert remote.exit_code == local.exit_code == 0, remote.stderr + local.stderr
    assert same_parts(json.loads(remote.stdout)) == same_parts(json.loads(local.stdout))


def test_an_error_of_a_server_is_the_same_as_in_process(server: str) -> None:
    remote = create(*TOY, "Once", "--n", "500", "--base-url", server, "--format-error", "json")
    local = create(*TOY, "Once", "--n", "500", "--format-error", "json")
    assert remote.exit_code == local.exit_code == 4
    assert remote.stderr == local.stderr


def test_a_stream_is_passed_through(server: str) -> None:
    lines = create(*TOY, "Once", "--stream", "--format", "jsonl", "--base-url", server).stdout.splitlines()
    whole = json.loads(create(*TOY, "Once").stdout)
    assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == whole["choices"][0]["text"]


def test_a_model_that_is_not_served_exits_with_code_4_and_a_suggestion(server: str) -> None:
    result = create("-m", "tpy", "Once", "--base-url", server)
    assert result.exit_code == 4
    assert "Did you mean 'toy'?" in result.stderr
    assert f"`onward models list --base-url {server}` shows" in result.stderr
    assert f"{server} serves: toy, gpt-3.5-" in create("-m", "curie", "Once", "--base-url", server).stderr


@pytest.mark.parametrize(
    "command",
    [("score", "in.txt", "-m"), ("batch", "run", "in.jsonl", "-o", "out.jsonl", "-m"), ("tokenize", "Once", "-m"),
     ("completions", "create", "Once", "--stream", "-m"), ("models", "show")],
    ids=lambda command: command[0],
)  # fmt: skip
def test_every_command_says_which_models_a_server_has(server: str, command: tuple[str, ...]) -> None:
    Path("in.txt").write_text("A fox.", encoding="utf-8")
    Path("in.jsonl").write_text('{"custom_id": "a", "body": {"model": "toy", "prompt": "A"}}\n', encoding="utf-8")
    near = onward(*command, "tpy", "--base-url", server)
    assert near.exit_code == 4 and "Did you mean 'toy'?" in near.stderr, near.stderr
    assert f"`onward models list --base-url {server}` shows" in near.stderr
    far = onward(*command, "curie", "--base-url", server)
    assert far.exit_code == 4 and f"{server} serves: toy, gpt-3.5-" in far.stderr, far.stderr


def test_models_of_a_server_are_listed_and_shown(server: str) -> None:
    listed = json.loads(onward("models", "list", "--base-url", server).stdout)
    assert [each["id"] for each in listed["data"]] == ["toy", *OPENAI_NAMES]
    assert json.loads(onward("models", "show", "toy", "--base-url", server).stdout)["object"] == "model"
    assert onward("models", "show", "nope", "--base-url", server).exit_code == 4


def test_tokens_of_a_server_are_those_of_this_process(server: str) -> None:
    remote = json.loads(onward("tokenize", "once upon", "-m", "toy", "--base-url", server).stdout)
    local = json.loads(onward("tokenize", "once upon", "-m", "toy").stdout)
    del local["bytes"]
    assert remote == local
