"""Small models that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onward.runtimes.openvino.load import load_model
from onward.runtimes.openvino.model import OpenVINOModel
from tests.runtimes.openvino.tiny_ir import Shape, write_folder

KV_MEMORY = 8 << 20


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tiny", Shape())


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Iterator[OpenVINOModel]:
    """A model that tests share: each must write the blocks that it uses."""
    model = load_model(tiny_folder)
    yield model
    model.close()
