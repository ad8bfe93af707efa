"""Mapped model files: what was read can leave the process."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from onward.checkpoints.checkpoint import read_checkpoint
from onward.checkpoints.mapped import drop_pages
from onward.residency import mappings
from tests.checkpoints.making import floats, write_gguf
from tests.checkpoints.tiny import tiny


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="madvise and /proc of Linux")
def test_what_was_read_leaves_the_process_and_returns(tmp_path: Path) -> None:
    metadata, tensors = tiny("llama")
    path = write_gguf(tmp_path / "m.gguf", metadata, {name: floats(array) for name, array in tensors.items()})
    tensor = read_checkpoint(path).tensors["token_embd.weight"]
    before = tensor.floats()

    def resident_bytes() -> int:
        smaps = Path("/proc/self/smaps").read_text(errors="replace")
        return sum(each.resident_bytes for each in mappings(smaps, (path.name,)) if each.path == str(path))

    assert resident_bytes() > 0
    drop_pages(tensor.rows(1, 2))
    assert resident_bytes() == 0
    np.testing.assert_array_equal(tensor.floats(), before)
    drop_pages(before)
