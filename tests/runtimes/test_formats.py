"""The table of model formats, and the toy's entry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onward.errors import SetupError
from onward.models.resolve import built_in_folder
from onward.runtimes.formats import MODEL_FORMATS, format_of
from onward.runtimes.options import RuntimeOptions
from onward.runtimes.toy.format import ToyFormat


def test_the_table_is_cheap_to_import() -> None:
    code = "import sys, onward.runtimes.formats; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "openvino", "llvmlite", "tokenizers", "msgspec", "huggingface_hub"} & set(done.stdout.split())


def test_names_are_unique() -> None:
    names = [each.name for each in MODEL_FORMATS]
    assert sorted(set(names)) == sorted(names)


def test_the_built_in_models_have_their_formats(tmp_path: Path) -> None:
    for name, expected in (("storyteller", "GGUF"), ("toy", "toy")):
        found = format_of(built_in_folder(name))
        assert found is not None and found.name == expected
        assert found.problems(built_in_folder(name)) == []
    assert format_of(tmp_path) is None and format_of(tmp_path / "nothing") is None


def test_files_begin_with_the_one_that_dates_the_model(tmp_path: Path) -> None:
    folder = built_in_folder("storyteller")
    found = format_of(folder)
    assert found is not None
    assert [path.name for path in found.files(folder)] == ["storyteller.gguf"]
    (tmp_path / "openvino_model.xml").touch()
    (tmp_path / "openvino_model.bin").touch()
    (tmp_path / "tokenizer.json").touch()
    other = format_of(tmp_path)
    assert other is not None
    assert [path.name for path in other.files(tmp_path)] == [
        "openvino_model.xml",
        "openvino_model.bin",
        "tokenizer.json",
    ]


def test_facts_come_from_the_files() -> None:
    storyteller, toy = built_in_folder("storyteller"), built_in_folder("toy")
    found = format_of(storyteller)
    assert found is not None
    facts = found.facts(storyteller)
    assert (facts["context_length"], facts["vocabulary"], facts["kind"]) == (1024, 8192, "llama")
    assert (facts["quantisation"], facts["runtime"]) == ("Q8_0", "native")
    assert ToyFormat().facts(toy) == {"context_length": 2048, "vocabulary": 273, "kind": "toy"}


def write_toy(folder: Path, content: str) -> Path:
    (folder / "toy.json").write_text(content)
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
    (problem,) = ToyFormat().problems(write_toy(tmp_path, content))
    assert words in problem


def test_a_toy_has_the_size_that_its_file_states(tmp_path: Path) -> None:
    folder = write_toy(tmp_path, '{"blocks": 9, "context_length": 77}')
    loaded = ToyFormat().load(folder, RuntimeOptions(), lambda message: None)
    assert (loaded.model.blocks, loaded.model.context_length) == (9, 77)
    shorter = ToyFormat().load(folder, RuntimeOptions(context_length=50), lambda message: None)
    assert shorter.model.context_length == 50
    with pytest.raises(SetupError, match="was made for 77: request 77 or fewer"):
        ToyFormat().load(folder, RuntimeOptions(context_length=78), lambda message: None)
