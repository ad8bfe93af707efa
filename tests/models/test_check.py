"""Every fault of a folder is one clear sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.errors import ModelFolderError
from onward.models.check import check_folder, faults


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with all that the check looks for."""
    (tmp_path / "openvino_model.xml").write_text("<net/>")
    (tmp_path / "openvino_model.bin").write_bytes(b"weights")
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_a_complete_folder_has_no_faults(folder: Path) -> None:
    assert faults(folder) == []
    check_folder(folder)


@pytest.mark.parametrize("name", ["openvino_model.xml", "openvino_model.bin", "tokenizer.json"])
def test_a_missing_file_is_the_one_fault(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (fault,) = faults(folder)
    assert f"lacks {name}" in fault
    with pytest.raises(ModelFolderError, match=name):
        check_folder(folder)


def test_a_config_may_be_missing(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert faults(folder) == []


def test_an_empty_file_counts_as_broken(folder: Path) -> None:
    (folder / "openvino_model.bin").write_bytes(b"")
    assert "is empty" in faults(folder)[0]


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
@pytest.mark.parametrize(("content", "words"), [("{", "not valid JSON"), ("[]", "not a JSON object")])
def test_broken_json_is_told(folder: Path, name: str, content: str, words: str) -> None:
    (folder / name).write_text(content)
    (fault,) = faults(folder)
    assert name in fault
    assert words in fault


@pytest.mark.parametrize(
    ("file", "words"),
    [("model.safetensors", "optimum-cli"), ("m.gguf", "GGUF"), ("notes.txt", "no OpenVINO model")],
)
def test_a_folder_of_another_kind_of_model_is_told_what_to_do(tmp_path: Path, file: str, words: str) -> None:
    (tmp_path / file).write_text("")
    (tmp_path / "tokenizer.json").write_text("{}")
    (fault,) = faults(tmp_path)
    assert words in fault
    assert ("pip install 'optimum-intel[openvino]'" in fault) is (words != "GGUF")


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    assert len(faults(tmp_path)) == 2


def test_what_is_no_folder_is_told(tmp_path: Path) -> None:
    assert faults(tmp_path / "nothing") == [
        f"{tmp_path / 'nothing'} is not a folder: give the folder that holds openvino_model.xml."
    ]
