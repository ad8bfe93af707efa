"""`onward convert`: what it writes answers as the file does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

import onward as package
from tests.checkpoints.hugging_face import write_folder
from tests.checkpoints.making import floats, write_gguf
from tests.checkpoints.tiny import tiny
from tests.cli.conftest import onward
from tests.models.story_folder import write_story_folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONWARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(model: Path, weights: Literal["auto", "int8"] = "auto") -> str:
    with package.Onward(model=str(model), kv_memory="8MB", weights=weights, runtime="openvino") as client:
        return client.completions.create(prompt="abc", max_tokens=12, temperature=0).choices[0].text


@pytest.mark.parametrize("kind", ["gguf", pytest.param("folder", marks=pytest.mark.slow)])
def test_the_folder_answers_as_its_source_does(kind: str, folder: Path) -> None:
    if kind == "folder":
        write_folder(folder / "source", "llama")
        source = folder / "source"
    else:
        metadata, tensors = tiny("llama")
        stored = {name: floats(array) for name, array in tensors.items()}
        source = write_gguf(folder / "source.gguf", metadata, stored)
    result = onward("convert", str(source), "made", "--weights", "int8")
    assert result.exit_code == 0, result.stderr
    made = json.loads(result.stdout)
    assert made["path"] == "made" and made["bytes"] > 50_000
    assert json.loads(onward("models", "show", "./made").stdout)["format"] == "OpenVINO IR"
    assert answer(folder / "made") == answer(source, weights="int8")
    again = onward("convert", str(source), "made")
    assert again.exit_code == 1 and "made exists: choose a folder that does not exist" in again.stderr
    assert not list(folder.glob(".part-*"))


def test_what_is_converted_already_is_said(folder: Path) -> None:
    result = onward("convert", str(write_story_folder(folder / "exported")), "made")
    assert result.exit_code == 1 and "is OpenVINO IR already: copy the folder" in result.stderr
    assert not (folder / "made").exists()
