"""Adapters of one model in the same step: rows of each have the same bits as alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.engine.model import AdapterLoader, ModelRunner, Row
from onward.errors import MemoryTooSmall, ModelFolderError
from onward.kernels import memory
from onward.kernels.records import OWN
from onward.machine import AvailableMemory
from onward.model_files.gguf import GGUFFiles
from onward.runtimes.base import LoadedModel
from onward.runtimes.native import adapters as native_adapters
from onward.runtimes.native.panel_cache import PanelCache
from onward.runtimes.table import load_model
from tests.checkpoints.making import write_gguf
from tests.checkpoints.test_adapter import is_linear, write_gguf_adapter
from tests.checkpoints.tiny import tiny, write_tiny
from tests.examples import slow_but
from tests.runtimes.native.test_model import OPTIONS, tokens_of

NAMES = ["llama", "qwen3moe", "gemma2", "gpt2", "lfm2", "gemma4", "qwen35", "qwen35moe", "qwen3next"]
NUM_TOKENS = 40


def write_adapter(path: Path, name: str, seed: int, *, embeddings: bool = False) -> Path:
    """An adapter of some linear layers, different ones for each seed."""
    random = np.random.default_rng(seed)
    pairs: dict[str, tuple[Any, Any]] = {}
    for weight, values in tiny(name)[1].items():
        if (is_linear(weight, values) and random.random() < 0.7) or (embeddings and weight == "token_embd.weight"):
            rank = int(random.integers(1, 20))
            low = random.normal(size=(rank, values.shape[1])) / values.shape[1]
            pairs[weight] = low.astype(np.float32), random.normal(size=(len(values), rank)).astype(np.float32)
    return write_gguf_adapter(path, pairs, **{"general.architecture": name})


class Adapted:
    """A model with adapters, by the names of their files."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.loaded: LoadedModel = load_model(GGUFFiles(path), replace(OPTIONS, **options), lambda line: None)
        self.model: ModelRunner = self.loaded.model
        assert self.loaded.adapters is not None
        self.loader: AdapterLoader = self.loaded.adapters
        self.writer = self.loader._writer  # type: ignore[attr-defined]

    def add(self, path: Path) -> str:
        adapter, read = self.loader.read(path)
        self.loader.add(adapter, read)
        return adapter

    def logits(self, adapter: str, tokens: list[int], blocks: tuple[int, ...] = (0, 1)) -> bytes:
        return self.model.evaluate([Row(0, tokens, 0, blocks, len(tokens), adapter)]).tobytes()


@pytest.fixture(params=slow_but(["llama"], NAMES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def base(tmp_path: Path, name: str) -> Iterator[Adapted]:
    made = Adapted(write_tiny(tmp_path / "m.gguf", name), threads=2)
    yield made
    made.model.close()


def paths_of(folder: Path, name: str, count: int = 3) -> list[Path]:
    return [write_adapter(folder / f"{seed}.gguf", name, seed, embeddings=seed == 2) for seed in range(count)]


def test_rows_of_several_adapters_have_the_bits_of_each_alone(base: Adapted, name: str, tmp_path: Path) -> None:
    paths = paths_of(tmp_path, name)
    tokens = tokens_of(base.model, NUM_TOKENS)
    alone = {"": base.logits("", tokens)}
    for path in paths:
        single = Adapted(tmp_path / "m.gguf")
        adapter = single.add(path)
        alone[adapter] = single.logits(adapter, tokens)
        single.model.close()
    assert len(set(alone.values())) == len(alone), "an adapter changes nothing"
    assert [base.add(path) for path in paths] == [adapter for adapter in alone if adapter]
    assert {adapter: base.logits(adapter, tokens) for adapter in alone} == alone

    def mixed(order: list[str], cuts: list[int]) -> dict[str, bytes]:
        """The logits of all sequences, one per adapter, which are computed together, step by step."""
        found: dict[str, list[bytes]] = {adapter: [] for adapter in order}
        start = 0
        for size in cuts:
            rows = [
                Row(
                    index,
                    tokens[start : start + size],
                    start,
                    (2 * index, 2 * index + 1),
                    size - index % 2,
                    adapter,
                    index,
                )
                for index, adapter in enumerate(order)
            ]
            rows += [Row(9, tokens[:3], 0, (20,), 2, adapter, 9 + n) for n, adapter in enumerate(order[::-1])]
            logits = base.model.evaluate(rows)
            assert len(logits) == sum(row.outputs for row in rows)
            begin = 0
            for row in rows[: len(order)]:
                part = logits[begin : begin + row.outputs]
                found[row.adapter].append(part[-1].tobytes())
                begin += row.outputs
            start += size
        return {adapter: b"".join(parts) for adapter, parts in found.items()}

    size = base.model.vocab_size * 4
    cuts = [17, 3, 2, 18]
    ends = np.cumsum(cuts)
    expected = {
        adapter: b"".join(bits[(end - 1) * size : end * size] for end in ends) for adapter, bits in alone.items()
    }
    order = list(alone)
    assert mixed(order, cuts) == expected
    assert mixed(order[::-1], cuts) == expected


def test_an_adapter_that_leaves_changes_no_other_and_can_come_back(base: Adapted, name: str, tmp_path: Path) -> None:
    tokens = tokens_of(base.model, NUM_TOKENS)
    first, second = (base.add(path) for path in paths_of(tmp_path, name, 2))
    bits = {adapter: base.logits(adapter, tokens) for adapter in ("", first, second)}
    base.loader.remove(first)
    assert base.logits(second, tokens) == bits[second] and base.logits("", tokens) == bits[""]
    with pytest.raises(RuntimeError, match=f"The adapter {first} is not loaded"):
        base.logits(first, tokens)
    assert base.add(tmp_path / "0.gguf") == first
    assert base.logits(first, tokens) == bits[first]


def test_ten_adapters_hold_the_base_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter adds only its own matrices, and a tape over the base's memory."""
    made: list[str] = []
    place = PanelCache._place

    def noted(cache: PanelCache, group: Any, memory: Any) -> None:
        made.extend(source.name for source in group)
        place(cache, group, memory)

    monkeypatch.setattr(PanelCache, "_place", noted)
    base = Adapted(write_tiny(tmp_path / "m.gguf", "llama"))
    assert len(set(made)) == len(made)
    made.clear()
    allocated: list[int] = []

    def untouched(size: int) -> Any:
        allocated.append(size)
        return np.zeros(size, np.uint8)

    monkeypatch.setattr(memory, "untouched", untouched)
    ids = [base.add(write_adapter(tmp_path / f"{seed}.gguf", "llama", seed)) for seed in range(10)]
    assert len(set(ids)) == 10
    assert {name.rpartition(" ")[2] for name in made} == {"low", "high"}
    assert sorted(base.writer.buffers._low) == [1, 2], "panels of 16 ranks"
    assert len(allocated) == 3, "float32 inputs, and what first matrices make: tapes share them"
    base.model.close()


def test_a_tape_is_kept_until_no_thread_can_read_it(tmp_path: Path) -> None:
    base = Adapted(write_tiny(tmp_path / "m.gguf", "llama"), threads=2)
    path = write_adapter(tmp_path / "a.gguf", "llama", 1)
    machine = base.model._open()  # type: ignore[attr-defined]
    written, machine._own = machine._own, np.zeros_like(machine._own)  # threads write to it, and nothing here reads it
    step = OWN.offset("step") // 8
    base.loader.remove(base.add(path))
    assert len(machine._retired) == 1, "the other thread has not begun a later step"
    machine._own[1, step] = 1 + machine._retired[0][0]
    base.loader.remove(base.add(path))
    assert machine._retired == []
    machine._own = written
    base.model.close()


def test_an_adapter_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Adapted(write_tiny(tmp_path / "m.gguf", "llama"))
    write_tiny(tmp_path / "other.gguf", "qwen2")
    with pytest.raises(ModelFolderError, match="is not a LoRA adapter, but a model"):
        base.loader.read(tmp_path / "other.gguf")
    with pytest.raises(ModelFolderError, match="was made for 'gpt2', not for 'llama'"):
        base.loader.read(write_adapter(tmp_path / "b.gguf", "gpt2", 1))
    path = write_adapter(tmp_path / "a.gguf", "llama", 1)
    monkeypatch.setattr(native_adapters, "available_memory", lambda: AvailableMemory(1000, 1000))
    with pytest.raises(MemoryTooSmall, match=r"a\.gguf takes .* of memory, but 1 KiB are free"):
        base.loader.read(path)
    monkeypatch.setattr(native_adapters, "merged", lambda base, change: pytest.fail("it was changed"))
    with pytest.raises(MemoryTooSmall, match=r"c\.gguf takes .* of memory, but 1 KiB are free"):
        base.loader.read(write_adapter(tmp_path / "c.gguf", "llama", 2, embeddings=True))
    base.model.close()


LOOKED_UP = {"gpt2": "position_embd.weight", "gemma4": "per_layer_token_embd.weight"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOOKED_UP)
def test_changes_of_tables_are_computed(kind: str, tmp_path: Path) -> None:
    """Embeddings are a table lookup: there is no product to which a change could be added."""
    metadata, tensors = tiny(kind)
    random, weight = np.random.default_rng(2), LOOKED_UP[kind]
    rows, width = tensors[weight].shape
    low, high = random.normal(size=(2, width)).astype(np.float32), random.normal(size=(rows, 2)).astype(np.float32)
    base = Adapted(write_tiny(tmp_path / "m.gguf", kind))
    stated = {"general.architecture": kind, "adapter.lora.alpha": 2.0}
    adapter = base.add(write_gguf_adapter(tmp_path / "a.gguf", {weight: (low, high)}, **stated))
    tokens = tokens_of(base.model, NUM_TOKENS)
    unchanged, found = (np.frombuffer(base.logits(each, tokens), np.float32) for each in ("", adapter))
    base.model.close()
    sums = tensors | {weight: tensors[weight] + high[:, :1] * low[:1] + high[:, 1:] * low[1:]}
    merged = Adapted(write_gguf(tmp_path / "n.gguf", metadata, sums))
    expected = np.frombuffer(merged.logits("", tokens), np.float32)
    merged.model.close()
    assert np.array_equal(found, expected) and not np.array_equal(found, unchanged)
