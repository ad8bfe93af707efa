"""Each problem of a model on disk is reported in one clear sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.errors import ModelFolderError
from onward.models.check import check_model, problems


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with everything that the check looks for."""
    (tmp_path / "openvino_model.xml").write_text("<net/>", encoding="utf-8")
    (tmp_path / "openvino_model.bin").write_bytes(b"weights")
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    return tmp_path


def test_a_complete_folder_has_no_problems(folder: Path) -> None:
    assert problems(folder) == []
    assert check_model(folder).format == "OpenVINO IR"


@pytest.mark.parametrize("name", ["openvino_model.xml", "openvino_model.bin", "tokenizer.json"])
def test_a_missing_file_is_the_only_problem(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (problem,) = problems(folder)
    assert f"has no {name}: " in problem
    with pytest.raises(ModelFolderError, match=name):
        check_model(folder)


def test_config_json_is_optional(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert problems(folder) == []


def test_an_empty_file_counts_as_broken(folder: Path) -> None:
    (folder / "openvino_model.bin").write_bytes(b"")
    assert "is empty" in problems(folder)[0]


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
@pytest.mark.parametrize(("content", "words"), [("{", "not valid JSON"), ("[]", "not a JSON object")])
def test_broken_json_is_reported(folder: Path, name: str, content: str, words: str) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    (problem,) = problems(folder)
    assert name in problem
    assert words in problem


def test_a_folder_with_a_model_in_another_format_is_reported_with_the_command_that_converts_it(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_text("", encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    (problem,) = problems(tmp_path)
    assert problem.startswith(f"{tmp_path} contains no model that Onward can read (GGUF, safetensors, OpenVINO IR). ")
    assert f"Convert it with `optimum-cli export openvino --model {tmp_path} " in problem
    assert "pip install 'optimum-intel[openvino]==" in problem
    with pytest.raises(ModelFolderError, match="contains no model"):
        check_model(tmp_path)


def test_of_a_folder_without_a_model_the_folders_in_it_that_have_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("", encoding="utf-8")
    assert problems(tmp_path)[0].endswith(
        "Pass the path of a GGUF file, or a folder with config.json, a tokenizer and .safetensors files."
    )
    for name in "gfedcba":
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.gguf").write_text("", encoding="utf-8")
    assert problems(tmp_path)[0].endswith(
        f"Pass one of its folders: {', '.join(str(tmp_path / name) for name in 'abcde')}, …."
    )


def test_a_folder_whose_entries_may_be_listed_only_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    is_dir = Path.is_dir

    def closed(path: Path) -> bool:
        if path.parent == tmp_path:
            raise PermissionError(13, "Permission denied")
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", closed)
    assert problems(tmp_path)[0].startswith(f"{tmp_path} contains no model that Onward can read")


@pytest.mark.parametrize("is_file", [True, False])
def test_a_gguf_file_that_is_empty_is_reported(tmp_path: Path, is_file: bool) -> None:
    (tmp_path / "m.gguf").write_text("", encoding="utf-8")
    (problem,) = problems(tmp_path / "m.gguf" if is_file else tmp_path)
    assert problem == f"{tmp_path / 'm.gguf'} is empty: copy or download it again."


def test_a_folder_with_safetensors_and_a_gguf_file_is_checked_as_safetensors(tmp_path: Path) -> None:
    for name in ("m.gguf", "model.safetensors"):
        (tmp_path / name).write_text("", encoding="utf-8")
    found = problems(tmp_path)
    assert f"{tmp_path} has no config.json: copy or download it again." in found
    assert f"{tmp_path / 'model.safetensors'} is empty: copy or download it again." in found


def test_all_problems_are_reported_at_once(folder: Path) -> None:
    (folder / "openvino_model.bin").unlink()
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    (folder / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ModelFolderError) as raised:
        check_model(folder)
    for words in ("has no openvino_model.bin", "tokenizer.json is not valid JSON", "config.json is not a JSON object"):
        assert words in str(raised.value)


def test_a_path_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    assert problems(tmp_path / "nothing") == [
        f"{tmp_path / 'nothing'} does not exist: pass the path of a model (GGUF, safetensors, OpenVINO IR)."
    ]


def test_a_folder_that_cannot_be_opened_has_no_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(PermissionError):
        (folder / "openvino_model.xml").exists()
    monkeypatch.setattr("onward.models.check.no_model", lambda path: "no model")
    assert problems(folder) == ["no model"]
