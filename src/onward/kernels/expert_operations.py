"""The operations of a tape for mixtures of experts: which experts a row uses, and products with only those.

A step's rows choose experts (route); what they chose is put in order of experts (group), so that each expert's weights
are read once per step, for all rows that use it; each row adds up what its experts return in the order of its choice,
the best one first (combine). So a row's bits depend neither on other rows nor on which experts those use.

A row that uses expert e with rank r, its r-th choice, is a *use*. Uses are numbered by row and rank; their *places* are
their numbers in the order of experts, in which rows of activations lie between `gather` and `combine`.
"""

from __future__ import annotations

from typing import Any

from onward.kernels.function import Function, Module
from onward.kernels.isa import Isa
from onward.kernels.maths import exp, sigmoid
from onward.kernels.operations import Operation, claim
from onward.kernels.products import ProductKind, whole_claim
from onward.kernels.records import (
    COMBINE,
    EXPERT_PRODUCT,
    GATHER,
    GROUP,
    OWN,
    PRODUCT,
    RECORD_WORDS,
    ROUTE,
    ROUTING,
    WEIGH,
)
from onward.kernels.values import F32, F32X16, I32, I64, LANES, VECTOR_BYTES, Value, vec

_TAKEN = -(2**31)
_MAGNITUDE = 2**31 - 1
_NAN = 0x7FC00000
MAX_EXPERTS = 1024
"""Of a layer, as `checkpoints.mixtures` accepts them."""
ROUTE_SCRATCH_BYTES = 4 * 2 * MAX_EXPERTS
"""A number for each expert, and one for each group."""
LEAST_SUM = 2.0**-14
"""Of sigmoids, or of shares that a bias chose, which weights are divided by, as in llama.cpp
(llm_graph_context::build_moe_ffn): they may all be 0."""
_I32X4 = vec(I32, 4)
_COPIED_BYTES = 16
"""At a time; rows of activations are whole multiples."""
GATHER_CLAIM = 8
"""Rows that a thread copies at a time."""


def emit_route(module: Module) -> Any:
    """Each row's experts, best first, and their weights: e**logit over the sum of all such, or of those chosen; or
    sigmoids of logits, over the sum of those chosen, or as they are. Of equal ones the first expert is chosen. Where a
    bias counts for the choice, or weights are sigmoids, the sum of those chosen counts as LEAST_SUM at least."""
    op = Operation(module, "route")
    f = op.f
    count, used = op.field(ROUTE, "count"), op.field(ROUTE, "used")
    with op.rows() as row:
        logits = f.at(op.field(ROUTE, "logits"), row * op.field(ROUTE, "stride"))
        chosen = f.at(op.field(ROUTE, "chosen"), row * used * 8)
        weights = f.at(op.field(ROUTE, "weights"), row * used * 4)
        is_sigmoid, has_bias = op.field(ROUTE, "is_sigmoid").ne(0), op.field(ROUTE, "bias").is_null().eq(0)
        is_by_logit = op.field(ROUTE, "is_by_logit").ne(0)
        with f.otherwise(is_sigmoid) as (by_sigmoid, by_softmax):
            with by_sigmoid, f.when(is_by_logit.eq(0)), f.loop(0, count * 4, 4) as at:
                f.store(sigmoid(f, f.load(logits, F32, at)), logits, at)
            with by_softmax, f.when(has_bias):
                _emit_shares(f, logits, count)
        _emit_choice(op, logits, chosen, weights)
        with f.when(is_by_logit), f.loop(0, used * 4, 4) as at:
            f.store(sigmoid(f, f.load(weights, F32, at)), weights, at)
        largest, total = f.load(weights, F32), f.var(F32, 0.0)
        is_of_chosen, are_weights = op.field(ROUTE, "is_normalised").ne(0), is_sigmoid | has_bias
        with f.otherwise(are_weights) as (chosen_by_weight, chosen_by_logit):
            with chosen_by_weight:
                total.set(f.select(is_of_chosen, f.f32(0.0), f.f32(1.0)))
            with chosen_by_logit:
                with f.when(is_of_chosen.eq(0)), f.loop(0, count * 4, 4) as at:
                    total.value += exp(f, f.load(logits, F32, at) - largest)
                with f.loop(0, used * 4, 4) as at:
                    f.store(exp(f, f.load(weights, F32, at) - largest), weights, at)
        with f.when(is_of_chosen), f.loop(0, used * 4, 4) as at:
            total.value += f.load(weights, F32, at)
        with f.when(are_weights):
            total.set(f.max(total.value, LEAST_SUM))
        with f.loop(0, used * 4, 4) as at:
            f.store(f.load(weights, F32, at) / total.value * op.field(ROUTE, "scale"), weights, at)
        scales = op.field(ROUTE, "scales")
        with f.when(scales.is_null().eq(0)), f.loop(0, used) as rank:
            own = f.load(scales, F32, f.load(chosen, I64, rank * 8) * 4)
            f.store(f.load(weights, F32, rank * 4) * own, weights, rank * 4)
    return f.ret()


def _emit_shares(f: Function, logits: Value, count: Value) -> None:
    """Turn logits into e**logit over the sum of all such. Where that is not a number, none of them is one."""
    largest, total = f.var(F32, float("-inf")), f.var(F32, 0.0)
    with f.loop(0, count * 4, 4) as at:
        largest.set(f.max(f.load(logits, F32, at), largest.value))
    with f.loop(0, count * 4, 4) as at:
        share = exp(f, f.load(logits, F32, at) - largest.value)
        total.value += share
        f.store(share, logits, at)
    with f.loop(0, count * 4, 4) as at:
        f.store(f.load(logits, F32, at) / total.value, logits, at)


def _emit_choice(op: Operation, logits: Value, chosen: Value, weights: Value) -> None:
    """Write which experts have the largest logits, int64, and those logits, float32. A bias counts for the choice, and
    so does which groups are used.

    They are compared as integers of the same order, in which a NaN is the largest: no expert is chosen twice, and every
    processor chooses the same ones, whatever they are.
    """
    f, keys = op.f, op.scratch()
    count, bias = op.field(ROUTE, "count"), op.field(ROUTE, "bias")
    has_bias = bias.is_null().eq(0)
    with f.loop(0, count * 4, 4) as at:
        number = f.var(F32, f.load(logits, F32, at) + 0.0)  # -0.0 equals 0.0
        with f.when(has_bias):
            number.value += f.load(bias, F32, at)
        f.store(_key(f, number.value), keys, at)
    with f.when(op.field(ROUTE, "groups") > 1):
        _emit_groups(op, keys)
    with f.loop(0, op.field(ROUTE, "used")) as rank:
        best, place = f.var(I32, _TAKEN), f.var(I64, 0)
        with f.loop(0, count) as expert:
            key = f.load(keys, I32, expert * 4)
            is_better = key > best.value
            best.set(f.select(is_better, key, best.value))
            place.set(f.select(is_better, expert, place.value))
        f.store(f.i32(_TAKEN), keys, place.value * 4)
        f.store(place.value, chosen, rank * 8)
        f.store(f.load(logits, F32, place.value * 4), weights, rank * 4)


def _key(f: Function, number: Value) -> Value:
    """Return an integer that is in the order of floats, and larger than _TAKEN. All NaNs are one: the sign of what
    inf - inf is differs between processors."""
    bits = f.select(number.is_nan(), f.i32(_NAN), number.as_(I32))
    return bits ^ (bits.sar(31) & _MAGNITUDE)


def _emit_groups(op: Operation, keys: Value) -> None:
    """Take the experts of all but the best groups out of the choice. Of equal groups the first ones stay."""
    f = op.f
    count, groups, are_pairs = op.field(ROUTE, "count"), op.field(ROUTE, "groups"), op.field(ROUTE, "is_sigmoid").ne(0)
    size, scores = count // groups, f.at(keys, count * 4)
    with f.loop(0, groups) as group:
        first, second = f.var(I32, _TAKEN), f.var(I32, _TAKEN)
        with f.loop(group * size, (group + 1) * size) as expert:
            key = f.load(keys, I32, expert * 4)
            second.set(f.max(second.value, f.min(first.value, key)))
            first.set(f.max(first.value, key))
        with f.when(are_pairs):
            best, next_best = ((each.value ^ (each.value.sar(31) & _MAGNITUDE)).as_(F32) for each in (first, second))
            first.set(_key(f, best + next_best + 0.0))
        f.store(first.value, scores, group * 4)
    with f.loop(op.field(ROUTE, "used_groups"), groups):  # the worst one that is left
        worst, place = f.var(I32, _MAGNITUDE), f.var(I64, 0)
        with f.loop(0, groups) as group:
            score = f.load(scores, I32, group * 4)
            is_worse = score <= worst.value
            worst.set(f.select(is_worse, score, worst.value))
            place.set(f.select(is_worse, group, place.value))
        f.store(f.i32(_MAGNITUDE), scores, place.value * 4)
        with f.loop(place.value * size, (place.value + 1) * size) as expert:
            f.store(f.i32(_TAKEN), keys, expert * 4)


def emit_group(module: Module) -> Any:
    """The uses of a step in order of experts, by one thread; asks for the weights of experts that are not in memory."""
    op = Operation(module, "group")
    f = op.f
    with claim(f, op.counter, f.i64(1), f.i64(1)):
        used, count, routing = op.field(GROUP, "used"), op.field(GROUP, "count"), op.field(GROUP, "routing")
        chosen, begins, active, places, rows = (
            ROUTING.load(f, routing, name) for name in ("chosen", "begins", "active", "places", "rows")
        )
        uses = op.shared("rows") * used
        with f.loop(0, count * 8, 8) as at:
            f.store(f.i64(0), begins, at)
        with f.loop(0, uses * 8, 8) as at:
            place = f.at(begins, f.load(chosen, I64, at) * 8)
            f.store(f.load(place, I64) + 1, place)
        _emit_begins(op, routing, begins, active)
        with f.loop(0, uses) as use:  # each expert's begin moves on to its end, the next one's begin
            place = f.at(begins, f.load(chosen, I64, use * 8) * 8)
            at = f.load(place, I64)
            f.store(at, places, use * 8)
            f.store(use // used, rows, at * 8)
            f.store(at + 1, place)
    return f.ret()


def _emit_begins(op: Operation, routing: Value, begins: Value, active: Value) -> None:
    """Turn counts into begins, list the experts with rows, count their steps, and ask for those that are missing."""
    f, experts = op.f, op.field(GROUP, "experts")
    total, num_active, num_missing = (f.var(I64, 0) for _ in range(3))
    with f.loop(0, op.field(GROUP, "count")) as expert:
        rows = f.load(begins, I64, expert * 8)
        f.store(total.value, begins, expert * 8)
        total.value += rows
        with f.when(rows > 0):
            f.store(expert, active, num_active.value * 8)
            num_active.value += 1
            num_missing.value += f.load_pointer(experts, expert * 8).is_null().zext(I64)
            f.store(OWN.load(f, op.counter, "step"), op.field(GROUP, "steps"), expert * 8)
            uses = f.at(op.field(GROUP, "uses"), expert * 8)
            f.store(f.load(uses, I64) + 1, uses)
    ROUTING.store(f, routing, "num_active", num_active.value)
    with f.when(num_missing.value > 0):
        f.call_address(op.field(GROUP, "fetch"), [op.field(GROUP, "layer")])


def emit_gather(module: Module) -> Any:
    """Rows of activations in order of experts: one for each use."""
    op = Operation(module, "gather")
    f = op.f
    rows = op.field(GATHER, "rows")
    uses = op.shared("rows") * op.field(GATHER, "used")
    with claim(f, op.counter, uses, f.i64(GATHER_CLAIM)) as (first, last), f.loop(first, last) as place:
        source = f.at(op.field(GATHER, "source"), f.load(rows, I64, place * 8) * op.field(GATHER, "source_stride"))
        target = f.at(op.field(GATHER, "target"), place * op.field(GATHER, "target_stride"))
        with f.loop(0, op.field(GATHER, "row_bytes"), _COPIED_BYTES) as at:
            f.store(f.load(source, _I32X4, at), target, at)
    return f.ret()


def emit_expert_product(module: Module, isa: Isa, kind: ProductKind) -> Any:
    """Products of each expert's rows with its panels: PRODUCT records of one expert. A thread takes successive pieces
    of a few panels, towards the end fewer."""
    product = module.ir.globals[f"product_{kind.name}"]
    op = Operation(module, f"experts_{kind.name}")
    f = op.f
    own, routing = f.stack(I64, RECORD_WORDS), op.field(EXPERT_PRODUCT, "routing")
    active, begins = ROUTING.load(f, routing, "active"), ROUTING.load(f, routing, "begins")
    panels, step = op.field(EXPERT_PRODUCT, "num_panels"), whole_claim(f, isa, kind, op.field(EXPERT_PRODUCT, "piece"))
    pieces = (panels + step - 1) // step
    total = ROUTING.load(f, routing, "num_active") * pieces
    chunk = op.shrinking(total, op.field(EXPERT_PRODUCT, "run"))
    with claim(f, op.counter, total, chunk) as (first_piece, last_piece), f.loop(first_piece, last_piece) as piece:
        number = piece // pieces
        expert = f.load(active, I64, number * 8)
        begin, end = f.var(I64, 0), f.load(begins, I64, expert * 8)
        with f.when(number > 0):  # where the one before ends
            begin.set(f.load(begins, I64, f.load(active, I64, number * 8 - 8) * 8))
        weights = f.load_pointer(op.field(EXPERT_PRODUCT, "experts"), expert * 8)
        with f.when(weights.is_null().eq(0)):
            _emit_own_record(op, own, expert, begin.value, weights)
            first = piece % pieces * step
            f.call(product, [own, first, f.min(first + step, panels), end - begin.value, op.scratch()])
    return f.ret()


def _emit_own_record(op: Operation, own: Value, expert: Value, begin: Value, weights: Value) -> None:
    """Write the PRODUCT record of one expert."""
    f = op.f
    values: dict[str, Value | float] = {
        name: op.field(EXPERT_PRODUCT, name) for name in ("panel_bytes", "blocks", "source_stride", "target_stride")
    }
    for name in ("source", "target"):
        values[name] = f.at(op.field(EXPERT_PRODUCT, name), begin * values[f"{name}_stride"])
    bias = op.field(EXPERT_PRODUCT, "bias")
    biases = f.at(bias, expert * op.field(EXPERT_PRODUCT, "bias_stride"))
    values |= {"panels": f.at(weights, op.field(EXPERT_PRODUCT, "offset")), "is_added": 0, "scale": 1.0}
    values["bias"] = f.select(bias.is_null(), f.null(), biases)
    for name, value in values.items():
        PRODUCT.store(f, own, name, value)


def emit_weigh(module: Module) -> Any:
    """What experts' first matrices return for a row, times the row's weight, which then is 1: as if it multiplied what
    they read."""
    op = Operation(module, "weigh")
    f = op.f
    used, routing = op.field(WEIGH, "used"), op.field(WEIGH, "routing")
    places, weights = ROUTING.load(f, routing, "places"), ROUTING.load(f, routing, "weights")
    with op.rows() as row, f.loop(row * used, (row + 1) * used) as use:
        weight = f.splat(f.load(weights, F32, use * 4), LANES)
        first = f.load(places, I64, use * 8) * op.field(WEIGH, "stride")
        for name in ("gate", "up"):
            values = f.at(op.field(WEIGH, name), first)
            with f.loop(0, op.field(WEIGH, "row_bytes"), VECTOR_BYTES) as at:
                f.store(f.load(values, F32X16, at) * weight, values, at)
        f.store(f.f32(1.0), weights, use * 4)
    return f.ret()


def emit_combine(module: Module) -> Any:
    """(What a row's experts return, each times its weight, best first, + sigmoid(gate) * shared) * scale: added to
    target, or written there."""
    op = Operation(module, "combine")
    f = op.f
    used, stride = op.field(COMBINE, "used"), op.field(COMBINE, "source_stride")
    routing, shared, gates = op.field(COMBINE, "routing"), op.field(COMBINE, "shared"), op.field(COMBINE, "gates")
    places, weights = ROUTING.load(f, routing, "places"), ROUTING.load(f, routing, "weights")
    is_added = op.field(COMBINE, "is_added").ne(0)
    with op.rows() as row:
        target = f.at(op.field(COMBINE, "target"), row * op.field(COMBINE, "target_stride"))
        gate = f.var(F32, 1.0)
        with f.when(gates.is_null().eq(0)):
            gate.set(sigmoid(f, f.load(gates, F32, row * op.field(COMBINE, "gate_stride"))))
        with f.loop(0, op.field(COMBINE, "row_bytes"), VECTOR_BYTES) as at:
            total = f.var(F32X16, 0.0)
            with f.loop(row * used, (row + 1) * used) as use:
                found = f.at(op.field(COMBINE, "source"), f.load(places, I64, use * 8) * stride)
                weight = f.splat(f.load(weights, F32, use * 4), LANES)
                total.set(f.fma(weight, f.load(found, F32X16, at), total.value))
            with f.when(shared.is_null().eq(0)):
                both = f.at(shared, row * op.field(COMBINE, "shared_stride") + at)
                total.set(f.fma(f.splat(gate.value, LANES), f.load(both, F32X16), total.value))
            added = total.value * f.splat(op.field(COMBINE, "scale"), LANES)
            before = f.select(is_added, f.load(target, F32X16, at), f.const(F32X16, 0.0))
            f.store(before + added, target, at)
    return f.ret()
