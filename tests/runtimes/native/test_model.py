"""The native runtime: log-probabilities of the float64 reference, and the same bits however a step is cut."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray

import onward
from onward.checkpoints.tensor import Tensor
from onward.checkpoints.types import TENSOR_TYPES
from onward.engine.model import ModelRunner, Row, copy_block
from onward.errors import MemoryTooSmall, SetupError
from onward.kernels import self_test
from onward.kernels.interpreter import UNIT_CODE
from onward.kernels.machine import Machine
from onward.kernels.parts import Part
from onward.machine import AvailableMemory
from onward.model_files.gguf import GGUFFiles
from onward.runtimes.base import LoadedModel, RuntimeOptions
from onward.runtimes.native import load as native_load
from onward.runtimes.native import model as native_model
from onward.runtimes.native import panel_cache
from onward.runtimes.native.panel_cache import PanelCache
from onward.runtimes.table import load_model
from tests.checkpoints.making import CODEBOOK_SCALES, NUMBERS, Stored, Tensors, floats, random_blocks, write_gguf
from tests.checkpoints.making import SCALES as BLOCK_SCALES
from tests.checkpoints.reference import Reference
from tests.checkpoints.test_architectures import OF_FOLDERS
from tests.checkpoints.tiny import ARCHITECTURES, tiny, write_tiny
from tests.examples import slow_but
from tests.processes import ROOT, served

SCALES = {
    "Q1_0": (1 / 16,), "Q2_0": (1 / 20,),
    "Q4_0": (1 / 64,), "Q4_1": (1 / 64, -7.5 / 64), "Q5_0": (1 / 128,), "Q5_1": (1 / 128, -15.5 / 128), "Q8_0": (1e-3,),
    "Q2_K": (4e-3, 6e-3), "Q3_K": (6e-4,), "Q4_K": (2e-4, 1.5e-3), "Q5_K": (1e-4, 1.6e-3), "Q6_K": (6e-5,),
    "IQ4_NL": (1e-3,), "IQ4_XS": (5e-5,), "IQ2_XS": (1e-3,), "MXFP4": (), "NVFP4": (), "F16": (), "BF16": (),
}  # fmt: skip
"""By type: scales with which random integers make weights of a usual size. Types with kernels, and three of
those that are expanded."""
NAMES = [name for name in ARCHITECTURES if name not in OF_FOLDERS]
FAST_NAMES = [
    "llama", "gemma3", "stablelm, parallel", "gpt2", "gpt-oss", "lfm2", "gemma4", "qwen35", "granitehybrid",
    "deepseek2", "llama4, chunks",
]  # fmt: skip
"""Norms after blocks, blocks in parallel, learned positions and biases, experts and sinks, convolutions, layers that
share keys, each kind of state, latent attention, and chunks."""
DIFFERENT_NAMES = [
    *FAST_NAMES, "llama, rope factors", "qwen3", "phi3", "cohere2", "qwen3moe", "gemma2", "nemotron_h_moe",
    "gemma4, experts", "falcon-h1", "deepseek2, groups of sigmoids", "afmoe", "hunyuan-dense",
    "apertus", "gemma3n", "gemma3n, stated", "olmo", "opt, norms after",
]  # fmt: skip
"""With all that the slow tests of each kernel's memory and bits need."""
NUM_TOKENS = 70
OPTIONS = RuntimeOptions(runtime="native", threads=1, kv_memory=4_000_000)
Bits = bytes


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def write(folder: Path, name: str) -> Path:
    return write_tiny(folder / "m.gguf", name)


def load(path: Path, **changes: Any) -> LoadedModel:
    return load_model(GGUFFiles(path), replace(OPTIONS, **changes), lambda line: None)


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Callable[..., ModelRunner]]:
    """Loads tiny models; closes them."""
    made: list[ModelRunner] = []

    def make(name: str = "llama", **changes: Any) -> ModelRunner:
        path = tmp_path / "m.gguf"
        made.append(load(path if path.exists() else write(tmp_path, name), **changes).model)
        return made[-1]

    yield make
    for model in made:
        model.close()


def tokens_of(model: ModelRunner, count: int = NUM_TOKENS, seed: int = 3) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, model.vocab_size, count)]


def whole(model: ModelRunner, tokens: list[int]) -> NDArray[np.float32]:
    """All logits of a sequence, evaluated at once in the first blocks."""
    row = Row(0, tokens, 0, range(model.shape.blocks_for(len(tokens))), len(tokens))
    return model.evaluate([row]).copy()


@pytest.mark.skipif(sys.platform == "win32", reason="files that are mapped cannot be replaced there")
def test_a_file_that_is_written_to_changes_no_answer(tmp_path: Path, models: Callable[..., ModelRunner]) -> None:
    model = models()
    path, tokens = tmp_path / "m.gguf", tokens_of(model)
    expected = whole(model, tokens)
    written = path.read_bytes()
    (tmp_path / "new").write_bytes(bytes(len(written)))
    (tmp_path / "new").replace(path)  # the old file is still mapped
    np.testing.assert_array_equal(whole(model, tokens), expected)
    path.write_bytes(written)
    other = models()
    np.testing.assert_array_equal(whole(other, tokens), expected)
    with path.open("r+b") as file:
        file.seek(len(written) // 2)
        file.write(bytes(64))
    with pytest.raises(RuntimeError, match=r"m\.gguf was written to while"):
        whole(other, tokens)


@pytest.mark.parametrize("name", slow_but(FAST_NAMES, NAMES))
def test_log_probabilities_are_those_of_the_reference(name: str, models: Callable[..., ModelRunner]) -> None:
    metadata, tensors = tiny(name)
    model = models(name, precision="exact")
    tokens = tokens_of(model)
    expected = log_softmax(Reference(metadata, tensors).logits(tokens))
    assert expected.min() < -8  # logits must differ clearly: nearly equal ones would agree with anything
    assert np.abs(log_softmax(whole(model, tokens)) - expected).max() < 1e-4


def usual_blocks(kind: str, rows: int, inputs: int, seed: int) -> Stored:
    if kind == "F16":
        values = np.random.default_rng(seed).normal(size=(rows, inputs)).astype(np.float16) / np.float16(16)
        return "F16", (rows, inputs), values.tobytes()
    if kind == "BF16":
        wide = np.random.default_rng(seed).normal(size=(rows, inputs)).astype("<f4") / np.float32(16)
        return kind, (rows, inputs), np.ascontiguousarray(wide.view("<u2")[:, 1::2]).tobytes()
    name, shape, data = random_blocks(kind, rows, inputs, seed)
    blocks = np.frombuffer(bytearray(data), np.uint8).reshape(-1, TENSOR_TYPES[NUMBERS[kind]].block_bytes)
    for place, scale in zip((BLOCK_SCALES | CODEBOOK_SCALES)[kind], SCALES[kind], strict=True):
        blocks[:, place : place + 2] = np.array([scale], "<f2").view(np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = 122  # 2 to the power of -5
    if kind == "NVFP4":
        blocks[:, :4] = 15  # 2 to the power of -7, times 15/8, halved
    return name, shape, blocks.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCALES)
def test_weights_of_each_type_are_what_the_file_states(kind: str, tmp_path: Path) -> None:
    """A model with quantised matrices computes the same as one with their float32 values."""
    metadata, tensors = tiny("qwen2")
    hidden = 256
    metadata |= {"qwen2.embedding_length": hidden, "qwen2.feed_forward_length": 256}
    stored: dict[str, Stored] = {}
    values: dict[str, NDArray[np.float32]] = {}
    for name, array in tensors.items():
        if array.ndim == 1:
            length = hidden if "norm" in name else hidden // 2 if name.endswith(("k.bias", "v.bias")) else hidden
            spread = np.linspace(0.5, 1.5, length) / (10 if "bias" in name else 1)
            values[name] = spread.astype(np.float32)
            stored[name] = floats(values[name])
            continue
        rows = len(array) if name in ("token_embd.weight", "output.weight") else hidden
        rows = hidden // 2 if ".attn_k." in name or ".attn_v." in name else rows
        stored[name] = usual_blocks(kind, rows, hidden, seed=len(name))
        data = np.frombuffer(stored[name][2], np.uint8)
        values[name] = Tensor(name, (rows, hidden), TENSOR_TYPES[NUMBERS[kind]], data).floats()
    path = write_gguf(tmp_path / "m.gguf", metadata, stored)
    model = load(path, precision="exact").model
    try:
        tokens = tokens_of(model, 20)
        expected = log_softmax(Reference(metadata, values).logits(tokens))
        assert expected.std() > 0.3
        assert np.abs(log_softmax(whole(model, tokens)) - expected).max() < 1e-4
    finally:
        model.close()


CUT = [
    "gemma3", "olmo2", "gptneox", "cohere2", "gpt2", "qwen3moe", "qwen2moe", "gpt-oss", "gemma2", "lfm2", "lfm2moe",
    "gemma4", "gemma4, experts", "qwen35", "qwen35moe", "qwen3next", "granitehybrid", "falcon-h1",
    "nemotron_h", "nemotron_h_moe", "deepseek2", "deepseek2, queries joined", "afmoe", "hunyuan-dense",
    "gemma3n", "apertus", "llama4, chunks", "cohere2moe", "phi2", "gptj", "falcon, two norms", "olmo", "opt",
    "opt, norms after",
]  # fmt: skip
PLAIN, MIXTURE, OTHERS = "llama", "qwen3moe", ["lfm2", "lfm2moe", "gemma3n", "gemma4", "gemma4, experts", "deepseek2"]
"""`OTHERS`: layers of one model keep other things in a block, or read those of another layer, or have values of another
size than keys."""
RECURRENT = [
    "qwen35", "qwen35, equal heads", "qwen35moe", "qwen3next", "granitehybrid", "granitehybrid, experts", "falcon-h1",
    "nemotron_h", "nemotron_h_moe",
]  # fmt: skip
"""Their sequences have states."""


@pytest.mark.parametrize("name", slow_but(["gemma3", "qwen3moe", "lfm2", "qwen35"], CUT))
def test_fast_is_near_exact_and_no_cut_of_a_step_changes_a_bit(name: str, models: Callable[..., ModelRunner]) -> None:
    fast, exact = models(name), models(name, precision="exact")
    tokens = tokens_of(fast)
    difference = np.abs(log_softmax(whole(fast, tokens)) - log_softmax(whole(exact, tokens)))
    assert 0 < difference.mean() < 0.2
    for model in (fast, exact):
        expected = whole(model, tokens)
        found = [model.evaluate([Row(0, [token], at, [5, 1, 3], 1)]).copy() for at, token in enumerate(tokens)]
        assert np.concatenate(found).tobytes() == expected.tobytes()


@pytest.mark.parametrize("precision", ["fast", "exact"])
@pytest.mark.parametrize("name", ["qwen2", "qwen3moe"])
def test_no_cut_of_a_step_changes_a_bit(name: str, precision: str, models: Callable[..., ModelRunner]) -> None:
    model = models(name, precision=precision)
    tokens = tokens_of(model)
    expected = whole(model, tokens).tobytes()
    blocks = [7, 3, 5]

    def pieces(sizes: list[int]) -> Bits:
        found, start = [], 0
        for size in sizes:
            found.append(model.evaluate([Row(0, tokens[start : start + size], start, blocks, size)]).copy())
            start += size
        return np.concatenate(found).tobytes()

    assert pieces([1] * NUM_TOKENS) == expected
    assert pieces([3, 32, 1, 34]) == expected


@pytest.mark.parametrize("name", slow_but([PLAIN, MIXTURE, "lfm2", "qwen35"], [PLAIN, MIXTURE, *OTHERS, *RECURRENT]))
def test_rows_of_other_sequences_change_no_bit(name: str, models: Callable[..., ModelRunner]) -> None:
    model = models(name)
    tokens = tokens_of(model, 40)
    expected = whole(model, tokens)
    others = [Row(index, tokens_of(model, 9 + index, index), 0, [10 + index], 1, state=index) for index in range(1, 12)]
    mixed = model.evaluate([*others[:5], Row(0, tokens, 0, [30, 31], 40), *others[5:]])
    assert mixed[5:45].tobytes() == expected.tobytes()
    later = tokens_of(model, 1, 8)
    alone = model.evaluate([Row(0, later, 40, [30, 31], 1)]).copy()
    among = model.evaluate([*others, Row(0, later, 40, [30, 31], 1)])
    assert among[-1:].tobytes() == alone.tobytes()


def drafted(tokens: Sequence[int], start: int, blocks: Sequence[int], state: int = 0) -> list[Row]:
    """Rows of a token and of drafts after it."""
    return [
        Row(state, [token], start + index, blocks, 1, state=state, is_draft=index > 0)
        for index, token in enumerate(tokens)
    ]


@pytest.mark.parametrize("name", slow_but([PLAIN, "lfm2", "qwen35", "granitehybrid"], [PLAIN, *OTHERS, *RECURRENT]))
def test_drafts_have_the_bits_of_one_step_per_token(name: str, models: Callable[..., ModelRunner]) -> None:
    """Rejected drafts leave nothing behind, accepted ones are taken in, and the newest row may be evaluated again."""
    model = models(name)
    tokens = tokens_of(model, 60)
    expected = whole(model, tokens)
    blocks = [4, 6]
    model.evaluate([Row(0, tokens[:30], 0, blocks, 0)])
    for rejected in (tokens_of(model, 10, 5), [tokens[31], *tokens_of(model, 9, 7)]):
        model.evaluate(drafted([tokens[30], *rejected], 30, blocks))
    start = 30
    for accepted, wrong in ((3, 0), (0, 4), (2, 3), (5, 1), (0, 0), (4, 0)):
        step = [*tokens[start : start + 1 + accepted], *tokens_of(model, wrong, start)]
        found = model.evaluate(drafted(step, start, blocks))[: 1 + accepted]
        assert found.tobytes() == expected[start : start + 1 + accepted].tobytes()
        start += 1 + accepted
    rest = model.evaluate([Row(0, tokens[start:], start, blocks, len(tokens) - start)])
    assert rest.tobytes() == expected[start:].tobytes()


@pytest.mark.parametrize("name", slow_but(["qwen35"], [PLAIN, *RECURRENT]))
def test_drafts_of_several_sequences_and_turns_have_the_bits_of_one_step_per_token(
    name: str, models: Callable[..., ModelRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token and its drafts are computed together, also where a step takes several turns."""
    model = models(name)
    texts = [tokens_of(model, 50, number) for number in range(4)]
    expected = [whole(model, tokens) for tokens in texts]
    tables = [[2 * number + 1, 2 * number] for number in range(4)]
    monkeypatch.setattr(native_model, "MAX_ROWS", 16)
    model.evaluate([Row(each, texts[each][:20], 0, tables[each], 0, state=each) for each in range(4)])
    starts = [20] * 4
    for round_ in range(5):
        accepted = [(round_ + number) % 4 for number in range(4)]
        rows: list[Row] = []
        for number, count in enumerate(accepted):
            step = [*texts[number][starts[number] :][: 1 + count], *tokens_of(model, 2, round_)]
            rows += drafted(step, starts[number], tables[number], number)
        found, place = model.evaluate(rows), 0
        for number, count in enumerate(accepted):
            own = expected[number][starts[number] :][: 1 + count]
            assert found[place : place + 1 + count].tobytes() == own.tobytes()
            place, starts[number] = place + 3 + count, starts[number] + 1 + count


@pytest.mark.parametrize("name", slow_but([PLAIN, "lfm2", "qwen35"], [PLAIN, *OTHERS, *RECURRENT]))
def test_a_step_of_more_rows_than_the_memory_holds_takes_several_passes(
    name: str, models: Callable[..., ModelRunner]
) -> None:
    model = models(name)
    tokens = tokens_of(model, 400)
    expected = whole(model, tokens)
    rows = [Row(index, tokens, 0, range(13 * index, 13 * index + 13), 2, state=index) for index in range(4)]
    found = model.evaluate(rows)
    assert found.shape == (8, model.vocab_size)
    assert found.tobytes() == np.concatenate([expected[-2:]] * 4).tobytes()


@pytest.mark.parametrize("threads", slow_but([3], [2, 3, 4]))
@pytest.mark.parametrize("name", slow_but([PLAIN, MIXTURE, "lfm2", "qwen35"], [PLAIN, MIXTURE, *OTHERS, *RECURRENT]))
def test_the_number_of_threads_changes_no_bit(name: str, threads: int, models: Callable[..., ModelRunner]) -> None:
    one, several = models(name), models(name, threads=threads)
    tokens = tokens_of(one, 100)
    for _ in range(3):
        assert whole(several, tokens).tobytes() == whole(one, tokens).tobytes()


@pytest.mark.parametrize("several", slow_but([3], [2, 3, 4]))
@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_a_long_sequence_has_the_same_bits_on_any_number_of_threads(name: str, several: int, tmp_path: Path) -> None:
    """Its segments are split among threads, in prefill and decode, alone and among other sequences."""
    metadata, tensors = tiny(name)
    metadata[f"{name}.context_length"] = 4096
    if name == "gemma3":
        metadata["gemma3.attention.sliding_window"] = 1500
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    found = []
    for threads in (1, several):
        model = load(path, threads=threads, kv_memory=16_000_000).model
        tokens, blocks = tokens_of(model, 2300), range(100)
        try:
            logits = [model.evaluate([Row(0, tokens[:2250], 0, blocks, 3)]).copy()]
            logits.append(model.evaluate([Row(0, tokens[2250:2260], 2250, blocks, 10)]).copy())
            for at in range(2260, 2270):
                others = [Row(1, tokens[: at % 4 + 1], 0, [110], 1)] * (at % 3)
                logits.append(model.evaluate([*others, Row(0, tokens[at : at + 1], at, blocks, 1)])[-1:].copy())
        finally:
            model.close()
        found.append(np.concatenate(logits).tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_threads_that_come_late_change_no_bit(name: str, models: Callable[..., ModelRunner]) -> None:
    """Many more threads than processors, and steps of varying sizes: some threads are still in the previous step."""
    alone, many = models(name, threads=1), models(name, threads=12)
    random = np.random.default_rng(8)
    for step in range(60):
        count = int(random.integers(1, 30))
        tokens = tokens_of(alone, count, seed=step)
        row = Row(1, tokens, 0, [0], int(random.integers(0, count + 1)))
        assert alone.evaluate([row]).tobytes() == many.evaluate([row]).tobytes()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are bound to cores as on Linux")
def test_cores_that_are_taken_away_change_no_bit(models: Callable[..., ModelRunner]) -> None:
    model = models(threads=3)
    tokens, before = tokens_of(model), os.sched_getaffinity(0)
    expected = whole(model, tokens)
    threads = [0, *(each.native_id or 0 for each in threading.enumerate() if each.name.startswith("onward-compute"))]
    assert len(threads) >= 3
    try:
        for thread in threads:
            os.sched_setaffinity(thread, {min(before)})
        assert (whole(model, tokens) == expected).all()
    finally:
        for thread in threads:
            os.sched_setaffinity(thread, before)


@pytest.mark.parametrize("name", slow_but([PLAIN, "lfm2"], [PLAIN, *OTHERS]))
@pytest.mark.parametrize("shared", [32, 33, 40])
def test_a_copied_block_is_the_block(shared: int, name: str, models: Callable[..., ModelRunner]) -> None:
    """Also for tokens that another sequence shares, wherever the shared prefix ends."""
    model = models(name)
    tokens, others = tokens_of(model, 50), tokens_of(model, 10, 4)
    expected = whole(model, [*tokens[:shared], *others])
    whole(model, tokens)
    for block, copy in ((0, 9), (1, 12)):
        copy_block(model, block, copy)
    assert model.evaluate([Row(1, others, shared, [9, 12], 10)]).tobytes() == expected[shared:].tobytes()


def test_rows_that_do_not_follow_their_state_are_refused(models: Callable[..., ModelRunner]) -> None:
    model = models("qwen35")
    tokens = tokens_of(model, 8)
    model.evaluate([Row(0, tokens, 0, [0], 1, state=2)])
    again = model.evaluate([Row(0, tokens[-1:], 7, [0], 1, state=2)]).tobytes()
    assert model.evaluate([Row(0, tokens[-1:], 7, [0], 1, state=2)]).tobytes() == again
    refused = {
        "continues at position 6, but its state has taken in 8": [Row(0, tokens[6:], 6, [0], 1, state=2)],
        "continues at position 9, but its state has taken in 8": [Row(0, tokens[:1], 9, [0], 1, state=2)],
        "has none of the": [Row(0, tokens, 0, [0], 1, state=-1)],
        "not next to each other": [
            Row(0, tokens, 0, [0], 1, state=2),
            Row(1, tokens, 0, [1], 1, state=3),
            Row(0, tokens, 8, [0], 1, state=2),
        ],
    }
    for words, rows in refused.items():
        with pytest.raises(RuntimeError, match=words):
            model.evaluate(rows)


def test_only_wanted_rows_have_logits(models: Callable[..., ModelRunner]) -> None:
    model = models()
    tokens = tokens_of(model, 20)
    expected = whole(model, tokens)
    found = model.evaluate([Row(0, tokens, 0, [0], 2), Row(1, tokens, 0, [1], 0), Row(2, tokens, 0, [2], 1)])
    assert found.tobytes() == np.concatenate((expected[-2:], expected[-1:])).tobytes()


@pytest.mark.parametrize(
    ("name", "layers", "of_wanted"),
    [
        ("llama", 2, 1),
        pytest.param("stablelm, parallel", 2, 1, marks=pytest.mark.slow),
        ("qwen3moe", 2, 1),
        ("lfm2", 5, 1),
        pytest.param("gemma3n", 8, 5, marks=pytest.mark.slow),
        pytest.param("gemma4", 7, 4, marks=pytest.mark.slow),
        ("qwen35", 5, 0),
        pytest.param("qwen35, equal heads", 5, 1, marks=pytest.mark.slow),
    ],
)
def test_after_the_last_keys_only_wanted_rows_are_computed(
    name: str, layers: int, of_wanted: int, models: Callable[..., ModelRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[int, int]] = []
    walk = Machine.step

    def step(machine: Machine, rows: int, tape: Sequence[Part], following: Sequence[Part] = (), *, runs: int) -> None:
        codes = [code for part in tape for code in part.records[:, 0].tolist()]
        steps.append((rows, codes.count(UNIT_CODE)))
        walk(machine, rows, tape, following, runs=runs)

    monkeypatch.setattr(Machine, "step", step)
    model = models(name)
    tokens = tokens_of(model)
    expected = whole(model, tokens)
    [(_, units)] = steps
    assert model.evaluate([Row(0, tokens, 0, [0, 1, 2], 2)]).tobytes() == expected[-2:].tobytes()
    assert len(model.evaluate([Row(0, tokens, 0, [0, 1, 2], 0)])) == 0
    rest = units * of_wanted // layers
    assert steps[1:] == [(NUM_TOKENS, units - rest), (2, rest), (NUM_TOKENS, units - rest)]


def test_rows_outside_of_vocabulary_cache_or_context_are_refused(models: Callable[..., ModelRunner]) -> None:
    model = models()
    size, context = model.vocab_size, model.context_length
    blocks = list(range(context // 32))
    for row in (
        Row(0, [size], 0, [0], 1),
        Row(0, [-1], 0, [0], 1),
        Row(0, [1], 0, [model.blocks], 1),
        Row(0, [1], 0, [-1], 1),
        Row(0, [1], 32, [0], 1),
        Row(0, [1], context, [*blocks, 0], 1),
    ):
        with pytest.raises(RuntimeError, match=r"vocabulary|cache|blocks|context"):
            model.evaluate([row])
    model.close()
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        model.evaluate([Row(0, [1], 0, [0], 1)])


def test_a_machine_that_computes_differently_says_so_and_has_another_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, found = write(tmp_path, "llama"), []
    for expected in (self_test.EXPECTED, "0123456789abcdef"):
        monkeypatch.setattr(self_test, "EXPECTED", expected)
        loaded = load(path)
        found.append((loaded.fingerprint, [note for note in loaded.notes if "other numbers" in note]))
        loaded.model.close()
    assert found[0][0] != found[1][0] and [len(notes) for _, notes in found] == [0, 1]


def test_the_fingerprint_is_of_weights_and_precision_alone(tmp_path: Path) -> None:
    path = write(tmp_path, "llama")
    found = {}
    cases: dict[str, dict[str, Any]] = {"one": {}, "threads": {"threads": 2}, "exact": {"precision": "exact"}}
    for name, changes in cases.items():
        loaded = load(path, **changes)
        loaded.model.close()
        found[name] = loaded.fingerprint
    assert found["one"] == found["threads"] != found["exact"]


def test_float_weights_are_rounded_as_asked(models: Callable[..., ModelRunner]) -> None:
    usual, in_8_bits, in_4_bits = models(), models(weights="int8"), models(weights="int4")
    tokens = tokens_of(usual)
    assert whole(in_8_bits, tokens).tobytes() == whole(usual, tokens).tobytes()
    difference = np.abs(log_softmax(whole(in_4_bits, tokens)) - log_softmax(whole(usual, tokens)))
    assert 0 < difference.mean() < 2


def test_exact_weights_cannot_be_rounded(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="leave out one"):
        load(write(tmp_path, "llama"), precision="exact", weights="int8")


def test_weights_that_do_not_fit_are_reported_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.runtimes.native.load.available_memory", lambda: AvailableMemory(100_000))
    with pytest.raises(MemoryTooSmall, match=r"m\.gguf take .* KiB of memory, but 98 KiB are free"):
        load(write(tmp_path, "llama"), precision="exact")


def test_embeddings_that_do_not_fit_as_numbers_are_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata, tensors = tiny("llama")
    stored: Tensors = {**tensors, "token_embd.weight": random_blocks("IQ4_NL", 30, 64)}
    monkeypatch.setattr("onward.runtimes.native.load.available_memory", lambda: AvailableMemory(1000))
    words = r"embeddings of .*m\.gguf are of type IQ4_NL, and take 8 KiB of memory as float32, but 1 KiB are free"
    with pytest.raises(MemoryTooSmall, match=words):
        load(write_gguf(tmp_path / "m.gguf", metadata, stored))


def deeper(name: str, folder: Path) -> Path:
    """A tiny model of at least five layers."""
    metadata, tensors = tiny(name)
    count = f"{metadata['general.architecture']}.block_count"
    first = metadata[count]
    metadata[count] = max(first, 5)
    for layer in range(first, 5):
        copies = {key: array for key, array in tensors.items() if key.startswith("blk.1.")}
        tensors |= {key.replace("blk.1.", f"blk.{layer}."): array * (1 - layer / 10) for key, array in copies.items()}
    return write_gguf(folder / "m.gguf", metadata, tensors)


@pytest.mark.parametrize(
    ("name", "threads"),
    [
        ("llama", 1),
        pytest.param("qwen2", 2, marks=pytest.mark.slow),
        pytest.param("gemma3", 3, marks=pytest.mark.slow),
        ("lfm2", 2),
        pytest.param("gemma3n", 2, marks=pytest.mark.slow),
        pytest.param("gemma4", 2, marks=pytest.mark.slow),
        pytest.param("opt, norms after", 2, marks=pytest.mark.slow),
        ("qwen35", 3),
    ],
)
@pytest.mark.parametrize("share", slow_but([0.7], [0.95, 0.7]))
def test_a_model_larger_than_the_memory_has_the_same_bits(
    name: str, threads: int, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers that do not fit are prepared from the file in every step, one after another."""
    path, caches = deeper(name, tmp_path), []
    released: list[int] = []
    release = PanelCache.release

    def releasing(cache: PanelCache, index: int) -> None:
        released.append(index)
        release(cache, index)

    monkeypatch.setattr(PanelCache, "release", releasing)

    def limited(groups: Any, code: Any, threads: int, budget: int, where: str, num_drafting: int) -> PanelCache:
        caches.append(PanelCache(groups, code, threads, int(budget * share), where, num_drafting))
        return caches[-1]

    found = []
    for make in (PanelCache, limited):
        monkeypatch.setattr(native_load, "PanelCache", make)
        model = load(path, threads=threads).model
        tokens, blocks = tokens_of(model), range(3)
        try:
            found.append(whole(model, tokens).tobytes())
            found[-1] += b"".join(model.evaluate([Row(0, [5], at, blocks, 1)]).tobytes() for at in range(70, 80))
            with pytest.raises(RuntimeError, match="vocabulary"):
                model.evaluate([Row(0, [-1], 0, blocks, 1)])
            found[-1] += whole(model, tokens).tobytes()
            released.clear()
            found[-1] += model.evaluate([Row(0, tokens, 0, blocks, 2)]).tobytes()
        finally:
            model.close()
    assert found[0] == found[1]
    assert sorted(released) == sorted(set(caches[0].stream_index.values()))  # once each, for the last layer too
    assert 0 < caches[0].streamed_bytes < sum(matrix.panels.nbytes for matrix in caches[0].matrices.values())


def test_panels_that_could_not_be_made_are_made_at_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(groups: Any, code: Any, threads: int, budget: int, words: str, num_drafting: int) -> PanelCache:
        return PanelCache(groups, code, threads, int(budget * 0.7), words, num_drafting)

    monkeypatch.setattr(native_load, "PanelCache", limited)
    model = load(deeper("llama", tmp_path)).model
    tokens = tokens_of(model)
    try:
        expected = whole(model, tokens)
        with monkeypatch.context() as failing:
            failing.setattr(panel_cache, "make_panels", Mock(side_effect=MemoryError))
            for _ in range(3):
                with pytest.raises(MemoryError):
                    whole(model, tokens)
        assert whole(model, tokens).tobytes() == expected.tobytes()
    finally:
        model.close()


def test_a_model_larger_than_the_memory_has_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = deeper("llama", tmp_path)
    free = iter([AvailableMemory(path.stat().st_size * 10 // 42), AvailableMemory(1 << 30)])
    monkeypatch.setattr("onward.runtimes.native.load.available_memory", lambda: next(free))
    loaded = load(path)
    loaded.model.close()
    assert any("of them from the file, which is slow; free some" in note for note in loaded.notes)


def test_a_model_that_must_fit_into_the_memory_is_refused_if_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = deeper("llama", tmp_path)
    free = [AvailableMemory(path.stat().st_size * 10 // 42)]
    monkeypatch.setattr("onward.runtimes.native.load.available_memory", lambda: free[0])
    with pytest.raises(MemoryTooSmall, match=r"The weights of .*m\.gguf take .* of memory, but .* are free"):
        load(path, must_fit=True)
    free[0] = AvailableMemory(1 << 30)
    load(path, must_fit=True).model.close()


def test_weights_that_are_quantised_are_not_rounded_again(tmp_path: Path) -> None:
    metadata, tensors = tiny("llama")
    stored: Tensors = {**tensors, "blk.0.attn_q.weight": random_blocks("Q8_0", 64, 64)}
    with pytest.raises(SetupError, match="quantised already"):
        load(write_gguf(tmp_path / "m.gguf", metadata, stored), weights="int8")


@pytest.mark.parametrize("draft_context", [None, 512])
def test_the_memory_of_states_has_a_note_unless_the_model_drafts(draft_context: int | None, tmp_path: Path) -> None:
    """A draft model has two states, whatever --kv-memory is."""
    metadata, tensors = tiny("qwen35")
    loaded = load(write_gguf(tmp_path / "m.gguf", metadata, tensors), draft_context=draft_context)
    loaded.model.close()
    assert any("sequence has a state of" in note for note in loaded.notes) == (draft_context is None)


@pytest.mark.slow
def test_weights_that_grow_have_a_note(tmp_path: Path) -> None:
    metadata, tensors = tiny("llama")
    stored: Tensors = {**tensors, "blk.0.ffn_down.weight": random_blocks("IQ4_NL", 64, 96)}
    loaded = load(write_gguf(tmp_path / "m.gguf", metadata, stored))
    loaded.model.close()
    assert any(note.startswith("Weights of type IQ4_NL are expanded, exactly") for note in loaded.notes)


@pytest.mark.slow
def test_a_server_computes_with_a_checkpoint(tmp_path: Path) -> None:
    path = write(tmp_path, "llama")

    def complete(url: str, seed: int) -> dict[str, Any]:
        body = {"model": "m", "prompt": "abc hello", "max_tokens": 20, "seed": seed, "temperature": 1.0, "logprobs": 2}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return {key: found[key] for key in ("choices", "system_fingerprint")}

    answers = []
    for threads in ("1", "2"):
        with served("--runtime", "native", "--threads", threads, "--model", str(path), model=None) as url:
            answers.append([complete(url, seed) for seed in (1, 2, 1)])
    assert answers[0] == answers[1]
    assert answers[0][0] == answers[0][2] != answers[0][1]


@pytest.mark.parametrize("count", slow_but([40], [40, 100]))
def test_mixed_requests_have_the_same_bytes_alone_and_under_load(count: int, tmp_path: Path) -> None:
    """Texts, seeds, lengths, several choices and scores: one after the other on one thread, and together on three."""
    path = str(write(tmp_path, "qwen2"))
    random = np.random.default_rng(0)
    requests: list[dict[str, Any]] = []
    for index in range(count):
        letters = random.integers(0, 26, int(random.integers(1, 120)))
        request: dict[str, Any] = {
            "prompt": "".join(chr(97 + letter) for letter in letters),
            "max_tokens": int(random.integers(1, 24)),
            "seed": index,
            "temperature": float(random.choice([0.0, 0.7, 1.3])),
            "n": int(random.integers(1, 4)),
        }
        requests.append(request | ({"logprobs": 3, "echo": True} if index % 5 == 0 else {}))

    async def answers(threads: int, *, together: bool) -> list[str]:
        async with onward.AsyncOnward(model=path, runtime="native", threads=threads, kv_memory="8MB") as client:
            calls = [client.completions.create(**request) for request in requests]
            found = await asyncio.gather(*calls) if together else [await call for call in calls]
            return [str(answer.choices) for answer in found]

    assert asyncio.run(answers(3, together=True)) == asyncio.run(answers(1, together=False))


DROPPED = """
import gc, sys, weakref
from pathlib import Path
from tests.runtimes.native.test_model import load
model = load(Path(sys.argv[1]), threads=2).model
machine = model._parts[0]
read_in_sleep = [weakref.ref(each) for each in (machine._control, machine._context, machine._completion)]
del model, machine
gc.collect()
print([each() is not None for each in read_in_sleep])
"""


@pytest.mark.slow
def test_the_threads_of_a_model_that_was_not_closed_sleep_on_memory_that_stays(tmp_path: Path) -> None:
    """In a process of its own: if it fails, the threads crash the process some time later."""
    path = write(tmp_path, "llama")
    ended = subprocess.run([sys.executable, "-c", DROPPED, path], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ended.stdout == "[True, True, True]\n"
