"""onward.toml of the folder that a command happens to run in: announced, and limited in what it chooses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import create, onward

ARGUMENTS = ("Once", "--seed", "1", "--max-tokens", "2")
NOTHING_CACHED = "is not in the local cache: download it with `onward pull"


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each lookup in the hub's cache, whether it was allowed to download. A download fails the test."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    looks: list[bool] = []

    def download(*, local_files_only: bool, **_: object) -> str:
        looks.append(not local_files_only)
        raise LocalEntryNotFoundError("none")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return looks


def test_a_file_of_the_folder_is_announced_off_a_terminal_too() -> None:
    Path("onward.toml").write_text('model = ["toy"]\nthreads = 1\n', encoding="utf-8")
    result = create(*ARGUMENTS)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["model"] == "toy"
    assert result.stderr == "onward: Using onward.toml of this folder for model, threads.\n"


def test_a_file_of_the_folder_chooses_no_download(hub: list[bool]) -> None:
    Path("onward.toml").write_text(
        'model = ["org/evil"]\n[alias]\n"gpt-3.5-turbo-instruct" = "org/evil"\n', encoding="utf-8"
    )
    alias = ("--model", "gpt-3.5-turbo-instruct")
    for result in (
        create(*ARGUMENTS),
        create(*ARGUMENTS, *alias),
        onward("tokenize", "a"),
        onward("tokenize", "a", *alias),
    ):
        assert result.exit_code != 0
        assert "org/evil " + NOTHING_CACHED in result.stderr
        assert "Using onward.toml of this folder for model, alias" in result.stderr
    assert hub
    assert not any(hub)


def test_openais_names_do_not_download_what_a_file_of_the_folder_chose(hub: list[bool]) -> None:
    Path("onward.toml").write_text('model = ["org/evil"]\n', encoding="utf-8")
    assert create(*ARGUMENTS, "--model", "davinci-002").exit_code != 0
    assert onward("tokenize", "a", "--model", "davinci-002").exit_code != 0
    assert hub
    assert not any(hub)


def test_openais_names_are_answered_by_the_model_of_the_settings() -> None:
    Path("onward.toml").write_text('model = ["toy"]\n', encoding="utf-8")
    assert json.loads(create(*ARGUMENTS, "--model", "gpt-3.5-turbo-instruct").stdout)["model"] == "toy"


def test_a_model_that_was_named_may_be_downloaded(hub: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("onward.toml").write_text('model = ["org/evil"]\n', encoding="utf-8")
    create(*ARGUMENTS, "--model", "org/mine")
    onward("tokenize", "Once", "--model", "org/mine")
    monkeypatch.setenv("ONWARD_CONFIG", "onward.toml")
    create(*ARGUMENTS)
    assert len(hub) == 3
    assert all(hub)


def test_offline_never_downloads(hub: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_OFFLINE", "true")
    assert NOTHING_CACHED in create(*ARGUMENTS, "--model", "org/mine").stderr
    assert hub == [False]


def test_a_batch_announces_the_file_once(tmp_path: Path) -> None:
    Path("onward.toml").write_text("threads = 1\n", encoding="utf-8")
    body = {"model": "toy", "prompt": "a", "max_tokens": 1}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    result = onward("batch", "run", "in.jsonl", "--output", "out.jsonl")
    assert result.stderr.count("Using onward.toml of this folder") == 1, result.stderr


def test_a_filter_that_is_code_is_refused() -> None:
    Path("onward.toml").write_text('[[content_filter]]\nname = "mine"\nentry_point = "mine"\n', encoding="utf-8")
    result = create(*ARGUMENTS, "--model", "toy")
    assert result.exit_code == 1
    assert "would run code" in result.stderr
    assert "mine" not in sys.modules
