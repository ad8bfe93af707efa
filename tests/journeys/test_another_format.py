"""A format that is added to the table works everywhere, without other changes."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from pathlib import Path

import click
import pytest

import onward
from onward.cli.completers import model_names
from onward.compose import compose
from onward.errors import ModelFolderError, ModelNameError
from onward.model_files import formats
from onward.models.resolve import models_here, resolve
from onward.runtimes import table
from onward.settings import Settings
from tests.cli.conftest import onward as command
from tests.journeys.one_file_format import CONTENT, NOTE, OneFile, OneFileRuntime
from tests.models.doors import hub_downloads
from tests.processes import served


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `small.onefile` and `big/big.onefile` in it, and their format in the table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("ONWARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, OneFile))
    monkeypatch.setattr(table, "RUNTIMES", (*table.RUNTIMES, OneFileRuntime()))
    (tmp_path / "small.onefile").write_text(CONTENT, encoding="utf-8")
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "big.onefile").write_text(CONTENT, encoding="utf-8")
    return tmp_path


def test_files_and_folders_are_resolved(folder: Path) -> None:
    assert (resolve("small.onefile").id, resolve("./big").id) == ("small", "big")
    assert resolve("small.onefile").files.format == "OneFile"
    assert resolve("./big").size_bytes == len(CONTENT)


def test_a_damaged_file_of_another_format_is_reported(folder: Path) -> None:
    (folder / "small.onefile").write_text("damaged", encoding="utf-8")
    with pytest.raises(ModelFolderError, match=r"small\.onefile is damaged"):
        resolve("./small.onefile")
    result = command("completions", "create", "--model", "small.onefile", "Once")
    assert result.exit_code == 1 and "small.onefile is damaged: download it again." in result.stderr


def test_messages_name_the_format(folder: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(ModelFolderError, match=r"contains no model .*GGUF, safetensors, OpenVINO IR, OneFile"):
        resolve("./empty")
    (folder / "empty" / "pytorch_model.bin").touch()
    with pytest.raises(ModelFolderError, match=r"Convert it with .* or `onefile .*empty`\.$"):
        resolve("./empty")
    with pytest.raises(ModelNameError, match=r"the path of a model \(GGUF, safetensors, OpenVINO IR, OneFile\)\.$"):
        resolve("./nothing")


def test_the_hub_is_searched_for_another_format(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "hub").mkdir()
    asked: list[list[str]] = []

    def download(*, allow_patterns: list[str], **_: object) -> str:
        asked.append(allow_patterns)
        if "*.onefile" in allow_patterns:
            (folder / "hub" / "m.onefile").write_text(CONTENT, encoding="utf-8")
        return str(folder / "hub")

    hub_downloads(monkeypatch, download)
    found = resolve("org/name")
    assert (found.id, found.files.format) == ("org/name", "OneFile")
    assert asked[-1] == ["*.onefile"] and len(asked) == 3


def test_a_model_of_another_format_is_listed_shown_and_completed(folder: Path) -> None:
    snapshot = folder / "hub" / "models--org--one" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "m.onefile").write_text(CONTENT, encoding="utf-8")
    listed = {each["id"]: each for each in json.loads(command("models", "list").stdout)["data"]}
    assert listed.keys() == {"storyteller", "org/one", "./big", "./small.onefile"}
    assert listed["./small.onefile"]["bytes"] == len(CONTENT)
    shown = json.loads(command("models", "show", "small.onefile").stdout)
    assert (shown["format"], shown["context_length"], shown["kind"]) == ("OneFile", 99, "one file")
    context = click.Context(click.Command("create"))
    option = click.Option(["--model"])
    assert model_names(context, option, "")[0] == "storyteller"
    assert model_names(context, option, "")[-2:] == ["big", "small.onefile"]
    assert model_names(context, option, "sma") == ["small.onefile"]


def test_the_doctor_looks_for_the_packages_of_another_format(folder: Path) -> None:
    findings = {each["subject"]: each for each in json.loads(command("doctor").stdout)["findings"]}
    assert findings["onefile-runtime"]["state"] == "bad" and findings["llvmlite"]["state"] == "good"


def test_a_model_of_another_format_tokenizes_and_completes_in_this_process(folder: Path) -> None:
    assert json.loads(command("tokenize", "-m", "small.onefile", "ab").stdout)["tokens"] == [97, 98]
    with onward.Onward(folder / "big") as client:
        completion = client.completions.create(prompt="Once", max_tokens=4, seed=1)
    assert completion.model == "big" and completion.usage is not None and completion.usage.completion_tokens == 4


@pytest.mark.slow
def test_a_model_of_another_format_is_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent.parent)
    with served(model=str(folder / "small.onefile"), module="tests.journeys.one_file_format") as url:
        body = json.dumps({"model": "small", "prompt": "Once", "max_tokens": 4}).encode()
        asked = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(asked) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4


def test_notes_and_stages_of_another_runtime_are_reported(folder: Path) -> None:
    said: list[str] = []
    asyncio.run(compose(Settings(model=("small.onefile",)), said.append).aclose())
    assert said == ["Loading small.onefile", "Opening one file", NOTE]


def test_a_folder_that_was_deleted_completes_nothing(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    assert models_here() == []
