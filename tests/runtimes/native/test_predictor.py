"""Layers that predict several tokens: the logits of the float64 reference, and drafts that change no bit of the model's
answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.engine.job import Job
from onward.engine.model import Predictor, Row
from onward.kernels.interpreter import UNIT_CODE
from onward.kernels.machine import Machine
from onward.model_files.base import ModelFiles
from onward.model_files.gguf import GGUFFiles
from onward.model_files.safetensors import SafetensorsFiles
from onward.runtimes.base import LoadedModel, RuntimeOptions
from onward.runtimes.native import load as native_load
from onward.runtimes.native.panel_cache import PanelCache
from onward.runtimes.table import load_model
from onward.sampling.sampler import Sampler
from tests.checkpoints.mtp import (
    Arrays,
    PredictingReference,
    predicting_layer,
    write_predicting_folder,
    write_predicting_gguf,
)
from tests.checkpoints.tiny import HIDDEN, tiny
from tests.engine.harness import ToyEngine, make_job
from tests.engine.harness import run as run_jobs
from tests.examples import slow_but
from tests.runtimes.native.test_model import log_softmax

OPTIONS = RuntimeOptions(threads=1, kv_memory=4_000_000, has_predictor=True)
NUM_TOKENS = 70
DRAFTED = [4, 17, 2]


def load(files: ModelFiles, **changes: object) -> LoadedModel:
    return load_model(files, replace(OPTIONS, **changes), lambda line: None)  # type: ignore[arg-type]


def predictor_of(loaded: LoadedModel) -> Predictor:
    assert loaded.predictor is not None
    return loaded.predictor


def tokens_of(name: str, count: int = NUM_TOKENS) -> list[int]:
    vocabulary = len(tiny(name)[1]["token_embd.weight"])
    return [int(token) for token in np.random.default_rng(3).integers(0, vocabulary, count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_predicting_folder(tmp_path / "m", "qwen2, mimo", predicting_layer("qwen2, mimo"))


# --- numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "is_folder"),
    [
        ("qwen2, mimo", True),
        ("qwen35", False),
        *(
            pytest.param(name, is_folder, marks=pytest.mark.slow)
            for name, is_folder in (
                ("qwen35", True), ("qwen35moe", False), ("qwen35moe", True), ("qwen3next", False), ("qwen3next", True),
                ("deepseek2, groups of sigmoids", False), ("deepseek2, groups of sigmoids, joined", True),
                ("deepseek2, glm", True), ("deepseek2, glm", False), ("glm4moe", False), ("glm4moe, head norms", True),
                ("bailingmoe2", False), ("bailingmoe2, groups", True), ("cohere2moe", False), ("cohere2moe, rms", True),
            )
        ),
    ],
)  # fmt: skip
def test_logits_are_those_of_the_reference(name: str, is_folder: bool, tmp_path: Path) -> None:
    """After tokens that the model has computed, and after drafted ones, however the tokens are cut."""
    metadata, tensors = tiny(name)
    tokens, layer = tokens_of(name), predicting_layer(name)
    if is_folder:
        files: ModelFiles = SafetensorsFiles(write_predicting_folder(tmp_path / "m", name, layer))
        metadata["deepseek2.attention.latent_epsilon"] = 1e-6  # of its folders
    else:
        files = GGUFFiles(write_predicting_gguf(tmp_path / "m.gguf", name, layer))
    expected = log_softmax(PredictingReference(metadata, tensors | layer).predictions(tokens, DRAFTED))
    loaded = load(files, precision="exact", cache_dir=tmp_path)
    model, predictor = loaded.model, predictor_of(loaded)
    blocks = [5, 2, 9]
    for begin, end in ((0, 33), (33, 34), (34, NUM_TOKENS - 1)):
        model.evaluate([Row(0, tokens[begin:end], begin, blocks, int(end == NUM_TOKENS - 1))])
    found = [
        predictor.evaluate(
            [Row(0, tokens[: end - 2], 0, blocks, 0), Row(0, tokens[end - 2 : end], end - 2, blocks, 1)]
        ).copy()
        for end in (3, 32, 34, 50, NUM_TOKENS)
    ]
    found += [predictor.extend(token).copy() for token in DRAFTED]
    rows = [1, 30, 32, 48, NUM_TOKENS - 2, *range(NUM_TOKENS - 1, NUM_TOKENS - 1 + len(DRAFTED))]
    np.testing.assert_allclose(log_softmax(np.concatenate(found)), expected[rows], atol=1e-4)
    # again, one by one, which is what drafting does
    predictor.evaluate([Row(0, tokens[:40], 0, blocks, 0)])
    for index, token in enumerate(tokens[40:], 40):
        logits = predictor.evaluate([Row(0, [token], index, blocks, 1)])
        np.testing.assert_allclose(log_softmax(logits), expected[index - 1 : index], atol=1e-4)
    predictor.close()
    model.close()


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_the_models_bits_are_those_without_it(precision: str, folder: Path, tmp_path: Path) -> None:
    tokens = tokens_of("qwen2, mimo")
    found = []
    for has_predictor in (True, False):
        loaded = load(SafetensorsFiles(folder), precision=precision, cache_dir=tmp_path, has_predictor=has_predictor)
        assert (loaded.predictor is not None) == has_predictor
        model = loaded.model
        parts = [
            model.evaluate([Row(0, tokens, 0, [0, 1, 2], NUM_TOKENS)]).tobytes(),
            model.evaluate([Row(1, tokens[:40], 0, [3, 4], 1), Row(2, tokens[40:], 0, [5], 0)]).tobytes(),
            model.evaluate([Row(1, [token], 40 + index, [3, 4], 1) for index, token in enumerate(DRAFTED)]).tobytes(),
        ]
        found.append((parts, loaded.fingerprint))
        model.close()
    assert found[0] == found[1]


def test_only_keys_and_values_of_the_layer_are_computed_for_a_prompt(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention, feed-forward layer and output layer are computed for the row whose logits are wanted."""
    loaded = load(SafetensorsFiles(folder), cache_dir=tmp_path)
    tokens, blocks = tokens_of("qwen2, mimo"), [0, 1, 2]
    loaded.model.evaluate([Row(0, tokens, 0, blocks, 1)])
    walked: list[tuple[int, set[int]]] = []

    def step(machine: Machine, rows: int, tape: Any, following: Any = (), *, runs: int) -> None:
        walked.append((rows, {int(record[0]) for part in tape for record in part.records[:-1]}))

    monkeypatch.setattr(Machine, "step", step)
    predictor = predictor_of(loaded)
    predictor.evaluate([Row(0, tokens, 0, blocks, 1)])
    [(rows, of_prompt), (wanted, of_last)] = walked
    assert (rows, wanted) == (NUM_TOKENS - 1, 1)
    assert UNIT_CODE in of_last and UNIT_CODE not in of_prompt and len(of_prompt) < len(of_last)
    walked.clear()
    predictor.evaluate([Row(0, tokens, 0, blocks, 0)])
    assert walked == [(NUM_TOKENS - 1, of_prompt)]
    predictor.close()
    loaded.model.close()


@pytest.mark.parametrize("share", [0.75, 0.95])
def test_a_layer_that_does_not_stay_in_memory_is_made_for_drafts_alone(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps without drafts neither wait for it nor fetch it ahead, and successive drafts make nothing twice."""
    caches: list[PanelCache] = []
    loaded_groups: list[int] = []

    def limited(groups: Any, code: Any, threads: int, budget: int, words: str, num_drafting: int) -> PanelCache:
        caches.append(PanelCache(groups, code, threads, int(budget * share), words, num_drafting))
        return caches[-1]

    make = PanelCache._make

    def making(cache: PanelCache, group: Any) -> Any:
        if cache.stream_index:
            loaded_groups.append(cache.stream_index[group[0].name])
        return make(cache, group)

    metadata, tensors = tiny("qwen2, mimo")
    deep, layer = 6, predicting_layer("qwen2, mimo")
    tensors |= {key.replace("blk.1.", f"blk.{to}."): each for to in range(2, deep) for key, each in tensors.items()}
    metadata["qwen2.block_count"] = deep
    layer = {key.replace("blk.2.", f"blk.{deep}."): array for key, array in layer.items()}
    monkeypatch.setattr("tests.checkpoints.hugging_face.tiny", lambda name: (metadata, tensors))
    files = SafetensorsFiles(write_predicting_folder(tmp_path / "m", "qwen2, mimo", layer))
    tokens, blocks, found = tokens_of("qwen2, mimo"), [0, 1, 2], []
    for cache_class in (PanelCache, limited):
        monkeypatch.setattr(native_load, "PanelCache", cache_class)
        monkeypatch.setattr(PanelCache, "_make", making)
        loaded = load(files, cache_dir=tmp_path)
        model, predictor = loaded.model, predictor_of(loaded)
        bits = [model.evaluate([Row(0, tokens, 0, blocks, 1)]).tobytes()]
        for _ in range(2):
            loaded_groups.clear()
            bits.append(model.evaluate([Row(0, tokens, 0, blocks, 1)]).tobytes())
            plain = list(loaded_groups)
            bits.append(predictor.evaluate([Row(0, tokens, 0, blocks, 1)]).tobytes())
            loaded_groups.clear()
            bits += [predictor.extend(token).tobytes() for token in DRAFTED]
            if cache_class is limited:
                usual = caches[0]._num_usual
                assert max(caches[0].stream_index.values()) == usual and plain and max(plain) < usual
                assert loaded_groups == []
        found.append(bits)
        if cache_class is limited:
            assert any("of them from the file, and drafts " in note for note in loaded.notes)
        predictor.close()
        model.close()
    assert found[0] == found[1]


# --- drafts ------------------------------------------------------------------------------------------------------


def right_layer(name: str, tensors: Arrays) -> Arrays:
    """What makes a model whose next token depends on the newest one alone, and a layer that predicts just that."""
    layer = predicting_layer(name)
    for each in (tensors, layer):
        for key in each:
            if key.split(".")[-2] in ("attn_output", "ssm_out", "ffn_down"):
                each[key][:] = 0
    prefix = ".".join(next(iter(layer)).split(".")[:2])
    halves = [np.eye(HIDDEN), np.zeros((HIDDEN, HIDDEN))]
    is_mimo = name == "qwen2, mimo"
    layer[f"{prefix}.nextn.eh_proj.weight"] = np.concatenate(halves[::-1] if is_mimo else halves, axis=1).astype("f4")
    layer[f"{prefix}.nextn.enorm.weight"][:] = 1
    layer[f"{prefix}.nextn.shared_head_norm.weight"] = tensors["output_norm.weight"]
    return layer


ENGINES = ["right", "random", "right, with states", "random, with states"]


@pytest.fixture(params=slow_but(["right", "right, with states", "random, with states"], ENGINES))
def engines(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engines]:
    kind, _, has_states = request.param.partition(", ")
    name = "qwen35" if has_states else "qwen2, mimo"
    made = Engines(tmp_path / "m", name, is_right=kind == "right", monkeypatch=monkeypatch)
    yield made
    made.close()


class Engines:
    """Makes engines of a model, with and without its predictor, one after the other. A call of the model takes a
    second of their clock, and one of the predictor a twentieth of that."""

    def __init__(self, folder: Path, name: str, *, is_right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_right = is_right
        self.least_accepted = 10 if name == "qwen35" else 40
        """Of Qwen 3.5 fewer: its output layer is its embeddings, so its text repeats itself, which is drafted, too."""
        metadata, tensors = tiny(name)
        layer = right_layer(name, tensors) if is_right else predicting_layer(name)
        monkeypatch.setattr("tests.checkpoints.hugging_face.tiny", lambda name: (metadata, tensors))
        files = SafetensorsFiles(write_predicting_folder(folder, name, layer))
        kv_memory = 600_000 if name == "qwen35" else 220_000
        self._loaded = load(files, precision="exact", kv_memory=kv_memory)
        self._plain = load(files, precision="exact", has_predictor=False)
        self.vocabulary = self._plain.model.vocab_size
        self._now = 0.0
        for model in (self._loaded.model, self._plain.model):
            monkeypatch.setattr(model, "evaluate", self._timed(model.evaluate, 1.0))
        for name in ("evaluate", "extend"):
            predictor = predictor_of(self._loaded)
            monkeypatch.setattr(predictor, name, self._timed(getattr(predictor, name), 0.05))

    def _timed(self, method: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            self._now += seconds
            return method(*args)

        return timed

    def plain(self) -> ToyEngine:
        return self._engine(self._plain, None)

    def drafting(self, **options: int) -> ToyEngine:
        return self._engine(self._loaded, predictor_of(self._loaded), **options)

    def _engine(self, loaded: LoadedModel, predictor: Predictor | None, *, rows: int = 16) -> ToyEngine:
        sampler = Sampler(loaded.model.vocab_size, 1)
        engine = ToyEngine(
            loaded.model,  # type: ignore[arg-type]
            sampler,
            max_rows=rows,
            share=True,
            speculate=True,
            draft_model=predictor,
            clock=lambda: self._now,
        )
        engine.draft_seconds = 1000.0
        return engine

    def close(self) -> None:
        predictor_of(self._loaded).close()
        self._loaded.model.close()
        self._plain.model.close()


@pytest.mark.parametrize("temperature", slow_but([1.0], [0.0, 1.0]))
def test_drafts_are_accepted_and_change_no_byte(engines: Engines, temperature: float) -> None:
    jobs = [make_job([1, 2, 3, 4], max_tokens=90, temperature=temperature, seed=5, ignore_end=True) for _ in range(2)]
    plain, drafting = engines.plain(), engines.drafting()
    expected = run_jobs(plain, jobs[:1]).jobs[jobs[0].id].bits
    assert run_jobs(drafting, jobs[1:]).jobs[jobs[1].id].bits == expected
    drafts = drafting.counters.drafts
    assert drafts.model_accepted + drafts.model_rejected > 0
    if engines.is_right and temperature:  # without, the text repeats itself, and is drafted from there
        assert drafts.model_accepted > engines.least_accepted and drafts.model_rejected < 5
        assert drafting.counters.num_steps < plain.counters.num_steps


def test_law_2_the_same_bytes_among_others_preempted_forked_and_from_the_cache(engines: Engines) -> None:
    rng = random.Random(11)
    beginning = [rng.randrange(engines.vocabulary) for _ in range(80)]

    def job() -> Job:
        common, own = rng.choice([0, 20, 70, 80]), rng.randrange(2, 30)
        prompt = beginning[:common] + [rng.randrange(engines.vocabulary) for _ in range(own)]
        return make_job(
            prompt, max_tokens=rng.randrange(1, 100), choices=rng.choice([1, 1, 3]), seed=rng.randrange(5),
            temperature=rng.choice([0.0, 1.0]), ignore_end=True, score_top=rng.choice([None, None, 1]),
        )  # fmt: skip

    drafting = engines.drafting(rows=5)
    for size in (1, 4, 1, 2, 6, 1):
        jobs = [job() for _ in range(size)]
        results = run_jobs(drafting, jobs)
        for each in jobs:
            found = run_jobs(engines.plain(), [each]).jobs[each.id].bits
            assert repr(results.jobs[each.id].bits) == repr(found)
    # fewer sequences have states than blocks
    assert drafting.scheduler.reclaim.num_preemptions > 0 or drafting.model.shape.states
    assert drafting.counters.num_cached_tokens > 0
    assert drafting.counters.drafts.model_accepted + drafting.counters.drafts.model_rejected > 0


def test_a_prefix_from_the_cache_is_drafted_from_as_well(engines: Engines) -> None:
    """The hidden states of its positions are in its blocks: predictions are those of a prompt that was computed."""
    prompt = [(7 * index) % engines.vocabulary for index in range(100)]
    counts = []
    drafting = engines.drafting()
    for _ in range(2):
        before = drafting.counters.drafts
        job = make_job(prompt, max_tokens=40, ignore_end=True)
        run_jobs(drafting, [job])
        after = drafting.counters.drafts
        counts.append(after.model_accepted - before.model_accepted)
    assert drafting.counters.num_cached_tokens >= 96
    if engines.is_right:
        assert sum(counts) > engines.least_accepted
