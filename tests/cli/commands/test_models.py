"""`onward models`."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.checkpoints.tiny import write_tiny
from tests.runtimes.native.test_adapters import write_adapter

from ..conftest import onward


def fake_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (folder / name).write_text("x" * 10, encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")


def test_models_on_this_machine_are_listed_with_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_model(tmp_path / "here")
    fake_model(tmp_path / "hub" / "models--org--name" / "snapshots" / "abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    found = {each["id"]: each for each in json.loads(onward("models", "list").stdout)["data"]}
    assert found["./here"]["source"] == "folder" and found["./here"]["bytes"] == 22
    assert found["org/name"]["source"] == "hub" and found["org/name"]["owned_by"] == "org"
    assert found["storyteller"]["source"] == "built-in" and "toy" not in found
    text = onward("models", "list", "--format", "text").stdout
    assert "./here" in text and "22 B" in text and "on disk" in text


def test_a_model_folder_is_described() -> None:
    fake_model(Path("mine"))
    Path("mine/config.json").write_text('{"max_position_embeddings": 512, "vocab_size": 9}', encoding="utf-8")
    shown = json.loads(onward("models", "show", "./mine").stdout)
    assert (shown["id"], shown["format"], shown["problems"]) == ("mine", "OpenVINO IR", [])
    assert (shown["context_length"], shown["vocabulary"]) == (512, 9)
    assert "context_length  512" in onward("models", "show", "./mine", "--format", "text").stdout


def test_a_model_with_an_adapter_is_described_with_its_path(tmp_path: Path) -> None:
    base, adapter = write_tiny(tmp_path / "base.gguf", "llama"), write_adapter(tmp_path / "a.gguf", "llama", 1)
    shown = json.loads(onward("models", "show", f"{base}+{adapter}", "--format", "json").stdout)
    assert (shown["id"], shown["path"], shown["adapter"]) == ("base+a.gguf", str(base), str(adapter))
    assert "adapter" not in json.loads(onward("models", "show", str(base), "--format", "json").stdout)


def test_the_draft_model_that_the_settings_name_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_MODEL", "storyteller,toy")
    monkeypatch.setenv("ONWARD_DRAFT", "toy=toy")
    assert json.loads(onward("models", "show", "toy").stdout)["draft"] == "toy"
    assert "draft" not in json.loads(onward("models", "show", "storyteller").stdout)
    monkeypatch.setenv("ONWARD_DRAFT", "other=toy")
    assert "DRAFT other=… names a model that is not served" in onward("models", "show", "toy").stderr


def test_a_model_is_described_by_the_official_name_of_show_too() -> None:
    fake_model(Path("mine"))
    shown = onward("models", "show", "./mine").stdout
    assert onward("models", "retrieve", "./mine").stdout == shown
    assert onward("models", "retrieve", "--model", "./mine").stdout == shown
    for wrong in ([], ["./mine", "--model", "./mine"]):
        result = onward("models", "retrieve", *wrong)
        assert result.exit_code == 2
        assert "Name exactly one model, as an argument or with --model." in result.stderr


def test_the_official_delete_is_rejected() -> None:
    fake_model(Path("mine"))
    for arguments in (["./mine"], ["--model", "./mine"], ["--model", "m", "--base-url", "http://127.0.0.1:1/v1"], []):
        result = onward("models", "delete", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "`onward models list` shows the folder of every other model" in result.stderr
    assert Path("mine").is_dir()
    assert "delete" not in onward("models", "--help").stdout


def test_pull_prints_the_models_folder() -> None:
    fake_model(Path("mine"))
    assert json.loads(onward("models", "pull", "./mine").stdout)["path"] == "mine"
    assert onward("models", "pull", "./nowhere").exit_code == 4
    assert onward("models", "pull", "x", "--base-url", "http://127.0.0.1:1").exit_code == 2


def test_a_hub_that_cannot_be_reached_exits_with_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(**asked: object) -> str:
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    result = onward("models", "pull", "org/name")
    assert result.exit_code == 3
    assert "onward: org/name could not be downloaded (reset by peer)." in result.stderr


def test_a_mistyped_subcommand_is_recognised() -> None:
    result = onward("models", "lst")
    assert result.exit_code == 2
    assert "Unknown command 'lst'." in result.stderr
    if version("click") >= "8.2":  # older ones do not suggest commands
        assert "Did you mean 'list'?" in result.stderr
