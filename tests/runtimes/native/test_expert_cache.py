"""Experts in bounded memory: the same bits, whatever fits, and an error where an expert cannot be prepared."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onward.engine.model import Row
from onward.errors import MemoryTooSmall
from onward.machine import AvailableMemory
from onward.runtimes.native import expert_cache, load, panel_cache
from onward.runtimes.native.expert_cache import ExpertCache, least_bytes, total_bytes
from onward.runtimes.native.model import NativeModel
from tests.examples import slow_but
from tests.runtimes.native import test_model
from tests.runtimes.native.test_model import tokens_of, whole, write

Loader = Callable[..., tuple[NativeModel, ExpertCache]]


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loader]:
    """Loads a tiny mixture with room for a share of its experts beyond those of one layer."""
    models: list[NativeModel] = []

    def make(share: float = 1.0, **changes: Any) -> tuple[NativeModel, ExpertCache]:
        made: list[ExpertCache] = []

        def limited(layers: Any, routing: Any, code: Any, threads: int, budget: int, words: str) -> ExpertCache:
            least, total = least_bytes(layers), total_bytes(layers)
            made.append(ExpertCache(layers, routing, code, threads, int(least + share * (total - least)), words))
            return made[-1]

        monkeypatch.setattr(load, "ExpertCache", limited)
        path = tmp_path / "m.gguf"
        model = test_model.load(path if path.exists() else write(tmp_path, "qwen3moe"), **changes).model
        assert isinstance(model, NativeModel)
        models.append(model)
        return model, made[0]

    yield make
    for model in models:
        model.close()


def in_memory(cache: ExpertCache) -> int:
    return sum(int((experts.places != 0).sum()) for experts in cache.experts.values())


def decoded(model: NativeModel, count: int) -> bytes:
    """The logits of this many tokens, one at a time, each of another sequence."""
    return b"".join(model.evaluate([Row(0, [token % 29], 0, [1], 1)]).tobytes() for token in range(count))


def test_an_expert_is_made_when_it_is_first_used(loaded: Loader) -> None:
    model, cache = loaded()
    assert in_memory(cache) == 0
    model.evaluate([Row(0, [3], 0, [0], 1)])
    assert in_memory(cache) == 3 * 2  # of two layers
    whole(model, tokens_of(model))
    assert in_memory(cache) > 10
    uses = [experts.uses.copy() for experts in cache.experts.values()]
    model.evaluate([Row(0, [3, 4], 0, [0], 1)])
    for before, experts in zip(uses, cache.experts.values(), strict=True):
        assert 3 <= (experts.uses - before).sum() <= 6 and (experts.uses - before).max() == 1  # once per step


@pytest.mark.parametrize("share", slow_but([0.3], [0.0, 0.3, 0.7]))
@pytest.mark.parametrize("threads", [1, 3])
def test_a_memory_for_some_experts_changes_no_bit(share: float, threads: int, loaded: Loader) -> None:
    (every, all_experts), (some, few) = loaded(), loaded(share, threads=threads)
    slots = sum(each.count for each in few._slots)
    assert slots < sum(each.count for each in all_experts._slots) == 16
    assert few.missing_bytes > 0 == all_experts.missing_bytes
    for round_number in range(3):
        tokens = tokens_of(every, 60, seed=round_number)
        assert whole(some, tokens).tobytes() == whole(every, tokens).tobytes()
        assert decoded(some, 40) == decoded(every, 40)
        assert in_memory(few) <= slots


def test_experts_that_are_used_most_stay(loaded: Loader) -> None:
    model, cache = loaded(0.0)
    for _ in range(20):
        model.evaluate([Row(0, [3], 0, [0], 1)])
    usual = [experts.places.copy() != 0 for experts in cache.experts.values()]
    decoded(model, 29)
    kept = [experts.places != 0 for experts in cache.experts.values()]
    assert sum(int((a & b).sum()) for a, b in zip(usual, kept, strict=True)) == 6


def test_an_expert_that_cannot_be_made_is_an_error_of_its_step_alone(
    loaded: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cache = loaded(threads=2)
    other, _ = loaded()

    def fails(*given: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(expert_cache, "make_panels", fails)
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is gone"):
                model.evaluate([Row(0, [3], 0, [0], 1)])
    assert in_memory(cache) == 0 and len(cache._slots[0].free) == 16
    tokens = tokens_of(model)
    assert whole(model, tokens).tobytes() == whole(other, tokens).tobytes()


def test_weights_that_do_not_fit_into_the_memory_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "qwen3moe")
    monkeypatch.setattr("onward.runtimes.native.load.available_memory", lambda: AvailableMemory(100_000))
    with pytest.raises(MemoryTooSmall, match=r"The (weights|experts) of .* take .* of memory, but 98 KiB are free"):
        test_model.load(path, precision="exact")
    free = iter([AvailableMemory(590_000), AvailableMemory(1 << 30)])
    monkeypatch.setattr("onward.runtimes.native.load.available_memory", lambda: next(free))
    model = test_model.load(path, precision="exact")
    model.model.close()
    assert any("those that steps use most stay in memory" in note for note in model.notes)


def test_a_thread_that_comes_late_to_a_layer_sees_how_many_experts_that_layer_uses(loaded: Loader) -> None:
    """Threads take pieces of a layer until its count of active experts is reached. With one count for all layers, a
    thread that slept until the others were in the next layer used that layer's experts."""
    model, cache = loaded()
    differ = False
    for seed in range(20):
        rows = [Row(number, [(7 * seed + 11 * number) % 29], 0, [number], 1) for number in range(1 + seed % 3)]
        model.evaluate(rows)
        step = max(int(experts.steps.max()) for experts in cache.experts.values())
        active = {layer: int((experts.steps == step).sum()) for layer, experts in cache.experts.items()}
        assert {layer: len(routing.used_experts) for layer, routing in cache.routings.items()} == active
        differ = differ or len(set(active.values())) > 1
    assert differ, "layers that use as many experts show nothing"


def test_an_expert_that_is_still_made_when_a_step_fails_spoils_no_later_one(
    loaded: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = loaded(threads=2)
    rows = [Row(0, [3], 0, [0], 1)]
    real, numbers, go_on = panel_cache.make_panels, itertools.count(), threading.Event()

    def make(*arguments: Any) -> None:
        match next(numbers):
            case 0:
                raise MemoryError
            case 1:
                go_on.wait(0.2)  # a slow disk
        real(*arguments)

    monkeypatch.setattr(expert_cache, "make_panels", make)
    with pytest.raises(MemoryError):
        model.evaluate(rows)
    found = model.evaluate(rows).tobytes()
    go_on.set()
    other, _ = loaded(threads=2)
    assert found == other.evaluate(rows).tobytes() == model.evaluate(rows).tobytes()
