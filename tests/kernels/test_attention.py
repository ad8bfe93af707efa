"""Attention gives the bits of its definition, whatever the tiles, the blocks' order and the lengths of segments."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onward.kernels.attention_kernels import attention_scratch_bytes, emit_attention, emit_merge
from onward.kernels.attention_plan import AttentionPlan, row_tiles
from onward.kernels.attention_shape import BLOCK_TOKENS, SEGMENT_KEYS, AttentionShape
from onward.kernels.code import Functions
from onward.kernels.function import Function, Module
from onward.kernels.isa import Isa
from onward.kernels.memory import address, untouched
from onward.kernels.records import ATTEND, COMPLETED_OFFSET, CONTEXT, CONTEXT_WORDS, OWN
from onward.kernels.targets import host
from onward.kernels.values import I64, PTR
from tests.examples import slow_but
from tests.kernels.definition import attention_line
from tests.kernels.emulated import executable_forms
from tests.kernels.harness import compiled

SHAPES = {
    "one head": AttentionShape(1, 1, 16, 16),
    "groups of three": AttentionShape(6, 2, 32, 32, is_wide=True),
    "padded heads": AttentionShape(8, 1, 24, 24),
    "longer values": AttentionShape(2, 2, 24, 24, own_value_size=40),
    "shorter values": AttentionShape(4, 2, 48, 48, own_value_size=20, is_wide=True),
    "windows and sinks": AttentionShape(4, 2, 16, 16, has_window=True, has_sinks=True),
    "windows and caps": AttentionShape(4, 2, 16, 16, has_window=True, has_cap=True),
    "windows": AttentionShape(4, 2, 16, 16, has_window=True),
    "chunks": AttentionShape(4, 2, 16, 16, has_window=True, has_chunks=True),
}
PLAIN = [name for name in SHAPES if not (SHAPES[name].has_sinks or SHAPES[name].has_cap)]
"""Those that the definition has."""
SEGMENTED = ["groups of three", "shorter values", "windows and sinks", "windows and caps", "chunks"]
MAIN_FORMS = ("sse2", "avx2", "avx512-vnni", "neon")
"""In which the slow tests compare every shape: registers of every width, and operations in software. In the other forms
they compare REPRESENTATIVES, and the rest are companions."""
REPRESENTATIVES = ("groups of three", "padded heads", "windows and sinks")
WINDOW, CAP = 1100, 1.5
POSITIONS = {
    "a prompt": [*range(70)],
    "its later part": [*range(90, 140)],
    "across a chunk": [*range(1085, 1120)],
    "decoding": [0, 31, 63, 64, 100, 1023, 1024, 1090, 1099, 1100, 2231],
}


def write(shape: AttentionShape, module: Module, isa: Isa) -> None:
    for name, emit in (("attend", emit_attention), ("merge", emit_merge)):
        operation = emit(module, isa, shape)
        f = Function(module, name, [PTR, PTR, I64, PTR], exported=True)
        f.call(operation, f.args)
        f.ret()


@cache
def code(name: str, form: str) -> Functions:
    return compiled(lambda module, isa: write(SHAPES[name], module, isa), executable_forms().get(form))


class Step:
    """Random keys and values of one sequence in a cache with blocks in any order, and a step over it."""

    def __init__(self, shape: AttentionShape, positions: list[int]) -> None:
        self.shape, self.positions = shape, np.array(positions, np.int64)
        random = np.random.default_rng(len(positions))
        count = int(self.positions.max()) + 1
        dtype = np.float32 if shape.is_wide else np.float16
        sizes = ((count, shape.num_kv_heads, size) for size in (shape.head_size, shape.value_size))
        self.keys, self.values = (random.normal(size=size).astype(dtype) for size in sizes)
        self.queries = random.normal(size=(len(positions), shape.num_heads, shape.padded)).astype(np.float32)
        self.queries[..., shape.head_size :] = 0
        blocks = -(-count // BLOCK_TOKENS)
        self.table = random.permutation(blocks + 2)[:blocks].astype(np.int32)
        self.cache = np.zeros((blocks + 2, shape.block_bytes // shape.kv_size), dtype)
        for position in range(count):
            block, slot = self.table[position // BLOCK_TOKENS], position % BLOCK_TOKENS
            keys, values = np.split(self.cache[block], [shape.values_offset // shape.kv_size])
            columns = keys.reshape(shape.num_kv_heads, shape.padded, BLOCK_TOKENS)
            columns[:, : shape.head_size, slot] = self.keys[position]
            rows = values.reshape(shape.num_kv_heads, BLOCK_TOKENS, shape.padded_values)
            rows[:, slot, : shape.value_size] = self.values[position]

    def run(self, compiled_code: Functions, threads: int = 1) -> NDArray[np.float32]:
        """Both operations on one thread, planned for this many."""
        shape, count = self.shape, len(self.positions)
        out = np.zeros((count, shape.num_heads, shape.value_size), np.float32)
        tables = np.full(count, address(self.table), np.int64)
        plan = AttentionPlan([shape], count, int(self.positions.max()) + 1, threads)
        plan.make(tables, self.positions)
        self.num_merged = plan.num_merged
        scratch = untouched(
            max(attention_scratch_bytes(shape, form.isa) for form in (host(), *executable_forms().values()))
        )
        counters, own = np.zeros((2, 8), np.int64), np.zeros(8, np.int64)
        sinks = np.linspace(-1, 1, shape.num_heads, dtype=np.float32)
        record = ATTEND.record(
            0, queries=self.queries, query_stride=shape.query_stride, cache=self.cache,
            cache_stride=self.cache.strides[0], target=out, target_stride=out[0].nbytes, window=WINDOW, cap=CAP,
            sinks=sinks,
        )  # fmt: skip
        context = np.zeros(CONTEXT_WORDS, np.int64)
        CONTEXT.set(
            context, rows=count, threads=threads, positions=self.positions, tables=tables, scratch=scratch,
            scratch_stride=scratch.nbytes, num_tiles=plan.num_tiles, are_heads_together=plan.are_heads_together,
            num_merged=plan.num_merged, **plan.memory(),
        )  # fmt: skip
        p, i = ctypes.c_void_p, ctypes.c_int64
        for name, counter in zip(("attend", "merge"), counters, strict=True):
            OWN.set(own, counter=counter, step=0, total=0, is_last=0)
            operation = compiled_code.function(name, [p, p, i, p])
            operation(address(record), address(context), 0, address(own))
            assert counter[COMPLETED_OFFSET // 8] == own[2]
        assert counters[0, COMPLETED_OFFSET // 8] > 0
        return out

    def expected(self) -> NDArray[np.float32]:
        shape = self.shape
        out = np.empty((len(self.positions), shape.num_heads, shape.value_size), np.float32)
        for row, position in enumerate(self.positions):
            for head in range(shape.num_heads):
                kv = head // shape.group
                keys, values = (each[: position + 1, kv].astype(np.float32) for each in (self.keys, self.values))
                query = self.queries[row, head, : shape.head_size]
                first = 0
                if shape.has_window:
                    first = position // WINDOW * WINDOW if shape.has_chunks else max(0, position - WINDOW + 1)
                out[row, head] = attention_line(query, keys, values, first)
        return out


@pytest.mark.parametrize("name", slow_but(["groups of three", "shorter values", "chunks"], PLAIN))
@pytest.mark.parametrize("positions", slow_but([*POSITIONS][-1:], POSITIONS))
def test_attention_has_the_bits_of_its_definition(name: str, positions: str) -> None:
    step = Step(SHAPES[name], POSITIONS[positions][:: 1 if name == "one head" else 5])
    assert step.run(code(name, "host")).tobytes() == step.expected().tobytes()


def test_capped_scores_are_those_of_the_formula() -> None:
    shape = SHAPES["windows and caps"]
    step = Step(shape, [0, 5, 63, 1200])
    found = step.run(code("windows and caps", "host"))
    for row, position in enumerate(step.positions):
        seen = slice(max(0, position - WINDOW + 1), position + 1)
        for head in range(shape.num_heads):
            keys, values = (each[seen, head // shape.group].astype(np.float64) for each in (step.keys, step.values))
            scores = keys @ step.queries[row, head, : shape.head_size] / np.log2(np.e)
            weights = np.exp(CAP * np.tanh(scores / CAP))
            assert np.abs(found[row, head] - weights @ values / weights.sum()).max() < 1e-5


def marks(name: str, form: str) -> list[pytest.MarkDecorator]:
    if form in MAIN_FORMS or name in REPRESENTATIVES:
        return [pytest.mark.slow]
    return [pytest.mark.slow, pytest.mark.companion]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, marks=marks(name, form), id=f"{name}-{form}")
        for name in SHAPES
        for form in sorted(executable_forms())
    ],
)
def test_every_form_has_the_bits_of_this_processor(name: str, form: str) -> None:
    for positions in POSITIONS.values():
        step = Step(SHAPES[name], positions)
        assert step.run(code(name, form)).tobytes() == step.run(code(name, "host")).tobytes()


@pytest.mark.parametrize(("name", "first"), [("groups of three", 0), ("chunks", 1000)])
def test_no_cut_into_tiles_changes_a_bit(name: str, first: int) -> None:
    step = Step(SHAPES[name], [*range(first, first + 200)])
    assert step.run(code(name, "host"), 1).tobytes() == step.run(code(name, "host"), 9).tobytes()


@pytest.mark.parametrize("threads", slow_but([3], [2, 3, 8]))
@pytest.mark.parametrize("positions", [[5000], [12, 700, 4444], [*range(2500, 2509)], [*range(1020, 1050), 3100]])
@pytest.mark.parametrize("name", slow_but(["windows and caps", "chunks"], SEGMENTED))
def test_segments_computed_apart_are_the_whole(name: str, positions: list[int], threads: int) -> None:
    step = Step(SHAPES[name], positions)
    alone = step.run(code(name, "host"))
    assert step.num_merged == 0
    assert step.run(code(name, "host"), threads).tobytes() == alone.tobytes()
    assert step.num_merged > 0


def planned(shape: AttentionShape, positions: list[int], threads: int, context: int = 1 << 17) -> AttentionPlan:
    plan = AttentionPlan([shape], len(positions), context, threads)
    plan.make(np.arange(len(positions)), np.array(positions, np.int64))
    return plan


@given(st.lists(st.integers(0, 40_000), min_size=1, max_size=40), st.integers(1, 9), st.sampled_from([1, 2, 8]))
def test_a_plan_has_every_segment_of_every_row_once(positions: list[int], threads: int, heads: int) -> None:
    shape = AttentionShape(8, heads, 16, 16)
    plan = planned(shape, positions, threads)
    found: dict[int, list[tuple[int, int]]] = {}
    for first, rows, begin, end in plan.tiles.tolist():
        assert rows == 1
        found.setdefault(first, []).append((begin, end))
    assert sorted(found) == list(range(len(positions)))
    for row, parts in found.items():
        assert (len(parts) > 1) == (row in plan.merged.tolist())
        needed = positions[row] // SEGMENT_KEYS + 1
        ends = [0, *(end for _, end in parts)]
        assert [begin for begin, _ in parts] == ends[:-1] and ends[-1] >= needed


def test_a_long_sequence_among_short_ones_is_shared() -> None:
    plan = planned(AttentionShape(4, 4, 16, 16), [10, 100_000, *range(20)], 2)
    assert max(end - begin for first, _, begin, end in plan.tiles.tolist() if first == 1) <= 98 // 8 + 1


def test_a_plan_serves_layers_of_several_shapes() -> None:
    """Its tiles are as small as one of the shapes needs, and its memory is that of the shape that needs the most."""
    shapes = [AttentionShape(8, 4, 16, 16), AttentionShape(8, 1, 64, 64)]
    positions = np.arange(100, 300)
    plan = AttentionPlan(shapes, len(positions), 1 << 17, 1)
    plan.make(np.ones(len(positions), np.int64), positions)
    assert max(rows for _, rows, *_ in plan.tiles.tolist()) <= min(shape.tile_rows for shape in shapes)
    alone = [AttentionPlan([shape], len(positions), 1 << 17, 1).partial_bytes for shape in shapes]
    assert plan.partial_bytes == max(alone)


def test_memory_of_segments_is_bounded() -> None:
    plan = planned(AttentionShape(32, 8, 128, 128), [100_000] * 64, 16, 1 << 20)
    assert plan.num_tiles >= 64 and plan.partial_bytes <= 64 << 20


def test_tiles_are_runs_of_consecutive_positions_of_one_sequence() -> None:
    shape = AttentionShape(2, 1, 16, 16)
    tables = np.array([1, 1, 1, 2, 2, 2, 2], np.int64)
    positions = np.array([4, 5, 9, 10, 11, 12, 3], np.int64)
    assert row_tiles([shape], tables, positions, 1) == [(0, 2), (2, 1), (3, 3), (6, 1)]
