"""OpenVINO is an extra, for IR folders only; the messages where it is missing, or requested for other models."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from onward.errors import SetupError
from onward.model_files.openvino_ir import OpenVINOFiles
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model
from onward.values import WeightForm
from tests.models.story_folder import write_story_folder


def test_ir_folders_are_tested() -> None:
    if importlib.util.find_spec("openvino") is None:
        pytest.skip("tests/runtimes/openvino needs the extra: pip install 'onward[openvino]'")


def test_an_ir_folder_without_the_extra_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    folder = write_story_folder(tmp_path / "model")
    with pytest.raises(SetupError, match=r"which needs OpenVINO: `pip install 'onward\[openvino\]'`, or use the GGUF"):
        load_model(OpenVINOFiles(folder), RuntimeOptions(), lambda line: None)


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_weights_of_an_ir_folder_are_not_rounded(form: WeightForm, tmp_path: Path) -> None:
    folder = write_story_folder(tmp_path / "model")
    with pytest.raises(SetupError, match=f"computed as they were exported: --weights {form} is for GGUF"):
        load_model(OpenVINOFiles(folder), RuntimeOptions(weights=form), lambda line: None)
