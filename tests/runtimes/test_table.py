"""The table of runtimes, and the toy's entry."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from onward.errors import ModelFolderError, SetupError
from onward.model_files.formats import FORMATS
from onward.model_files.gguf import GGUFFiles
from onward.model_files.openvino_ir import OpenVINOFiles
from onward.model_files.toy import ToyFiles
from onward.models.resolve import built_in_folder
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import RUNTIMES, load_model, runtime_of
from onward.values import RuntimeName
from tests.checkpoints.tiny import write_tiny


def test_every_runtime_that_can_be_requested_is_in_the_table() -> None:
    names = [each.name for each in RUNTIMES]
    assert sorted(set(names)) == sorted(names)
    assert {*get_args(RuntimeName)} - {"auto"} <= {*names}


def test_each_format_has_a_runtime(tmp_path: Path) -> None:
    found = {each.format: runtime_of(each(tmp_path)).name for each in FORMATS}
    assert found == {"GGUF": "native", "safetensors": "native", "OpenVINO IR": "openvino", "toy": "toy"}


def test_each_runtime_refuses_what_it_does_not_compute(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"is not OpenVINO IR, .* remove --runtime openvino"):
        load_model(GGUFFiles(built_in_folder("storyteller")), RuntimeOptions(runtime="openvino"), lambda line: None)
    with pytest.raises(SetupError, match=r"is OpenVINO IR, .* remove --runtime native"):
        load_model(OpenVINOFiles(tmp_path), RuntimeOptions(runtime="native"), lambda line: None)


@pytest.mark.parametrize("wanted", get_args(RuntimeName))
def test_the_toy_is_computed_whatever_is_asked_for(wanted: str) -> None:
    assert runtime_of(ToyFiles(built_in_folder("toy")), wanted).name == "toy"


def test_a_toy_has_the_size_that_its_file_states(tmp_path: Path) -> None:
    (tmp_path / "toy.json").write_text('{"blocks": 9, "context_length": 77}', encoding="utf-8")
    files = ToyFiles(tmp_path)
    loaded = load_model(files, RuntimeOptions(), lambda message: None)
    assert (loaded.model.blocks, loaded.model.context_length) == (9, 77)
    shorter = load_model(files, RuntimeOptions(context_length=50), lambda message: None)
    assert shorter.model.context_length == 50
    with pytest.raises(SetupError, match="was made for 77: request 77 or fewer"):
        load_model(files, RuntimeOptions(context_length=78), lambda message: None)


def test_a_file_that_is_removed_while_it_is_loaded_is_reported_in_a_sentence(tmp_path: Path) -> None:
    files = GGUFFiles(write_tiny(tmp_path / "m.gguf", "llama"))
    files.checkpoint()
    (tmp_path / "m.gguf").unlink()
    with pytest.raises(ModelFolderError, match=r"m\.gguf cannot be read any more \(.*\): it was changed"):
        load_model(files, RuntimeOptions(), lambda line: None)
