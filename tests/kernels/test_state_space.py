"""State spaces have the bits of their definition, wherever a step begins, which is close to float64."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.kernels.code import Functions
from onward.kernels.function import Function, Module
from onward.kernels.isa import Isa
from onward.kernels.memory import address
from onward.kernels.records import CONTEXT, CONTEXT_WORDS, OWN, RUN, RUN_BYTES, STATE_SPACE
from onward.kernels.state_space import emit_state_space
from onward.kernels.values import I64, PTR
from tests.examples import slow_but
from tests.kernels.definition import state_space
from tests.kernels.emulated import executable_forms
from tests.kernels.harness import compiled

POSITIONS = 41
LOG_ROWS = 16
CUTS = {"at once": [POSITIONS], "one by one": [1] * POSITIONS, "in chunks": [3, 32, 1, 5]}


class Sizes(NamedTuple):
    heads: int
    head_size: int
    state_size: int
    groups: int


CASES = [Sizes(4, 16, 8, 2), Sizes(2, 80, 5, 1), Sizes(3, 128, 16, 3)]
"""Heads of one vector, of four and one, of twice four; of one group, several, each its own."""
Floats = NDArray[np.float32]


@cache
def code(form: str) -> Functions:
    def write(module: Module, isa: Isa) -> None:
        f = Function(module, "state_space", [PTR, PTR, I64, PTR], exported=True)
        f.call(emit_state_space(module), f.args)
        f.ret()

    return compiled(write, executable_forms().get(form))


def numbers(sizes: Sizes) -> tuple[Floats, Floats, Floats]:
    """Rows of x, B and C; times; and a bias, A and D for each head. Some times are long, some next to none."""
    heads, size, count, groups = sizes
    random = np.random.default_rng(size)
    rows = random.normal(size=(POSITIONS, heads * size + 2 * groups * count)).astype(np.float32)
    times = random.normal(0, 3, size=(POSITIONS, heads)).astype(np.float32)
    times[::5] -= np.float32(12)
    times[::7] += np.float32(30)
    parameters = np.stack([random.normal(size=heads), -random.uniform(0.1, 4, heads), random.normal(size=heads)])
    return rows, times, parameters.astype(np.float32)


class Slots:
    """The states of some sequences, where other numbers were before."""

    def __init__(self, sizes: Sizes, count: int = 3) -> None:
        self.states = np.full((count, 4 * sizes.heads * sizes.head_size * sizes.state_size + 64), 0x7B, np.uint8)
        self._sizes = sizes
        self._log, self._scratch = (np.full((LOG_ROWS, 4096), np.nan, np.float32) for _ in range(2))

    def step(
        self, form: str, runs: list[tuple[int, int, int]], rows: Floats, times: Floats, parameters: Floats, **log: int
    ) -> Floats:
        """The output of a step over runs (slot, first position, known), which have equally many rows. `log`: of the
        last one (records.RUN), whose drafts are written there as the convolution before it does."""
        count, heads = len(rows) // len(runs), self._sizes.heads
        width = rows.shape[1]
        both = np.zeros((len(rows), width + heads + 3), np.float32)
        both[:, :width], both[:, width : width + heads] = rows, times
        positions = np.concatenate([np.arange(start, start + count) for _, start, _ in runs])
        described = np.zeros((len(runs), RUN_BYTES // 8), np.int64)
        for number, (slot, _, known) in enumerate(runs):
            RUN.set(described[number], first_row=number * count, rows=count, slot=slot, known=known)
        RUN.set(described[-1], **log)
        begin, num_drafts = log.get("next_log", 0), log.get("drafts", 0)
        self._log[begin : begin + num_drafts, :width] = rows[len(rows) - num_drafts :]
        context, own, counter = np.zeros(CONTEXT_WORDS, np.int64), np.zeros(8, np.int64), np.zeros(8, np.int64)
        CONTEXT.set(
            context, rows=len(rows), threads=1, positions=positions, runs=described, num_runs=len(runs),
            scratch=self._scratch, log_stride=self._log.strides[0],
        )  # fmt: skip
        OWN.set(own, counter=counter, step=0, total=0, is_last=0)
        record = STATE_SPACE.record(
            0, values=both, times=address(both) + 4 * width, stride=both.strides[0], num_heads=heads,
            head_size=self._sizes.head_size, state_size=self._sizes.state_size, group_heads=heads // self._sizes.groups,
            parameters=parameters, states=self.states, state_stride=self.states.strides[0], log=self._log,
        )  # fmt: skip
        p = ctypes.c_void_p
        function = code(form).function("state_space", [p, p, ctypes.c_int64, p])
        function(address(record), address(context), 0, address(own))
        np.testing.assert_array_equal(
            both[:, heads * self._sizes.head_size : width], rows[:, heads * self._sizes.head_size :]
        )
        return both[:, : heads * self._sizes.head_size].copy()


def run(form: str, cuts: list[int], sizes: Sizes) -> Floats:
    rows, times, parameters = numbers(sizes)
    slots, found, start = Slots(sizes), [], 0
    for count in cuts:
        part = slice(start, start + count)
        found.append(slots.step(form, [(1, start, start)], rows[part], times[part], parameters))
        start += count
    assert (slots.states[[0, 2]] == 0x7B).all()
    return np.concatenate(found)


@pytest.mark.parametrize("sizes", CASES)
@pytest.mark.parametrize("cuts", slow_but(["in chunks"], CUTS))
def test_state_spaces_have_the_bits_of_their_definition(cuts: str, sizes: Sizes) -> None:
    expected = state_space(*numbers(sizes), *sizes[:2], sizes.groups)
    assert run("host", CUTS[cuts], sizes).tobytes() == expected.tobytes()


@pytest.mark.parametrize("form", slow_but([], sorted(executable_forms())))
def test_every_form_has_the_bits_of_the_definition(form: str) -> None:
    for sizes in CASES:
        expected = state_space(*numbers(sizes), *sizes[:2], sizes.groups)
        assert run(form, CUTS["in chunks"], sizes).tobytes() == expected.tobytes()


@pytest.mark.parametrize("sizes", CASES)
def test_state_spaces_are_those_of_the_recurrence(sizes: Sizes) -> None:
    """Equation 1 of the publication with the discretisation of its section 3: e**(time A), and time B."""
    rows, times, (bias, decay, factor) = (each.astype(np.float64) for each in numbers(sizes))
    heads, size, count, groups = sizes
    x, b, c = np.split(rows, [heads * size, heads * size + groups * count], axis=1)
    x = x.reshape(-1, heads, size)
    b, c = (np.repeat(each.reshape(-1, groups, count), heads // groups, axis=1) for each in (b, c))
    steps = np.log1p(np.exp(times + bias))
    state, expected = np.zeros((heads, size, count)), []
    for position in range(POSITIONS):
        step = steps[position][:, None, None]
        state = np.exp(step * decay[:, None, None]) * state + step * x[position][:, :, None] * b[position][:, None]
        expected.append(np.einsum("hpn,hn->hp", state, c[position]) + factor[:, None] * x[position])
    found = run("host", CUTS["at once"], sizes).reshape(-1, heads, size)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", CASES)
def test_sequences_of_a_step_are_computed_apart_and_a_row_that_is_known_changes_no_state(sizes: Sizes) -> None:
    rows, times, parameters = numbers(sizes)
    alone, slots = Slots(sizes), Slots(sizes)
    count = POSITIONS // 2
    first, second = slice(0, count), slice(count, 2 * count)
    expected = [alone.step("host", [(1, 0, 0)], rows[part], times[part], parameters) for part in (first, second)]
    both = slice(0, 2 * count)
    found = slots.step("host", [(2, 0, 0), (0, 0, 0)], rows[both], times[both], parameters)
    assert found.tobytes() == np.concatenate(expected).tobytes()
    kept, last = slots.states.copy(), slice(count - 1, count)
    again = slots.step("host", [(2, count - 1, count)], rows[last], times[last], parameters)
    assert again.tobytes() == found[last].tobytes() and slots.states.tobytes() == kept.tobytes()


def test_the_first_position_of_a_sequence_is_known_too() -> None:
    sizes = CASES[0]
    rows, times, parameters = numbers(sizes)
    slots = Slots(sizes)
    first = slots.step("host", [(0, 0, 0)], rows[:1], times[:1], parameters)
    assert slots.step("host", [(0, 0, 1)], rows[:1], times[:1], parameters).tobytes() == first.tobytes()


def require_drafts_change_no_bit(form: str, sizes: Sizes) -> None:
    """Steps with drafts, of which all are accepted, some, or none. A rejected one is the row of another position."""
    rows, times, parameters = numbers(sizes)
    expected = state_space(rows, times, parameters, *sizes[:2], sizes.groups)
    slots = Slots(sizes)

    def step(places: list[int], start: int, known: int, **log: int) -> bytes:
        return slots.step(form, [(1, start, known)], rows[places], times[places], parameters, **log).tobytes()

    def bits(first: int, last: int) -> bytes:
        return expected[first:last].tobytes()

    assert step([0, 1, 2], 0, 0) == bits(0, 3)
    assert step([3, 4, 5], 3, 3, drafts=2, next_log=1) == bits(3, 6)
    assert step([6, 7, 30], 6, 4, drafts=2, logged=2, log=1, next_log=8).startswith(bits(6, 8))
    assert step([8, 31], 8, 7, drafts=1, logged=1, log=8, next_log=0).startswith(bits(8, 9))
    assert step([9, 10], 9, 9, drafts=1, next_log=8) == bits(9, 11)
    assert step([9, 10], 9, 10, drafts=1, next_log=0) == bits(9, 11)
    assert step([11, 12], 11, 10, logged=1, log=0) == bits(11, 13)


@pytest.mark.parametrize("sizes", CASES)
def test_drafts_change_no_bit(sizes: Sizes) -> None:
    require_drafts_change_no_bit("host", sizes)


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(executable_forms()))
def test_drafts_change_no_bit_in_any_form(form: str) -> None:
    require_drafts_change_no_bit(form, CASES[1])
