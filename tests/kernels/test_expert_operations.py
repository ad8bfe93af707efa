"""Routing of rows to experts, against a plain definition: which experts, in which order, with which weights."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onward.kernels.attention_shape import AttentionShape
from onward.kernels.code import Code, Functions, load
from onward.kernels.expert_operations import LEAST_SUM, emit_weigh
from onward.kernels.expert_tape import ExpertTape, LayerExperts, Routing
from onward.kernels.function import Function, Module
from onward.kernels.interpreter import Kernels
from onward.kernels.isa import Isa
from onward.kernels.machine import Machine
from onward.kernels.memory import Rows, Vector, address
from onward.kernels.products import ProductKind
from onward.kernels.records import CONTEXT, CONTEXT_WORDS, OWN, WEIGH
from onward.kernels.targets import host
from onward.kernels.values import I64, PTR
from tests.examples import slow_but
from tests.kernels.emulated import executable_forms
from tests.kernels.harness import compiled
from tests.runtimes.native.test_model_bounds import NoWeights

ROWS, SHAPE = 9, AttentionShape(4, 2, 16, 16)
FETCH = ctypes.CFUNCTYPE(None, ctypes.c_int64)


@cache
def kernels() -> tuple[Kernels, Code]:
    made = Kernels((ProductKind("F32", "float32"),), ("F32",), (SHAPE,), has_experts=True)
    return made, load(*made.recipes(host().isa))


def experts_of(layer: int, count: int, fetch: int) -> LayerExperts:
    places, uses, steps = (np.zeros(count, np.int64) for _ in range(3))
    return LayerExperts(layer, 64, places, uses, steps, fetch)


class Routed:
    """The outputs of a tape with one router, from logits."""

    def __init__(
        self,
        logits: NDArray[np.float32],
        used: int,
        *,
        is_normalised: bool,
        scale: float = 1.0,
        is_sigmoid: bool = False,
        bias: NDArray[np.float32] | None = None,
        groups: int = 1,
        used_groups: int = 1,
        is_by_logit: bool = False,
    ) -> None:
        rows, count = logits.shape
        self.asked: list[int] = []
        self._fetch = FETCH(self.asked.append)
        place = ctypes.cast(self._fetch, ctypes.c_void_p).value or 0
        self.routing = Routing(ROWS, count, used)
        self.experts = experts_of(5, count, place)
        source = Rows.allocate(ROWS, 4 * count)
        for row, values in enumerate(logits):
            source.memory[row * source.stride :][: 4 * count] = values.view(np.uint8)
        tape = ExpertTape(kernels()[0], ROWS, 2)
        tape.route(
            source,
            self.routing,
            self.experts,
            is_normalised=is_normalised,
            scale=scale,
            is_sigmoid=is_sigmoid,
            bias=None if bias is None else Vector.of(bias),
            groups=groups,
            used_groups=used_groups,
            is_by_logit=is_by_logit,
        )
        parts = tape.finish()
        machine = Machine(
            kernels()[1], parts, NoWeights(), kernels()[0], rows=ROWS, positions=64, threads=2,
            scratch_bytes=kernels()[0].scratch_bytes(host().isa, 2048),
        )  # fmt: skip
        machine.plan(rows)
        machine.step(rows, parts)
        machine.close()
        self.chosen = self.routing.chosen[: rows * used].reshape(rows, used)
        self.weights = self.routing.weights[: rows * used].reshape(rows, used)


def random_logits(data: st.DataObject) -> tuple[NDArray[np.float32], int]:
    rows, count = data.draw(st.integers(1, ROWS)), data.draw(st.integers(1, 70))
    number = st.sampled_from([0.0, -0.0, 1.0, 1.5, -3.0, 40.0]) | st.floats(-60, 60, width=32)
    logits = data.draw(st.lists(number, min_size=rows * count, max_size=rows * count))
    return np.array(logits, np.float32).reshape(rows, count), data.draw(st.integers(1, count))


@given(st.data())
def test_rows_use_the_best_experts_and_of_equal_ones_the_first(data: st.DataObject) -> None:
    logits, used = random_logits(data)
    is_normalised = data.draw(st.booleans())
    found = Routed(logits, used, is_normalised=is_normalised, scale=2.5)
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :used]
    assert (found.chosen == expected).all()
    powers = np.exp((logits - logits.max(axis=1, keepdims=True)).astype(np.float64))
    of_chosen = np.take_along_axis(powers, expected, 1)
    weights = 2.5 * of_chosen / (of_chosen if is_normalised else powers).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.weights, weights, rtol=2e-6, atol=1e-30)


@given(st.data())
def test_sigmoids_are_weights_and_a_bias_counts_for_the_choice_alone(data: st.DataObject) -> None:
    logits, used = random_logits(data)
    is_normalised = data.draw(st.booleans())
    number = st.sampled_from([0.0, 0.25, -1.0, 3.0])
    drawn = data.draw(st.lists(number, min_size=logits.shape[1], max_size=logits.shape[1]))
    bias = np.array(drawn, np.float32) if data.draw(st.booleans()) else None
    found = Routed(logits.copy(), used, is_normalised=is_normalised, scale=2.5, is_sigmoid=True, bias=bias)
    sigmoids = 1 / (1 + np.exp(-logits.astype(np.float64)))
    keys = sigmoids + (0 if bias is None else bias)
    least = np.take_along_axis(keys, found.chosen, 1)
    best = -np.sort(-keys, axis=1)[:, :used]
    np.testing.assert_allclose(least, best, atol=2e-6)  # nearly equal ones may swap places
    assert all(len(set(chosen.tolist())) == used for chosen in found.chosen)
    of_chosen = np.take_along_axis(sigmoids, found.chosen, 1)
    total = np.maximum(of_chosen.sum(axis=1, keepdims=True), LEAST_SUM)
    weights = 2.5 * of_chosen / (total if is_normalised else 1)
    np.testing.assert_allclose(found.weights, weights, rtol=3e-6, atol=1e-20)


@given(st.data())
def test_weights_are_sigmoids_of_the_largest_logits_also_where_several_round_to_one(data: st.DataObject) -> None:
    logits, used = random_logits(data)
    found = Routed(logits.copy(), used, is_normalised=False, is_sigmoid=True, is_by_logit=True)
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :used]
    assert (found.chosen == expected).all()
    chosen = np.take_along_axis(logits, expected, 1).astype(np.float64)
    np.testing.assert_allclose(found.weights, 1 / (1 + np.exp(-chosen)), rtol=3e-6, atol=1e-20)


@cache
def weigh_code(form: str) -> Functions:
    def write(module: Module, isa: Isa) -> None:
        f = Function(module, "weigh", [PTR, PTR, I64, PTR], exported=True)
        f.call(emit_weigh(module), f.args)
        f.ret()

    return compiled(write, executable_forms().get(form))


@pytest.mark.parametrize("form", slow_but(["host"], ["host", *sorted(executable_forms())]))
@pytest.mark.parametrize("threads", [1, 3])
def test_products_of_experts_are_multiplied_by_weights_that_then_are_one(form: str, threads: int) -> None:
    rows, used, width = 7, 3, 64
    random, routing = np.random.default_rng(4), Routing(rows, 8, used)
    uses = rows * used
    routing.places[:] = random.permutation(uses)
    routing.weights[:] = weights = random.uniform(size=uses).astype(np.float32)
    products = random.normal(size=(2, uses, width + 32)).astype(np.float32)  # of which the last ones are another's
    expected = products.copy()
    expected[:, routing.places, :width] *= weights[:, None]
    record = WEIGH.record(
        0, routing=routing, used=used, gate=products[0], up=products[1], stride=products.strides[1], row_bytes=4 * width
    )
    context, counter, own = np.zeros(CONTEXT_WORDS, np.int64), np.zeros(8, np.int64), np.zeros(8, np.int64)
    CONTEXT.set(context, rows=rows, threads=threads)
    OWN.set(own, counter=counter, step=0, total=0, is_last=0)
    p, i = ctypes.c_void_p, ctypes.c_int64
    weigh_code(form).function("weigh", [p, p, i, p])(address(record), address(context), 0, address(own))
    assert products.tobytes() == expected.tobytes()
    assert (routing.weights == 1).all()


@given(st.data())
def test_shares_of_all_are_weights_and_a_bias_counts_for_the_choice_alone(data: st.DataObject) -> None:
    logits, used = random_logits(data)
    is_normalised = data.draw(st.booleans())
    number = st.sampled_from([0.0, 0.25, -1.0, 3.0])
    bias = np.array(data.draw(st.lists(number, min_size=logits.shape[1], max_size=logits.shape[1])), np.float32)
    found = Routed(logits.copy(), used, is_normalised=is_normalised, scale=2.5, bias=bias)
    powers = np.exp((logits - logits.max(axis=1, keepdims=True)).astype(np.float64))
    shares = powers / powers.sum(axis=1, keepdims=True)
    best = -np.sort(-(shares + bias), axis=1)[:, :used]
    np.testing.assert_allclose(np.take_along_axis(shares + bias, found.chosen, 1), best, atol=2e-6)
    assert all(len(set(chosen.tolist())) == used for chosen in found.chosen)
    of_chosen = np.take_along_axis(shares, found.chosen, 1)
    total = np.maximum(of_chosen.sum(axis=1, keepdims=True), LEAST_SUM)
    np.testing.assert_allclose(found.weights, 2.5 * of_chosen / (total if is_normalised else 1), rtol=5e-6, atol=1e-20)


@given(st.data(), st.booleans())
def test_experts_are_of_the_best_groups(data: st.DataObject, is_sigmoid: bool) -> None:
    """Of those with the best expert, or, for sigmoids, with the best two experts together; of equal ones the first."""
    groups, size = data.draw(st.integers(2, 12)), data.draw(st.integers(2, 6))
    used_groups = data.draw(st.integers(1, groups))
    used, rows = data.draw(st.integers(1, used_groups * size)), data.draw(st.integers(1, ROWS))
    # their sigmoids plus the bias are distinct sums in float32 and float64, or equal in both
    number = st.sampled_from([0.0, -200.0, 200.0]) if is_sigmoid else st.integers(-40, 40).map(float)
    drawn = data.draw(st.lists(number, min_size=rows * groups * size, max_size=rows * groups * size))
    logits = np.array(drawn, np.float32).reshape(rows, -1)
    steps = st.lists(st.integers(-8, 8), min_size=groups * size, max_size=groups * size)
    bias = np.array(data.draw(steps), np.float32) * np.float32(0.25) if is_sigmoid else None
    found = Routed(
        logits.copy(), used, is_normalised=False, is_sigmoid=is_sigmoid, bias=bias, groups=groups,
        used_groups=used_groups,
    )  # fmt: skip
    chosen_by = np.where(logits == 0, 0.5, logits > 0) + bias if bias is not None else logits.astype(np.float64)
    for row, scores in enumerate(chosen_by.reshape(rows, groups, size)):
        of_groups = np.sort(scores, axis=1)[:, -2 if is_sigmoid else -1 :].sum(axis=1)
        is_used = np.isin(range(groups), np.argsort(-of_groups, kind="stable")[:used_groups])
        masked = np.where(is_used[:, None], scores, -np.inf).reshape(-1)
        assert found.chosen[row].tolist() == np.argsort(-masked, kind="stable")[:used].tolist()


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_groups_of_logits_that_are_not_numbers_have_enough_experts(odd: float) -> None:
    logits = np.full((ROWS, 16), odd, np.float32)
    logits[3:, ::3] = 1.0
    for is_sigmoid in (False, True):
        found = Routed(logits.copy(), 7, is_normalised=False, is_sigmoid=is_sigmoid, groups=4, used_groups=2)
        for chosen in found.chosen:
            assert len(set(chosen.tolist())) == 7 and 0 <= chosen.min() <= chosen.max() < 16


def test_what_is_not_a_number_counts_as_the_largest_whatever_its_sign() -> None:
    """Also the sum of an infinite pair, whose sign differs between processors."""
    nan, inf = np.float32("nan"), np.float32("inf")
    for odd in (nan, np.copysign(nan, -1)):
        logits = np.array([[3, 9, odd, 1, odd, inf]], np.float32)
        assert Routed(logits, 4, is_normalised=False).chosen.tolist() == [[2, 4, 5, 1]]
    bias = np.array([5, 5, -inf, inf, 1, 2, inf, -inf], np.float32)
    found = Routed(
        np.zeros((1, 8), np.float32), 3, is_normalised=False, is_sigmoid=True, bias=bias, groups=4, used_groups=2
    )
    assert found.chosen.tolist() == [[3, 6, 2]]


def test_sigmoids_that_are_all_zero_are_weights_of_zero() -> None:
    logits = np.full((2, 8), -200, np.float32)
    assert (Routed(logits, 3, is_normalised=True, is_sigmoid=True).weights == 0).all()


@given(st.data())
def test_uses_are_in_the_order_of_experts(data: st.DataObject) -> None:
    logits, used = random_logits(data)
    found = Routed(logits, used, is_normalised=True)
    flat = found.chosen.reshape(-1)
    order = np.argsort(flat, kind="stable")  # of an expert's rows, ascending
    routing = found.routing
    assert (routing.rows_at[: len(flat)] == order // used).all()
    assert (routing.places[: len(flat)][order] == range(len(flat))).all()
    active, counts = np.unique(flat, return_counts=True)
    assert (routing.used_experts == active).all()
    assert (routing.begins[active] == np.cumsum(counts)).all()
    assert (found.experts.uses == np.isin(range(logits.shape[1]), active)).all()
    assert found.asked == [5]  # none is in memory


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_numbers_choose_existing_experts_once_each(odd: float) -> None:
    logits = np.full((ROWS, 16), odd, np.float32)
    logits[3:, ::2] = 1.0
    found = [Routed(logits.copy(), 7, is_normalised=False, bias=bias) for bias in (None, np.ones(16, np.float32))]
    for chosen in (*found[0].chosen, *found[1].chosen):
        assert len(set(chosen.tolist())) == 7 and 0 <= chosen.min() <= chosen.max() < 16


def test_no_row_depends_on_the_others() -> None:
    logits = np.random.default_rng(0).normal(size=(ROWS, 60)).astype(np.float32)
    together = Routed(logits, 8, is_normalised=False)
    for row in range(ROWS):
        alone = Routed(logits[row : row + 1], 8, is_normalised=False)
        assert (alone.chosen[0] == together.chosen[row]).all()
        assert alone.weights.tobytes() == together.weights[row].tobytes()


def tape() -> ExpertTape:
    return ExpertTape(kernels()[0], ROWS, 1)


def test_what_leaves_its_memory_is_refused() -> None:
    routing, short = Routing(ROWS, 8, 2), Routing(ROWS - 1, 8, 2)
    experts = experts_of(0, 8, 0)
    rows, many = Rows.allocate(ROWS, 128), Rows.allocate(2 * ROWS, 128)
    calls: list[Any] = [
        lambda: Routing(ROWS, 8, 9),
        lambda: tape().route(Rows.allocate(ROWS, 4), Routing(ROWS, 40, 2), experts, is_normalised=True, scale=1.0),
        lambda: tape().route(rows, short, experts, is_normalised=True, scale=1.0),
        lambda: tape().route(rows, Routing(ROWS, 9, 2), experts, is_normalised=True, scale=1.0),
        lambda: tape().route(
            rows, routing, experts, is_normalised=True, scale=1.0, bias=Vector.of(np.ones(7, np.float32))
        ),
        *(
            lambda groups=groups: tape().route(
                rows,
                routing,
                experts,
                is_normalised=True,
                scale=1.0,
                is_sigmoid=True,
                groups=groups[0],
                used_groups=groups[1],
            )
            for groups in ((3, 2), (8, 4), (4, 0), (4, 5))
        ),
        lambda: tape().gather(rows, 32, Rows.allocate(ROWS, 128), "float32", routing),
        *(
            lambda rules=rules: tape().route(
                rows, routing, experts, is_normalised=True, scale=1.0, is_by_logit=True, **rules
            )
            for rules in (
                {},
                {"is_sigmoid": True, "bias": Vector.of(np.ones(8, np.float32))},
                {"is_sigmoid": True, "groups": 2, "used_groups": 2},
            )
        ),
        lambda: tape().weigh(many, rows, 32, routing),
        lambda: tape().weigh(many, Rows.allocate(2 * ROWS, 256), 32, routing),
        lambda: tape().weigh(many, many, 64, routing),
        lambda: tape().combine(rows, 32, routing, rows, scale=1.0),
        lambda: tape().combine(many, 32, routing, rows, scale=1.0, shared=Rows.allocate(1, 128)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"within|cannot|room|experts"):
            call()
    assert address(routing.words) % 8 == 0
