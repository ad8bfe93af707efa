"""Every load and store of a step lies within what its tape was given, for models and for tapes of random sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.engine.model import Row
from onward.kernels.activations import ACTIVATIONS, ActivationName
from onward.kernels.altup_tape import AltUpStates, AltUpTape
from onward.kernels.attention_shape import AttentionShape
from onward.kernels.code import Code, link
from onward.kernels.compiler import compile_object
from onward.kernels.interpreter import Kernels
from onward.kernels.machine import Machine
from onward.kernels.memory import Rows, Vector
from onward.kernels.operands import Matrix, Norm, Table
from onward.kernels.panels import panel_count
from onward.kernels.products import ProductKind
from onward.kernels.recipe import Recipe
from onward.kernels.tape import TapeBuilder
from onward.kernels.targets import host
from onward.kernels.type_table import WEIGHT_TYPES
from onward.runtimes.native import load as native_load
from tests.checkpoints.mtp import predicting_layer, write_predicting_gguf
from tests.checkpoints.test_architectures import OF_FOLDERS
from tests.checkpoints.tiny import ARCHITECTURES
from tests.examples import slow_but
from tests.kernels.checked import Checker
from tests.runtimes.native.drafted_steps import drafted_steps
from tests.runtimes.native.test_model import DIFFERENT_NAMES, load, tokens_of, write

MODELS = [name for name in ARCHITECTURES if name not in OF_FOLDERS]
PREDICTING = "qwen35", "qwen35moe", "deepseek2, groups of sigmoids"
ROWS = 6


def compiled(recipes: Iterable[Recipe], checker: Checker) -> Code:
    with checker.writing():
        texts = [recipe.text() for recipe in recipes]
    return link([compile_object(text, host()) for text in texts], host())


@pytest.mark.parametrize("name", slow_but([], MODELS, DIFFERENT_NAMES))
def test_a_model_stays_within_its_memory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = Checker()

    monkeypatch.setattr(native_load, "load_code", lambda *recipes, **_: compiled(recipes, checker))
    model = load(write(tmp_path, name), threads=2, precision="exact" if len(name) % 2 else "fast").model
    try:
        tokens, blocks = tokens_of(model), [model.blocks - 1, 0, 1]
        for is_watched in (False, True):  # experts are prepared from Python's memory when they are first used
            if is_watched:
                checker.watch([model])
            model.evaluate([Row(0, tokens, 0, blocks, 5)])
            model.evaluate([Row(0, [1], 70, blocks, 1), *(Row(i, [2], 0, [i + 1], 1, state=i) for i in range(1, 4))])
            for rows in drafted_steps(model) if model.shape.states else ():
                model.evaluate(rows)
        accesses, outside = checker.result()
    finally:
        model.close()
    assert accesses > 10_000 and outside == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PREDICTING)
@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_a_layer_that_predicts_stays_within_its_memory(
    name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where hidden states are those of the last block, and where several tokens are drafted one by one."""
    checker = Checker()

    monkeypatch.setattr(native_load, "load_code", lambda *recipes, **_: compiled(recipes, checker))
    path = write_predicting_gguf(tmp_path / "m.gguf", name, predicting_layer(name))
    loaded = load(path, threads=2, precision=precision, has_predictor=True)
    model, predictor = loaded.model, loaded.predictor
    assert predictor is not None
    try:
        tokens, blocks = tokens_of(model), [model.blocks - 1, 0, 1]
        for is_watched in (False, True):  # experts are prepared from Python's memory when they are first used
            if is_watched:
                checker.watch([model, predictor])
            model.evaluate([Row(0, tokens, 0, blocks, 5)])
            for begin, outputs in ((0, 0), (33, 1), (69, 1)):
                predictor.evaluate([Row(0, tokens[begin:], begin, blocks, outputs)])
            for token in range(30):
                predictor.extend(token % model.vocab_size)
        accesses, outside = checker.result()
    finally:
        predictor.close()
        model.close()
    assert accesses > 10_000 and outside == 0


@pytest.mark.slow
def test_inputs_of_layers_may_be_the_longest_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stated = {
        "block_count": 2, "attention.sliding_window_pattern": [True, False], "attention.shared_kv_layers": 0,
        "feed_forward_length": 96, "embedding_length_per_layer_input": 40_960,
    }  # fmt: skip
    monkeypatch.setitem(ARCHITECTURES, "gemma4, long inputs", ARCHITECTURES["gemma4"] | stated)
    checker = Checker()

    monkeypatch.setattr(native_load, "load_code", lambda *recipes, **_: compiled(recipes, checker))
    model = load(write(tmp_path, "gemma4, long inputs"), threads=1).model
    try:
        checker.watch([model])
        model.evaluate([Row(0, [1], 0, [0], 1)])
        accesses, outside = checker.result()
    finally:
        model.close()
    assert accesses > 10_000 and outside == 0


def test_a_tape_knows_the_longest_row_that_needs_scratch_memory() -> None:
    tape, rows = TapeBuilder(Kernels(KINDS, ("F32",), SHAPES), ROWS, 1), Rows.allocate(ROWS, 4 * 512)
    assert tape.longest_row == 0
    tape.norm(rows, Norm(Vector.of(np.ones(96, np.float32)), 1e-5), rows, "float32")
    assert tape.longest_row == 96
    tape.unit(None, rows, 320, rows, "float32", "gelu")
    tape.quantise(rows, 512, rows, "float32")
    assert tape.longest_row == 320


SHAPES = AttentionShape(4, 2, 16, 16), AttentionShape(2, 1, 32, 32), AttentionShape(2, 2, 32, 16, own_value_size=20)
KINDS = (ProductKind("Q4_0", "int8"), ProductKind("Q6_K", "int8"), ProductKind("F16", "float32"))
CHECKERS: list[Checker] = []


@cache
def kernels(kinds: tuple[ProductKind, ...] = KINDS) -> tuple[Kernels, Checker, Code]:
    made = Kernels(kinds, ("F32", "Q4_0"), SHAPES, has_altup=True, has_sparse_gates=True)
    checker = Checker()
    CHECKERS.append(checker)
    return made, checker, compiled(made.recipes(host().isa), checker)


class RandomTape:
    """Asks the builder for records of any size; those that it refuses are left out."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.tape = data, AltUpTape(kernels()[0], ROWS, 1)
        self.num_accepted = 0

    def number(self, *usual: int) -> int:
        return self.data.draw(st.sampled_from(usual) | st.integers(1, 600))

    def rows(self) -> Rows:
        return Rows.exactly(self.data.draw(st.sampled_from([ROWS, ROWS, ROWS, 1])), 4 * self.number(32, 64, 256, 512))

    def states(self) -> AltUpStates:
        return AltUpStates(self.rows(), self.number(1, 2, 4), self.number(16, 32, 64))

    def form(self) -> ActivationName:
        return self.data.draw(st.sampled_from(sorted(ACTIVATIONS)))

    def norm(self) -> Norm:
        sizes = [self.number(16, 32, 64, 256) for _ in range(2)]
        bias = self.data.draw(st.sampled_from([None, Vector.of(np.ones(sizes[1], np.float32))]))
        return Norm(Vector.of(np.ones(sizes[0], np.float32)), 1e-5, bias, self.data.draw(st.booleans()))

    def matrix(self, kind: ProductKind) -> Matrix:
        rows, inputs = self.number(16, 32, 40), self.number(32, 64, 256, 512)
        whole = Matrix(kind.weights, rows, inputs, np.empty(0, np.uint8))
        size = panel_count(rows) * whole.panel_bytes - self.data.draw(st.sampled_from([0, 0, 0, 1]))
        return Matrix(kind.weights, rows, inputs, np.zeros(size, np.uint8))

    def table(self) -> Table:
        name, rows, inputs = self.data.draw(st.sampled_from(["F32", "Q4_0"])), 7, self.number(32, 64, 256)
        kind = WEIGHT_TYPES[name]
        blocks = -(-inputs // kind.block_weights)
        return Table(name, rows, inputs, np.zeros(rows * blocks * kind.block_bytes + self.number(1) - 1, np.uint8))

    def append(self) -> None:
        tape, form = self.tape, self.form()
        kind = self.data.draw(st.sampled_from(KINDS))
        size = self.number(32, 64, 256)
        shape = self.data.draw(st.sampled_from(SHAPES))
        vector = self.data.draw(st.sampled_from([None, Vector.of(np.ones(size, np.float32))]))
        records: list[Callable[[], None]] = [
            lambda: tape.embed(self.table(), self.rows(), of_positions=True),
            lambda: tape.norm(self.rows(), self.norm(), self.rows(), form, added_scale=None),
            lambda: tape.norm(self.rows(), self.norm(), self.rows(), form, added_scale=0.5),
            lambda: tape.norm(self.rows(), self.norm(), self.rows(), form, reference=self.rows()),
            lambda: tape.sparsify(self.rows(), size, 0.5),
            lambda: tape.altup(self.states(), self.states(), self.rows()),
            lambda: tape.altup(self.states(), self.states(), self.rows(), self.rows()),
            lambda: tape.norm_heads(self.rows(), self.number(1, 2, 4), self.number(16, 32), self.norm()),
            lambda: tape.quantise(self.rows(), size, self.rows(), form),
            lambda: tape.quantise(self.rows(), size, self.rows(), form, vector),
            lambda: tape.unit(self.rows(), self.rows(), size, self.rows(), form, "gelu"),
            lambda: tape.unit(None, self.rows(), size, self.rows(), form, "silu"),
            lambda: tape.products(
                [(self.matrix(kind), self.rows(), vector)], {kind.activations: self.rows()}, [kind.activations],
                scales=[0.5], is_added=True,
            ),
            lambda: tape.attend(shape, self.rows(), Rows.exactly(3, self.number(8192, 4096)), self.rows()),
        ]  # fmt: skip
        try:
            self.data.draw(st.sampled_from(records))()
        except ValueError:
            return
        self.num_accepted += 1


@pytest.mark.slow
@given(st.data())
def test_what_a_tape_accepts_stays_within_its_memory(data: st.DataObject) -> None:
    made, checker, code = kernels()
    random = RandomTape(data)
    while random.num_accepted < 3:
        random.append()
    parts = random.tape.finish()
    machine = Machine(
        code, parts, NoWeights(), made, rows=ROWS, positions=64, threads=1,
        scratch_bytes=made.scratch_bytes(host().isa, 1024),
    )  # fmt: skip
    blocks = np.array([2, 0], np.int32)
    machine.positions[:] = range(ROWS)
    machine.tables[:] = blocks.ctypes.data
    machine.plan(ROWS)
    checker.watch([machine, random.tape, parts, blocks])
    machine.step(ROWS, parts)
    accesses, outside = checker.result()
    assert accesses > 0 and outside == 0


class NoWeights:
    def acquire(self, index: int) -> None: ...
    def release(self, index: int) -> None: ...


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    for checker in CHECKERS:
        checker.result()


@pytest.mark.slow
def test_a_record_that_exceeds_its_memory_is_found() -> None:
    """A record that states longer rows than their memory has."""
    made, checker, code = kernels((ProductKind("F32", "float32"),))
    tape = TapeBuilder(made, ROWS, 1)
    source, target = Rows.allocate(ROWS, 256), Rows.allocate(ROWS, 256)
    tape.quantise(source, 64, target, "float32")
    parts = tape.finish()
    machine = Machine(
        code, parts, NoWeights(), made, rows=ROWS, positions=64, threads=1,
        scratch_bytes=made.scratch_bytes(host().isa, 1024),
    )  # fmt: skip
    machine.plan(ROWS)
    short = Rows(target.memory, ROWS - 1, target.stride)
    checker.watch([machine, parts, source, short])
    machine.step(ROWS, parts)
    assert checker.result()[1] == 4  # vectors of the last row
