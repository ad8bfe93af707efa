"""Conversions of a base with several adapters share the base's weights, and compute the same."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from onward.runtimes.gguf_format import GGUFFormat
from onward.runtimes.openvino.conversion_cache import conversions, remove, shrink
from onward.runtimes.openvino.joined_files import GRANULARITY, begins, joined
from onward.runtimes.options import RuntimeOptions
from tests.checkpoints.test_adapter import RANK, changes, gguf, tuned, write_peft
from tests.checkpoints.test_architectures import check_logits
from tests.checkpoints.tiny import tiny

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are joined in memory on Linux only")


def files(cache: Path) -> dict[str, dict[str, Path]]:
    """The files of each conversion, by name."""
    return {each.name: {path.name: path for path in each.path.iterdir()} for each in conversions(cache)}


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A cache with a base and two adapters of one layer each, that were compared with the reference."""
    metadata, tensors = tiny("llama")
    path = gguf(tmp_path / "m.gguf", metadata, tensors)
    check_logits(GGUFFormat(), path, metadata, tensors, cache=tmp_path)
    for layer in ("blk.0.attn_q.weight", "blk.1.ffn_down.weight"):
        pairs = {layer: changes(tensors, "llama")[layer]}
        adapter = write_peft(tmp_path / layer, "llama", pairs, metadata)
        expected = tuned(tensors, pairs, 6 / RANK)
        check_logits(GGUFFormat(), path, metadata, expected, cache=tmp_path, adapter=adapter)
    return tmp_path


def test_adapters_of_a_base_have_its_weights_and_their_own(served: Path) -> None:
    found = files(served)
    [base] = [each for each in found.values() if "shared_model.bin" not in each]
    adapters = [each for each in found.values() if "shared_model.bin" in each]
    whole = base["openvino_model.bin"].stat()
    assert len(adapters) == 2 and whole.st_nlink == 3
    for each in adapters:
        assert each["shared_model.bin"].stat().st_ino == whole.st_ino
        assert each["openvino_model.bin"].stat().st_size < whole.st_size / 4
    stored = {path.stat().st_ino: path.stat().st_size for each in found.values() for path in each.values()}
    assert sum(each.num_bytes for each in conversions(served)) == pytest.approx(sum(stored.values()), abs=3)


@pytest.mark.slow
def test_an_adapter_outlives_the_conversion_of_its_base(served: Path) -> None:
    for each in conversions(served):
        if not (each.path / "shared_model.bin").exists():
            remove(each)
    metadata, tensors = tiny("llama")
    layer = "blk.0.attn_q.weight"
    expected = tuned(tensors, {layer: changes(tensors, "llama")[layer]}, 6 / RANK)
    check_logits(GGUFFormat(), served / "m.gguf", metadata, expected, cache=served, adapter=served / layer)
    assert len(conversions(served)) == 2  # nothing was converted again


@pytest.mark.slow
def test_room_is_made_until_shared_files_are_gone(served: Path) -> None:
    last = conversions(served)[0].path
    limit = 2 * max(each.num_bytes for each in conversions(served))
    shrink(served, limit, kept=[last])
    assert sum(each.num_bytes for each in conversions(served)) <= limit or len(conversions(served)) == 1


def test_without_hard_links_a_conversion_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Path) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    metadata, tensors = tiny("qwen2")
    pairs = changes(tensors, "qwen2")
    adapter = write_peft(tmp_path / "a", "qwen2", pairs, metadata)
    path = gguf(tmp_path / "m.gguf", metadata, tensors)
    expected = tuned(tensors, pairs, 6 / RANK)
    whole = check_logits(GGUFFormat(), path, metadata, expected, cache=tmp_path, adapter=adapter)
    assert not any("shared_model.bin" in each for each in files(tmp_path).values())
    monkeypatch.undo()
    shared = check_logits(GGUFFormat(), path, metadata, expected, cache=tmp_path / "other", adapter=adapter)
    assert any("shared_model.bin" in each for each in files(tmp_path / "other").values())
    assert shared.fingerprint == whole.fingerprint


def test_an_adapter_without_a_cache_is_converted_alone(tmp_path: Path) -> None:
    metadata, tensors = tiny("llama")
    adapter = write_peft(tmp_path / "a", "llama", changes(tensors, "llama"), metadata)
    said: list[str] = []
    options = RuntimeOptions(runtime="openvino", threads=1, kv_memory=8_000_000, adapter=adapter)
    GGUFFormat().load(gguf(tmp_path / "m.gguf", metadata, tensors), options, said.append).model.close()
    assert len([line for line in said if line.startswith("Converting")]) == 1


def test_files_are_joined_in_memory(tmp_path: Path) -> None:
    contents = [b"a" * (GRANULARITY + 5), b"", b"bc" * 700]
    paths = [tmp_path / str(number) for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    array = np.frombuffer(memory := joined(paths), np.uint8)
    for content, begin in zip(contents, begins([len(each) for each in contents])[:-1], strict=True):
        assert array[begin : begin + len(content)].tobytes() == content
    assert not array[GRANULARITY + 5 : 2 * GRANULARITY].any()
    memory.madvise(mmap.MADV_DONTNEED)
    assert array[0] == ord("a")
    with pytest.raises(FileNotFoundError):
        joined([tmp_path / "none"])
