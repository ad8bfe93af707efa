"""The same row has the same bits: alone or among other rows, in any blocks, however its prompt is cut.

Two things are not promised, and the scheduler avoids them: a prompt cut so that one token is left at its end
(a single token takes the decode kernel), and evaluating a position again in a block that holds it already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onward.engine import block_files, disk_cache
from onward.engine.block_files import BlockFiles
from onward.engine.disk_cache import DiskCache
from onward.engine.model import Row, copy_block
from onward.engine.step import Engine
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.openvino.invariance import is_invariant
from onward.runtimes.openvino.load import load_model
from onward.runtimes.openvino.model import OpenVINOModel
from onward.runtimes.openvino.window import BLOCK_TOKENS, Window
from onward.sampling.sampler import Sampler
from onward.values import Precision
from tests.engine.harness import TOKENIZER, make_job, serve
from tests.examples import examples
from tests.runtimes.openvino.conftest import KV_MEMORY
from tests.runtimes.openvino.tiny_ir import Shape, write_folder

pytestmark = pytest.mark.slow  # each step of test_model is compared with others of the same rows, too

TABLE = 8
"""Blocks of a sequence in these tests."""


@dataclass
class Others:
    """Other sequences, in blocks of their own, that join steps as decode rows."""

    model: OpenVINOModel
    size: int
    past: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.size)
        for index in range(self.size):
            prompt = generator.integers(0, self.model.vocab_size, 33 + index).tolist()
            self.model.evaluate([Row(index, prompt, 0, self.blocks(index), 0)])
            self.past.append(len(prompt))

    def blocks(self, index: int) -> list[int]:
        return list(range(100 + 4 * index, 104 + 4 * index))

    def rows(self) -> list[Row]:
        rows = [
            Row(index, [(7 * index + past) % self.model.vocab_size], past, self.blocks(index), 1)
            for index, past in enumerate(self.past)
        ]
        self.past = [past + 1 for past in self.past]
        return rows


@dataclass
class Run:
    """One sequence: how its prompt is split, which blocks it has, and the other rows of its steps."""

    model: OpenVINOModel
    prompt: list[int]
    blocks: list[int]
    others: Others

    def prefill(self, chunks: list[int], outputs: int = 1) -> NDArray[np.float32]:
        """Return the logits of the prompt's last `outputs` tokens, with other rows before and after it."""
        assert sum(chunks) == len(self.prompt)
        start = 0
        for chunk in chunks:
            last = start + chunk == len(self.prompt)
            row = Row(-1, self.prompt[start : start + chunk], start, self.blocks, outputs if last else 0)
            logits = self._step(row)
            start += chunk
        return logits

    def decode(self, tokens: list[int]) -> NDArray[np.float32]:
        """Evaluate `tokens` one by one and return the logits after each."""
        steps = [
            self._step(Row(-1, [token], len(self.prompt) + index, self.blocks, 1)) for index, token in enumerate(tokens)
        ]
        return np.concatenate([np.empty((0, self.model.vocab_size), np.float32), *steps])

    def _step(self, row: Row) -> NDArray[np.float32]:
        others = self.others.rows()
        half = len(others) // 2
        logits = self.model.evaluate([*others[:half], row, *others[half:]])
        assert len(logits) == len(others) + row.outputs
        return logits[half : half + row.outputs].copy()


@pytest.fixture(
    scope="module",
    params=[("int8", "fast"), ("int8", "exact"), ("int4", "fast"), ("int4", "exact"), ("f16", "fast")],
    ids="-".join,
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenVINOModel]:
    weights, precision = request.param
    shape = Shape(weights=weights, tied=weights == "int8", head="softcap")
    folder = write_folder(tmp_path_factory.mktemp("determinism") / weights, shape)
    model = load_model(folder, RuntimeOptions(precision=precision))
    generator = np.random.default_rng(1)
    for block in range(0, 256, TABLE):  # as if other sequences had written to it
        garbage = generator.integers(0, model.vocab_size, TABLE * BLOCK_TOKENS).tolist()
        model.evaluate([Row(-1, garbage, 0, range(block, block + TABLE), 0)])
    yield model
    model.close()


def prompt_of(model: OpenVINOModel, length: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(length).integers(0, model.vocab_size, length).tolist()
    return tokens


def plain(model: OpenVINOModel, prompt: list[int], tokens: list[int]) -> NDArray[np.float32]:
    """The prompt in one chunk and lone decode steps: the reference for every other way."""
    run = Run(model, prompt, list(range(TABLE)), Others(model, 0))
    return np.concatenate([run.prefill([len(prompt)]), run.decode(tokens)])


@st.composite
def cuts(draw: st.DrawFn) -> list[int]:
    """Chunk lengths of a prompt: single tokens only where the prompt is one."""
    chunks = draw(st.lists(st.integers(2, 64), max_size=3))
    tail = draw(st.integers(2 if chunks else 1, 40))
    return [*chunks, tail]


@settings(max_examples=examples(20))
@given(
    chunks=cuts(),
    blocks=st.permutations(range(90)).map(lambda ids: list(ids[:TABLE])),
    others=st.sampled_from([0, 1, 2, 7, 31]),
    tokens=st.lists(st.integers(0, 255), min_size=1, max_size=4),
)
def test_chunks_blocks_and_other_rows_do_not_change_a_bit(
    model: OpenVINOModel, chunks: list[int], blocks: list[int], others: int, tokens: list[int]
) -> None:
    prompt = prompt_of(model, sum(chunks))
    run = Run(model, prompt, blocks, Others(model, others))
    logits = np.concatenate([run.prefill(chunks), run.decode(tokens)])
    assert logits.tobytes() == plain(model, prompt, tokens).tobytes()


def test_a_prefill_with_another_prefill_has_the_same_bits(model: OpenVINOModel) -> None:
    prompt = prompt_of(model, 70)
    expected = plain(model, prompt, [])
    rows = [
        Row(1, prompt_of(model, 64), 0, [40, 41], 0),
        Row(2, prompt, 0, [50, 51, 52], 1),
        Row(3, prompt_of(model, 5), 0, [60], 1),
    ]
    assert model.evaluate(rows)[:1].tobytes() == expected.tobytes()


def test_a_lone_decode_row_equals_one_among_thirty_two(model: OpenVINOModel) -> None:
    prompt = prompt_of(model, 45)
    run = Run(model, prompt, list(range(20, 28)), Others(model, 31))
    logits = np.concatenate([run.prefill([45]), run.decode([1, 2, 3])])
    assert logits.tobytes() == plain(model, prompt, [1, 2, 3]).tobytes()


@pytest.mark.parametrize("length", [2, 31, 33, 64, 65, 100])
def test_the_last_token_has_the_same_bits_when_every_token_is_scored(model: OpenVINOModel, length: int) -> None:
    prompt = prompt_of(model, length)
    run = Run(model, prompt, list(range(8, 16)), Others(model, 0))
    scored = run.prefill([length], outputs=length)
    assert scored.shape == (length, model.vocab_size)
    assert scored[-1:].tobytes() == plain(model, prompt, []).tobytes()


def test_scoring_after_a_shared_prefix_equals_scoring_the_whole(model: OpenVINOModel) -> None:
    prompt = prompt_of(model, 100)
    run = Run(model, prompt, list(range(8, 16)), Others(model, 3))
    whole = run.prefill([100], outputs=100)
    model.evaluate([Row(-1, prompt[:64], 0, [30, 31], 0)])
    after = model.evaluate([Row(-1, prompt[64:], 64, [30, 31, 32, 33], 36)])
    assert after.tobytes() == whole[64:].tobytes()


def test_a_fork_of_a_partly_filled_block_continues_with_the_same_bits(model: OpenVINOModel) -> None:
    prompt, tokens = prompt_of(model, 40), list(range(40))
    expected = plain(model, prompt, tokens)[1:]
    parent = Run(model, prompt, [70, 71, 72, 73], Others(model, 0))
    parent.prefill([40])
    copy_block(model, 71, 80)
    child = Run(model, prompt, [70, 80, 81, 82], Others(model, 2))
    parent.decode(tokens[::-1])
    assert child.decode(tokens).tobytes() == expected.tobytes()


def test_replaying_decode_steps_after_a_preemption_restores_every_bit(model: OpenVINOModel) -> None:
    prompt, tokens = prompt_of(model, 50), [3, 1, 4, 1, 5, 9, 2, 6]
    expected = plain(model, prompt, tokens)
    resumed = Run(model, prompt, [85, 86, 87], Others(model, 5))
    resumed.prefill([32, 18])
    assert resumed.decode(tokens)[-1:].tobytes() == expected[-1:].tobytes()


def test_padding_rows_never_touch_the_blocks_of_a_sequence(model: OpenVINOModel) -> None:
    prompt = prompt_of(model, 40)
    run = Run(model, prompt, [model.blocks - 1, model.blocks - 2], Others(model, 0))
    logits = np.concatenate([run.prefill([40]), run.decode([5, 6, 7])])
    assert logits.tobytes() == plain(model, prompt, [5, 6, 7]).tobytes()


def drafted(run: Run, tokens: list[int], drafts: list[int], past: int) -> NDArray[np.float32]:
    """Return the logits after each of `tokens`, evaluated in one step with `drafts` after them, one row per token."""
    others = run.others.rows()
    rows = [
        Row(-1, [token], len(run.prompt) + past + index, run.blocks, 1) for index, token in enumerate(tokens + drafts)
    ]
    logits = run.model.evaluate([*others, *rows])
    return logits[len(others) : len(others) + len(tokens)].copy()


@settings(max_examples=examples(15))
@given(
    parts=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=6),
    others=st.sampled_from([0, 1, 5]),
    length=st.integers(2, 70),
)
def test_drafts_evaluated_in_one_step_have_the_bits_of_single_steps(
    model: OpenVINOModel, parts: list[tuple[int, int]], others: int, length: int
) -> None:
    """Each part is some accepted tokens and some rejected ones, which the next accepted ones overwrite."""
    prompt = prompt_of(model, length)
    tokens = np.random.default_rng(9).integers(0, 255, sum(right for right, _ in parts)).tolist()
    expected = plain(model, prompt, tokens)[1:]
    run = Run(model, prompt, list(range(60, 68)), Others(model, others))
    run.prefill([length])
    past = 0
    logits = []
    for right, wrong in parts:
        logits.append(drafted(run, tokens[past : past + right], [(7 * past + n) % 250 for n in range(wrong)], past))
        past += right
    assert np.concatenate(logits).tobytes() == expected.tobytes()


def test_drafts_of_forks_that_share_their_prompt_are_independent(model: OpenVINOModel) -> None:
    prompt = prompt_of(model, 40)
    first, second = [1, 2, 3, 4], [9, 8, 7, 6]
    expected = [plain(model, prompt, tokens)[1:] for tokens in (first, second)]
    Run(model, prompt, [70, 71, 72], Others(model, 0)).prefill([40])
    copy_block(model, 71, 80)
    rows = [
        Row(number, [token], 40 + index, blocks, 1)
        for number, (tokens, blocks) in enumerate([(first, [70, 71, 72]), (second, [70, 80, 82])])
        for index, token in enumerate(tokens)
    ]
    assert model.evaluate(rows).tobytes() == np.concatenate(expected).tobytes()


def test_old_contents_of_a_block_are_never_used(model: OpenVINOModel) -> None:
    """Earlier contents of a block, even NaN, never enter a sum."""
    prompt, tokens = prompt_of(model, 45), [1, 2, 3]
    expected = plain(model, prompt, tokens)
    assert np.isfinite(expected).all()
    for _, tensor in model._open()[1].tensors:
        tensor.data[200:232] = np.nan
    run = Run(model, prompt, [200, 201, 202], Others(model, 0))
    logits = np.concatenate([run.prefill([32, 13]), run.decode(tokens)])
    drafts = Run(model, prompt, [203, 204, 205], Others(model, 0))
    drafts.prefill([45])
    assert logits.tobytes() == expected.tobytes()
    assert drafted(drafts, tokens, [5, 6], 0).tobytes() == expected[1:].tobytes()
    for _, tensor in model._open()[1].tensors:
        tensor.data[200:232] = 0


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_the_number_of_threads_does_not_change_a_bit(tiny_folder: Path, threads: int) -> None:
    prompt = list(range(70))
    many, few = (load_model(tiny_folder, RuntimeOptions(threads=each)) for each in (0, threads))
    assert plain(few, prompt, [1, 2, 3]).tobytes() == plain(many, prompt, [1, 2, 3]).tobytes()


def found_at_load(model: OpenVINOModel) -> tuple[Window, int]:
    """Return the window that this processor needs, and the number of threads where a window pads short steps (else 0):
    sums of short steps may be split into one part per thread."""
    evaluator = model._open()[0]
    threads = int(evaluator._request.get_compiled_model().get_property("INFERENCE_NUM_THREADS"))
    return evaluator.window, threads if evaluator.window.min_tokens > Window().min_tokens else 0


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_a_model_is_invariant_on_any_number_of_threads(tiny_folder: Path, precision: Precision, threads: int) -> None:
    prompt, tokens = list(range(10, 90)), [11, 12, 13, 14, 15]
    usual = load_model(tiny_folder, RuntimeOptions(precision=precision, kv_memory=4 << 20))
    model = load_model(tiny_folder, RuntimeOptions(precision=precision, threads=threads))
    expected = plain(usual, prompt, tokens)
    assert plain(model, prompt, tokens).tobytes() == expected.tobytes()
    assert is_invariant(model.evaluate, model.vocab_size)
    assert (model.fingerprint == usual.fingerprint) == (found_at_load(model) == found_at_load(usual))
    run = Run(model, prompt, list(range(60, 68)), Others(model, 9))
    run.prefill([80])
    assert drafted(run, tokens, [3, 3, 3], 0).tobytes() == expected[1:].tobytes()


def test_law_3_blocks_from_a_disk_have_the_same_bits_as_computed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a restart, also with scores of the prompt."""
    monkeypatch.setattr(block_files, "MIN_FREE_BYTES", 0)
    monkeypatch.setattr(disk_cache, "READ_SECONDS", 600.0)
    folder, found = write_folder(tmp_path / "model", Shape(vocab=TOKENIZER.size)), []
    prompt = [int(token) for token in np.random.default_rng(5).integers(0, 256, 150)]
    for _ in range(2):
        model = load_model(folder, RuntimeOptions(kv_memory=KV_MEMORY))
        engine = Engine(model, TOKENIZER, Sampler(model.vocab_size))
        files = BlockFiles(tmp_path / "cache", 1 << 24, sum(part.nbytes for part in model.block_memory(0)))
        engine.disk = DiskCache(files, model.fingerprint, engine.cache, model)
        try:
            jobs = [make_job(prompt, score_top=2), make_job(prompt[:100], choices=2, max_tokens=4)]
            found.append([result.bits for result in serve(engine, jobs, one_by_one=True)])
            assert engine.load().num_disk_tokens == (128 if len(found) == 2 else 0)
        finally:
            engine.close()
    assert found[0] == found[1]
