"""Layers with a recurrent state have the bits of their definition, wherever a step ends."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

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
from onward.kernels.records import CONTEXT, CONTEXT_WORDS, DELTA, OWN, RUN, SCAN
from onward.kernels.recurrence import DeltaShape, emit_delta, emit_scan, ring_bytes
from onward.kernels.recurrence_tape import DeltaGates, RecurrentTape
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


class Step:
    """Calls an operation for runs: (first row, rows, slot, first position, known positions)."""

    def __init__(self, form: str, shape: DeltaShape) -> None:
        self._functions = code(form, shape)
        self._scratch, self._own = np.zeros(4096, np.float32), np.zeros(8, np.int64)

    def call(self, name: str, record: NDArray[np.int64], runs: list[tuple[int, int, int, int, int]]) -> None:
        positions = np.concatenate([np.arange(start, start + count) for _, count, _, start, _ in runs])
        words = np.zeros((len(runs), 4), np.int64)
        for line, (first, count, slot, _, known) in zip(words, runs, strict=True):
            RUN.set(line, first_row=first, rows=count, slot=slot, known=known)
        context, counter = np.zeros(CONTEXT_WORDS, np.int64), np.zeros(8, np.int64)
        CONTEXT.set(
            context, rows=len(positions), threads=1, positions=address(positions), scratch=address(self._scratch),
            scratch_stride=self._scratch.nbytes, runs=address(words), num_runs=len(runs),
        )  # fmt: skip
        OWN.set(self._own, counter=address(counter), step=0, total=0, is_last=0)
        p, i = ctypes.c_void_p, ctypes.c_int64
        self._functions.function(name, [p, p, i, p])(address(record), address(context), 0, address(self._own))


def garbage(slots: int, size: int) -> NDArray[np.float32]:
    """States that were used before, filled with NaN."""
    return np.full((slots, size // 4), np.nan, np.float32)


WIDTH = 48


def scan_record(values: NDArray[np.float32], weights: Any, bias: Any, states: NDArray[np.float32]) -> Any:
    return SCAN.record(
        0, has_barrier=True, values=address(values), stride=values.strides[0], width=values.shape[1],
        weights=address(weights), length=len(weights), bias=0 if bias is None else address(bias),
        states=address(states), state_stride=states.strides[0], pieces=2,
    )  # fmt: skip


def scan(form: str, cuts: list[int], length: int, *, has_bias: bool) -> tuple[Any, Any]:
    """The kernel's results and the definition's. In each step the sequence lies between two others."""
    random = np.random.default_rng(length)
    rows = random.normal(size=(POSITIONS, WIDTH)).astype(np.float32)
    weights = random.normal(size=(length, WIDTH)).astype(np.float32)
    bias = random.normal(size=WIDTH).astype(np.float32) if has_bias else None
    states, step, found, start = garbage(3, ring_bytes(WIDTH, length)), Step(form, SHAPES[0][0]), [], 0
    for count in cuts:
        values = np.concatenate([rows[:2], rows[start : start + count], rows[:1]])
        runs = [(0, 2, 0, 0, 0), (2, count, 1, start, start), (2 + count, 1, 2, 0, 0)]
        step.call("scan", scan_record(values, weights, bias, states), runs)
        found.append(values[2:-1])
        start += count
    return np.concatenate(found), scanned(rows, weights, bias)


@pytest.mark.parametrize(("length", "has_bias"), [(4, False), (3, True), (2, True)])
@pytest.mark.parametrize("cuts", CUTS)
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

    def run(self, start: int, count: int, known: int) -> NDArray[np.float32]:
        """Rows of the second slot, behind one of the first slot at position 0."""
        place = [0, *range(start, start + count)]
        rows, alpha, beta = (np.ascontiguousarray(each[place]) for each in (self.rows, self.alpha, self.beta))
        found = np.full((count + 1, self.num_heads * self.shape.value_size), np.nan, np.float32)
        record = DELTA.record(
            0, has_barrier=True, values=address(rows), stride=rows.strides[0], alpha=address(alpha),
            beta=address(beta), gate_stride=alpha.strides[0], decay=address(self.decay), bias=address(self.bias),
            states=address(self.states), state_stride=self.states.strides[0], target=address(found),
            target_stride=found.strides[0], num_key_heads=self.num_key_heads, num_heads=self.num_heads,
            is_tiled=self.is_tiled,
        )  # fmt: skip
        self.step.call("delta", record, [(0, 1, 0, 0, 0), (1, count, 1, start, known)])
        return found[1:]


@pytest.mark.parametrize("is_tiled", [False, True])
@pytest.mark.parametrize(("shape", "keys", "heads"), SHAPES)
@pytest.mark.parametrize("cuts", CUTS)
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


def test_a_row_that_a_state_has_taken_in_is_read_again() -> None:
    delta = Delta("host", *SHAPES[0], is_tiled=False)
    expected = delta.expected()
    delta.run(0, 7, 0)
    before = delta.states[1].copy()
    for _ in range(2):
        assert delta.run(6, 1, 7).tobytes() == expected[6:7].tobytes()
    assert delta.states[1].tobytes() == before.tobytes()
    assert delta.run(7, 3, 7).tobytes() == expected[7:10].tobytes()


@pytest.mark.parametrize("form", slow_but([], sorted(executable_forms())))
def test_every_form_has_the_bits_of_the_definition(form: str) -> None:
    found, expected = scan(form, CUTS["in chunks"], 4, has_bias=True)
    assert found.tobytes() == expected.tobytes()
    for shape, keys, heads in SHAPES:
        delta = Delta(form, shape, keys, heads, is_tiled=True)
        assert delta.run(0, POSITIONS, 0).tobytes() == delta.expected().tobytes()


def test_what_leaves_its_memory_is_refused() -> None:
    shape = DeltaShape(16, 32)
    product, attention = (ProductKind("F32", "float32"),), (AttentionShape(1, 1, 16, 16),)
    tape = RecurrentTape(Kernels(product, ("F32",), attention, delta=shape), 4, 1)
    values, target = Rows.allocate(4, 4 * (2 * 2 * 16 + 4 * 32)), Rows.allocate(4, 4 * 4 * 32)
    weights, states = Vector.of(np.ones(4 * 192, np.float32)), Rows.exactly(3, 4 * 4 * 192)
    own = Rows.exactly(3, 4 * shape.head_bytes)
    of_heads = Vector.of(np.ones(4, np.float32))
    gates = DeltaGates(Rows.allocate(4, 16), Rows.allocate(4, 16), of_heads, of_heads)
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
        lambda: tape.scan(values, 192, weights, Rows.exactly(3, 4 * 3 * 192)),
        lambda: without.scan(values, 192, weights, states),
        lambda: tape.delta(values, 3, 4, gates, own, target, is_tiled=True),
        lambda: tape.delta(values, 4, 4, gates, own, target, is_tiled=True),
        lambda: tape.delta(values, 2, 4, gates, states, target, is_tiled=True),
        lambda: tape.delta(values, 2, 4, gates, own, Rows.allocate(4, 64), is_tiled=True),
        lambda: tape.delta(values, 2, 4, few, own, target, is_tiled=True),
        lambda: tape.delta(values, 2, 4, replace(gates, decay=short), own, target, is_tiled=True),
        lambda: without.delta(values, 2, 4, gates, own, target, is_tiled=True),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match=r"within|weights|share|gates|compiled without"):
            call()
