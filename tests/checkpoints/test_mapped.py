"""Mapped model files: pages that were read can be dropped."""

from __future__ import annotations

import errno
import itertools
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from onward.checkpoints import cursor
from onward.checkpoints import mapped as mapped_module
from onward.checkpoints.gguf import read_gguf
from onward.checkpoints.mapped import FileWatch, drop_pages
from onward.checkpoints.read import read_checkpoint
from onward.checkpoints.tensor import few_floats
from onward.errors import CheckpointError
from onward.residency import mappings
from tests.checkpoints.hugging_face import write_folder
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


@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be cut short there")
def test_metadata_stay_what_they_are_in_a_file_that_is_cut_short_and_small_tensors_are_an_error(tmp_path: Path) -> None:
    """In mapped memory, both would be a signal that ends the process."""
    metadata, arrays = tiny("llama")
    words = [f"word {number}" for number in range(1000)]
    path = write_gguf(tmp_path / "m.gguf", metadata | {"words": words, "numbers": list(range(1000))}, arrays)
    found = read_gguf(path)
    norm = found.tensors["output_norm.weight"]
    expected = norm.floats()
    np.testing.assert_array_equal(few_floats(norm, "m"), expected)
    os.truncate(path, 8)
    assert list(found.metadata["words"]) == words  # type: ignore[arg-type]
    assert list(found.metadata["numbers"]) == list(range(1000))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"m\.gguf was cut short while it was read"):
        few_floats(norm, "m")


@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be cut short there")
@pytest.mark.parametrize("num_reads", range(4))
@pytest.mark.parametrize("name", ["m.gguf", "model.safetensors"])
def test_a_file_that_is_cut_short_between_two_reads_is_an_error(
    name: str, num_reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read, count = tmp_path / name, mapped_module._read, itertools.count()
    if name == "m.gguf":
        write_gguf(file, *tiny("llama"))
    else:
        write_folder(tmp_path, "llama")
    size = file.stat().st_size

    def cut(descriptor: int, length: int, begin: int) -> bytes:
        if os.fstat(descriptor).st_size == size and next(count) == num_reads:
            os.truncate(file, 8)
        return read(descriptor, length, begin)

    monkeypatch.setattr(cursor, "_WINDOW_BYTES", 64)
    monkeypatch.setattr(mapped_module, "_read", cut)
    if name == "m.gguf" or num_reads < 2:
        with pytest.raises(CheckpointError, match="was cut short while it was read"):
            read_checkpoint(file if name == "m.gguf" else tmp_path)
    else:
        read_checkpoint(tmp_path)


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
