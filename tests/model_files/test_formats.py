"""The table of model formats, and the toy's entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.model_files.formats import FORMATS, files_at
from onward.model_files.toy import ToyFiles
from onward.models.resolve import built_in_folder


def test_names_are_unique() -> None:
    names = [each.format for each in FORMATS]
    assert sorted(set(names)) == sorted(names)


def test_the_built_in_models_have_their_formats(tmp_path: Path) -> None:
    for name, expected in (("storyteller", "GGUF"), ("toy", "toy")):
        found = files_at(built_in_folder(name))
        assert found is not None and found.format == expected
        assert found.problems() == []
    assert files_at(tmp_path) is None and files_at(tmp_path / "nothing") is None


def test_files_begin_with_the_one_that_dates_the_model(tmp_path: Path) -> None:
    folder = built_in_folder("storyteller")
    found = files_at(folder)
    assert found is not None
    assert [path.name for path in found.paths()] == ["storyteller.gguf"]
    (tmp_path / "openvino_model.xml").touch()
    (tmp_path / "openvino_model.bin").touch()
    (tmp_path / "tokenizer.json").touch()
    other = files_at(tmp_path)
    assert other is not None
    assert [path.name for path in other.paths()] == [
        "openvino_model.xml",
        "openvino_model.bin",
        "tokenizer.json",
    ]


def test_facts_come_from_the_files() -> None:
    storyteller, toy = built_in_folder("storyteller"), built_in_folder("toy")
    found = files_at(storyteller)
    assert found is not None
    facts = found.facts()
    assert (facts["context_length"], facts["vocabulary"], facts["kind"]) == (1024, 8192, "llama")
    assert facts["quantisation"] == "Q8_0"
    assert ToyFiles(toy).facts() == {"context_length": 2048, "vocabulary": 273, "kind": "toy"}


def write_toy(folder: Path, content: str) -> Path:
    (folder / "toy.json").write_text(content, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"blocks": 8}', "context_length must be a positive integer"),
        ('{"blocks": 0, "context_length": 8}', "blocks must be a positive integer"),
        ('{"blocks": true, "context_length": 8}', "blocks must be a positive integer"),
    ],
)
def test_a_broken_toy_is_reported(tmp_path: Path, content: str, words: str) -> None:
    (problem,) = ToyFiles(write_toy(tmp_path, content)).problems()
    assert words in problem
