"""Weights as memory: what OpenVINO has copied leaves the process, and nothing is lost."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from onward.errors import ModelFolderError
from onward.residency import mappings
from onward.runtimes.openvino import mapped_weights
from onward.runtimes.openvino.mapped_weights import MappedWeights


def resident_bytes(path: Path) -> int:
    smaps = Path("/proc/self/smaps").read_text(errors="replace")
    return sum(each.resident_bytes for each in mappings(smaps, (path.name,)) if each.path == str(path))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="madvise and /proc of Linux")
def test_pages_that_were_read_leave_the_process_and_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights_of_a_test.bin"
    content = np.arange(1 << 22, dtype=np.uint32)
    content.tofile(path)
    monkeypatch.setattr(mapped_weights, "MIN_DROPPED_BYTES", 1)
    monkeypatch.setattr(mapped_weights, "_DROP_SECONDS", 0.001)
    weights = MappedWeights(path)
    assert np.array_equal(weights.tensor.data.view(np.uint32), content)
    assert resident_bytes(path) == content.nbytes
    with weights.pages_dropped():
        for _ in range(10_000):  # a guard: the thread has nothing to wait for
            if resident_bytes(path) == 0:
                break
        assert resident_bytes(path) == 0
        assert np.array_equal(weights.tensor.data.view(np.uint32), content)
    assert all(thread.name != "onward-pages" for thread in threading.enumerate())


def test_a_file_that_is_missing_is_refused_and_an_empty_one_is_no_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"has no openvino_model.bin"):
        MappedWeights(tmp_path / "openvino_model.bin")
    (tmp_path / "empty.bin").touch()
    weights = MappedWeights(tmp_path / "empty.bin")
    with weights.pages_dropped():
        assert weights.tensor.data.size == 0
