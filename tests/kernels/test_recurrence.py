"""Layers with a recurrent state have the bits of their definition, wherever a step ends."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.kernels.attention_shape import AttentionShape
from onward.kernels.code import Functions
from onward.kernels.function import Function, Module
from onward.kernels.interpreter import Kernels
from onward.kernels.isa import Isa
from onward.kernels.memory import Rows, Vector, address
from onward.kernels.products import ProductKind
from onward.kernels.records import CONTEXT, CONTEXT_WORDS, DELTA, OWN, RUN, RUN_BYTES, SCAN
from onward.kernels.recurrence import DeltaShape, emit_delta, emit_scan, ring_bytes
from onward.kernels.recurrence_tape import DeltaGates, Kept, RecurrentTape
from onward.kernels.values import I64, PTR
from tests.examples import slow_but
from tests.kernels.definition import delta_rule, scanned
from tests.kernels.emulated import executable_forms
from tests.kernels.harness import compiled

POSITIONS = 45
SHAPES = [(DeltaShape(32, 64), 2, 4), (DeltaShape(16, 16), 1, 3), (DeltaShape(48, 32), 2, 2)]
"""With heads of keys and of values: columns of one piece, of several, and of one vector."""
CUTS = {"at once": [POSITIONS], "one by one": [1] * POSITIONS, "in chunks": [3, 32, 1, 9]}


@cache
def code(form: str, shape: DeltaShape) -> Functions:
    def write(module: Module, isa: Isa) -> None:
        for name, operation in {"scan": emit_scan(module), "delta": emit_delta(module, shape)}.items():
            f = Function(module, name, [PTR, PTR, I64, PTR], exported=True)
            f.call(operation, f.args)
            f.ret()

    return compiled(write, executable_forms().get(form))


LOG_ROWS = 32


class Run(NamedTuple):
    """Rows of one sequence, and what its log has: see records.RUN."""

    first_row: int
    rows: int
    slot: int
    start: int
    """The position of the first row."""
    known: int
    drafts: int = 0
    logged: int = 0
    log: int = 0
    next_log: int = 0


class Step:
    """Calls an operation for runs."""

    def __init__(self, form: str, shape: DeltaShape) -> None:
        self._functions = code(form, shape)
        self._scratch, self._own = np.full(4096, np.nan, np.float32), np.zeros(8, np.int64)
        self.log = np.full((LOG_ROWS, 512), np.nan, np.float32)

    def call(self, name: str, record: NDArray[np.int64], runs: list[Run]) -> None:
        positions = np.concatenate([np.arange(each.start, each.start + each.rows) for each in runs])
        words = np.zeros((len(runs), RUN_BYTES // 8), np.int64)
        for line, run in zip(words, runs, strict=True):
            RUN.set(line, **{field: value for field, value in run._asdict().items() if field != "start"})
        context, counter = np.zeros(CONTEXT_WORDS, np.int64), np.zeros(8, np.int64)
        CONTEXT.set(
            context, rows=len(positions), threads=1, positions=positions, scratch=self._scratch,
            scratch_stride=self._scratch.nbytes, runs=words, num_runs=len(runs), log_stride=self.log.strides[0],
        )  # fmt: skip
        OWN.set(self._own, counter=counter, step=0, total=0, is_last=0)
        p, i = ctypes.c_void_p, ctypes.c_int64
        self._functions.function(name, [p, p, i, p])(address(record), address(context), 0, address(self._own))


def garbage(slots: int, size: int) -> NDArray[np.float32]:
    """States that were used before, filled with NaN."""
    return np.full((slots, size // 4), np.nan, np.float32)


WIDTH = 48


def scan_record(values: NDArray[np.float32], weights: Any, bias: Any, states: NDArray[np.float32], log: Any) -> Any:
    return SCAN.record(
        0, values=values, stride=values.strides[0], width=values.shape[1], weights=weights, length=len(weights),
        bias=bias, states=states, state_stride=states.strides[0], log=log, pieces=2,
    )  # fmt: skip


class Scan:
    """Random inputs of a sequence, and the operation."""

    def __init__(self, form: str, length: int, *, has_bias: bool) -> None:
        random = np.random.default_rng(length)
        self.rows = random.normal(size=(POSITIONS, WIDTH)).astype(np.float32)
        self._weights = random.normal(size=(length, WIDTH)).astype(np.float32)
        self._bias = random.normal(size=WIDTH).astype(np.float32) if has_bias else None
        self._states, self._step = garbage(3, ring_bytes(WIDTH, length)), Step(form, SHAPES[0][0])

    def expected(self) -> NDArray[np.float32]:
        return scanned(self.rows, self._weights, self._bias)

    def run(self, start: int, count: int, known: int, drafts: list[int] | None = None, **log: int) -> Any:
        """Rows of the second slot, between rows of two others. `drafts`: the rows of drafts after them."""
        own = self.rows[[*range(start, start + count), *(drafts or ())]]
        values = np.concatenate([self.rows[:2], own, self.rows[:1]])
        num_drafts = len(drafts or ())
        run = Run(2, count + num_drafts, 1, start, known, num_drafts, **log)
        others = Run(0, 2, 0, 0, 0), Run(2 + len(own), 1, 2, 0, 0)
        record = scan_record(values, self._weights, self._bias, self._states, self._step.log)
        self._step.call("scan", record, [others[0], run, others[1]])
        return values[2:-1]


def scan(form: str, cuts: list[int], length: int, *, has_bias: bool) -> tuple[Any, Any]:
    """The kernel's results and the definition's. In each step the sequence lies between two others."""
    made, found, start = Scan(form, length, has_bias=has_bias), [], 0
    for count in cuts:
        found.append(made.run(start, count, start))
        start += count
    return np.concatenate(found), made.expected()


@pytest.mark.parametrize(("length", "has_bias"), [(4, False), (3, True), (2, True)])
@pytest.mark.parametrize("cuts", slow_but(["in chunks"], CUTS))
def test_convolutions_have_the_bits_of_their_definition(cuts: str, length: int, has_bias: bool) -> None:
    found, expected = scan("host", CUTS[cuts], length, has_bias=has_bias)
    assert found.tobytes() == expected.tobytes()


class Delta:
    """Random inputs of a sequence, and the operation."""

    def __init__(self, form: str, shape: DeltaShape, num_key_heads: int, num_heads: int, *, is_tiled: bool) -> None:
        self.shape, self.num_key_heads, self.num_heads, self.is_tiled = shape, num_key_heads, num_heads, is_tiled
        random = np.random.default_rng(shape.value_size)
        keys = num_key_heads * shape.key_size
        self.rows = random.normal(size=(POSITIONS, 2 * keys + num_heads * shape.value_size)).astype(np.float32)
        self.alpha, self.beta = (4 * random.normal(size=(2, POSITIONS, num_heads))).astype(np.float32)
        self.decay = -random.uniform(0.01, 2, num_heads).astype(np.float32)
        self.bias = random.normal(size=num_heads).astype(np.float32)
        self._parameters = np.concatenate([self.decay, self.bias])
        self.states = garbage(2, num_heads * shape.head_bytes)
        self.step = Step(form, shape)

    def expected(self) -> NDArray[np.float32]:
        keys, positions = self.num_key_heads * self.shape.key_size, len(self.rows)
        queries, key, values = np.split(self.rows, [keys, 2 * keys], axis=1)
        share = self.num_heads // self.num_key_heads
        head = np.arange(self.num_heads)
        chosen = head % self.num_key_heads if self.is_tiled else head // share
        queries, key = (each.reshape(positions, -1, self.shape.key_size)[:, chosen] for each in (queries, key))
        values = values.reshape(positions, self.num_heads, -1)
        found = delta_rule(queries, key, values, self.alpha, self.beta, self.decay, self.bias)
        return found.reshape(positions, -1)

    def run(
        self, start: int, count: int, known: int, drafts: list[int] | None = None, **log: int
    ) -> NDArray[np.float32]:
        """Rows of the second slot, after one of the first slot at position 0. `drafts`: the rows of drafts after them,
        which are written to the log as the convolution before it does."""
        num_drafts = len(drafts or ())
        place = [0, *range(start, start + count), *(drafts or ())]
        rows, alpha, beta = (np.ascontiguousarray(each[place]) for each in (self.rows, self.alpha, self.beta))
        found = np.full((len(place), self.num_heads * self.shape.value_size), np.nan, np.float32)
        begin = log.get("next_log", 0)
        self.step.log[begin : begin + num_drafts, : rows.shape[1]] = rows[len(rows) - num_drafts :]
        record = DELTA.record(
            0, values=rows, stride=rows.strides[0], alpha=alpha, beta=beta, gate_stride=alpha.strides[0],
            parameters=self._parameters, states=self.states, state_stride=self.states.strides[0], log=self.step.log,
            target=found, target_stride=found.strides[0], num_key_heads=self.num_key_heads, num_heads=self.num_heads,
            is_tiled=self.is_tiled,
        )  # fmt: skip
        run = Run(1, count + num_drafts, 1, start, known, num_drafts, **log)
        self.step.call("delta", record, [Run(0, 1, 0, 0, 0), run])
        return found[1:]


@pytest.mark.parametrize("is_tiled", slow_but([True], [False, True]))
@pytest.mark.parametrize(("shape", "keys", "heads"), SHAPES)
@pytest.mark.parametrize("cuts", slow_but(["in chunks"], CUTS))
def test_delta_rules_have_the_bits_of_their_definition(
    cuts: str, shape: DeltaShape, keys: int, heads: int, is_tiled: bool
) -> None:
    delta, found, start = Delta("host", shape, keys, heads, is_tiled=is_tiled), [], 0
    for count in CUTS[cuts]:
        found.append(delta.run(start, count, start))
        start += count
    assert np.concatenate(found).tobytes() == expected_bytes(shape, keys, heads, is_tiled)


@cache
def expected_bytes(shape: DeltaShape, keys: int, heads: int, is_tiled: bool) -> bytes:
    """Of the definition, wherever the steps end."""
    return Delta("host", shape, keys, heads, is_tiled=is_tiled).expected().tobytes()


def test_a_row_that_the_state_has_taken_in_leaves_it_unchanged() -> None:
    delta = Delta("host", *SHAPES[0], is_tiled=False)
    expected = delta.expected()
    delta.run(0, 7, 0)
    before = delta.states[1].copy()
    for _ in range(2):
        assert delta.run(6, 1, 7).tobytes() == expected[6:7].tobytes()
    assert delta.states[1].tobytes() == before.tobytes()
    assert delta.run(7, 3, 7).tobytes() == expected[7:10].tobytes()


def require_drafts_change_no_bit(made: Scan | Delta) -> None:
    """Steps with drafts, of which all are accepted, some, or none. A rejected one is the row of another position."""
    expected = made.expected()
    assert made.run(0, 5, 0).tobytes() == expected[:5].tobytes()
    found = made.run(5, 1, 5, [6, 7, 8], next_log=3)
    assert found.tobytes() == expected[5:9].tobytes()
    found = made.run(9, 1, 6, [10, 11, 30, 31], logged=3, log=3, next_log=16)
    assert found[:3].tobytes() == expected[9:12].tobytes()
    found = made.run(12, 2, 10, [40], logged=2, log=16, next_log=0)  # as a prompt's rows: two at once
    assert found[:2].tobytes() == expected[12:14].tobytes()
    found = made.run(14, 1, 14, [15, 16], next_log=16)
    assert found.tobytes() == expected[14:17].tobytes()
    found = made.run(14, 1, 15, [15, 20], next_log=0)  # the newest row once more
    assert found[:2].tobytes() == expected[14:16].tobytes()
    assert made.run(16, 3, 15, logged=1, log=0).tobytes() == expected[16:19].tobytes()


@pytest.mark.parametrize(("length", "has_bias"), [(4, False), (3, True), (2, True)])
def test_drafts_change_no_bit_of_a_convolution(length: int, has_bias: bool) -> None:
    require_drafts_change_no_bit(Scan("host", length, has_bias=has_bias))


@pytest.mark.parametrize("is_tiled", slow_but([True], [False, True]))
@pytest.mark.parametrize(("shape", "keys", "heads"), SHAPES)
def test_drafts_change_no_bit_of_a_delta_rule(shape: DeltaShape, keys: int, heads: int, is_tiled: bool) -> None:
    require_drafts_change_no_bit(Delta("host", shape, keys, heads, is_tiled=is_tiled))


@pytest.mark.parametrize("form", slow_but([], sorted(executable_forms())))
def test_every_form_has_the_bits_of_the_definition(form: str) -> None:
    found, expected = scan(form, CUTS["in chunks"], 4, has_bias=True)
    assert found.tobytes() == expected.tobytes()
    for shape, keys, heads in SHAPES:
        delta = Delta(form, shape, keys, heads, is_tiled=True)
        assert delta.run(0, POSITIONS, 0).tobytes() == delta.expected().tobytes()
        require_drafts_change_no_bit(delta)
    require_drafts_change_no_bit(Scan(form, 4, has_bias=True))


def test_what_leaves_its_memory_is_refused() -> None:
    shape = DeltaShape(16, 32)
    product, attention = (ProductKind("F32", "float32"),), (AttentionShape(1, 1, 16, 16),)
    tape = RecurrentTape(Kernels(product, ("F32",), attention, delta=shape), 4, 1)
    values, target = Rows.allocate(4, 4 * (2 * 2 * 16 + 4 * 32)), Rows.allocate(4, 4 * 4 * 32)
    log = Rows.allocate(2, 4 * (192 + 2 * 4))
    weights, states = Vector.of(np.ones(4 * 192, np.float32)), Kept(Rows.exactly(3, 4 * 4 * 192), log)
    own = Kept(Rows.exactly(3, 4 * shape.head_bytes), log)
    gates = DeltaGates(Rows.allocate(4, 16), Rows.allocate(4, 16), Vector.of(np.ones(8, np.float32)))
    tape.scan(values, 192, weights, states)
    tape.delta(values, 2, 4, gates, own, target, is_tiled=True)
    without = RecurrentTape(Kernels(product, ("F32",), attention), 4, 1)
    short = Vector.of(np.ones(3, np.float32))
    few = replace(gates, alpha=Rows.allocate(3, 16))
    calls: list[Callable[[], None]] = [
        lambda: tape.scan(Rows.allocate(3, 4 * 192), 192, weights, states),
        lambda: tape.scan(values, 100, weights, states),
        lambda: tape.scan(values, 192, Vector.of(np.ones(100, np.float32)), states),
        lambda: tape.scan(values, 192, weights, states, bias=short),
        lambda: tape.scan(values, 192, weights, Kept(Rows.exactly(3, 4 * 3 * 192), log)),
        lambda: tape.scan(values, 192, weights, replace(states, log=Rows.allocate(2, 4 * 176))),
        lambda: without.scan(values, 192, weights, states),
        lambda: tape.delta(values, 3, 4, gates, own, target, is_tiled=True),
        lambda: tape.delta(values, 4, 4, gates, own, target, is_tiled=True),
        lambda: tape.delta(values, 2, 4, gates, states, target, is_tiled=True),
        lambda: tape.delta(values, 2, 4, gates, own, Rows.allocate(4, 64), is_tiled=True),
        lambda: tape.delta(values, 2, 4, few, own, target, is_tiled=True),
        lambda: tape.delta(values, 2, 4, replace(gates, parameters=short), own, target, is_tiled=True),
        lambda: tape.delta(values, 2, 4, gates, replace(own, log=Rows.allocate(2, 4 * 192)), target, is_tiled=True),
        lambda: without.delta(values, 2, 4, gates, own, target, is_tiled=True),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match=r"within|weights|share|gates|compiled without"):
            call()
