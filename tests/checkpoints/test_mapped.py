"""Mapped model files: pages that were read can be dropped."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from onward.checkpoints.gguf import read_gguf
from onward.checkpoints.mapped import FileWatch, drop_pages
from onward.residency import mappings
from tests.checkpoints.making import write_gguf
from tests.checkpoints.tiny import tiny


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="madvise and /proc of Linux")
def test_pages_that_were_read_are_dropped_and_read_again(tmp_path: Path) -> None:
    metadata, _ = tiny("llama")
    size = 1 << 20
    tensors = {name: np.full((size // 256, 64), value, np.float32) for name, value in (("a", 1.0), ("b", 2.0))}
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    read = read_gguf(path).tensors
    before = {name: tensor.floats() for name, tensor in read.items()}

    def resident_bytes() -> int:
        smaps = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
        return sum(each.resident_bytes for each in mappings(smaps, (path.name,)) if each.path == str(path))

    assert resident_bytes() >= 2 * size
    drop_pages(read["a"].data)
    assert resident_bytes() <= size + 64 * 1024  # partial pages at a tensor's ends may stay
    drop_pages(read["b"].rows(0, size // 512))
    assert resident_bytes() <= size // 2 + 64 * 1024
    for name, tensor in read.items():
        np.testing.assert_array_equal(tensor.floats(), before[name])
    drop_pages(before["a"])


def test_a_file_that_can_no_longer_be_inspected_counts_as_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system, after another machine has replaced the file."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"a")
    watch = FileWatch([path])

    def stale(_: int) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", stale)
        watch.require_unchanged()
    path.write_bytes(b"ab")
    with pytest.raises(RuntimeError, match=r"m\.gguf was written to"):
        watch.require_unchanged()
    watch.close()
