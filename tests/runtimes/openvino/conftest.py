"""Small models that are shared by the tests of this folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from onward.runtimes.openvino.model import OpenVINOModel

HAS_OPENVINO = importlib.util.find_spec("openvino") is not None
collect_ignore_glob = [] if HAS_OPENVINO else ["test_*.py"]
"""tests/runtimes/test_openvino_extra.py is skipped then, and says why."""

KV_MEMORY = 8 << 20


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.runtimes.openvino.tiny_ir import Shape, write_folder

    return write_folder(tmp_path_factory.mktemp("models") / "tiny", Shape())


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Iterator[OpenVINOModel]:
    """A model that tests share: each must write the blocks that it uses."""
    from onward.runtimes.openvino.load import load_model

    model = load_model(tiny_folder)
    yield model
    model.close()
