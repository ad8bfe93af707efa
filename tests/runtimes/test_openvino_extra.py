"""OpenVINO is an extra, for IR folders only; what others are told who lack it, or ask for it elsewhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from onward.errors import SetupError
from onward.models.resolve import built_in_folder
from onward.runtimes.gguf_format import GGUFFormat
from onward.runtimes.openvino.format import OpenVINOFormat
from onward.runtimes.options import RuntimeOptions
from tests.models.story_folder import write_story_folder


def test_ir_folders_are_tested() -> None:
    if importlib.util.find_spec("openvino") is None:
        pytest.skip("tests/runtimes/openvino needs the extra: pip install 'onward[openvino]'")


def test_an_ir_folder_without_the_extra_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    folder = write_story_folder(tmp_path / "model")
    with pytest.raises(SetupError, match=r"which needs OpenVINO: `pip install 'onward\[openvino\]'`, or use the GGUF"):
        OpenVINOFormat().load(folder, RuntimeOptions(), lambda line: None)


def test_each_runtime_refuses_what_it_does_not_compute(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"is not OpenVINO IR, .* remove --runtime openvino"):
        GGUFFormat().load(built_in_folder("storyteller"), RuntimeOptions(runtime="openvino"), lambda line: None)
    with pytest.raises(SetupError, match=r"is OpenVINO IR, .* remove --runtime native"):
        OpenVINOFormat().load(tmp_path, RuntimeOptions(runtime="native"), lambda line: None)
