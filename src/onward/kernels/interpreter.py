"""The compiled function that walks a tape, the same on every thread, and how its threads wait for each other.

A record says what is computed; threads take its pieces by a counter of its own; where it has a barrier, no thread
continues before its pieces and those of the records before are complete. Who computed them does not matter: a thread
that the system does not run, because others need its core, is not waited for unless it is in the middle of a piece, and
catches up when it runs again. Between steps all threads but the caller's sleep. Memory that threads share is written
before an atomic operation that others read: nothing relies on a processor's order of stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from onward import kernels
from onward.kernels.activations import ActivationName
from onward.kernels.altup import emit_altup
from onward.kernels.attention_kernels import attention_scratch_bytes, emit_attention, emit_merge
from onward.kernels.attention_shape import AttentionShape
from onward.kernels.convolution import emit_convolve, emit_keep
from onward.kernels.expert_operations import (
    ROUTE_SCRATCH_BYTES,
    emit_combine,
    emit_expert_product,
    emit_gather,
    emit_group,
    emit_route,
    emit_weigh,
)
from onward.kernels.function import Function, Module
from onward.kernels.isa import Isa
from onward.kernels.norms import emit_norm, emit_norm_heads, emit_sparsify
from onward.kernels.operations import (
    Writers,
    emit_cap,
    emit_embed,
    emit_product_operation,
    emit_quantise,
    emit_rotate,
)
from onward.kernels.panels import emit_interleave
from onward.kernels.products import ProductKind
from onward.kernels.recipe import Recipe
from onward.kernels.records import (
    BARRIER,
    COMPLETED_OFFSET,
    CONTEXT,
    COUNTER_BYTES,
    HEADER,
    OWN,
    OWN_BYTES,
    PIECE_MASK,
    RECORD_BYTES,
    STEP_SHIFT,
)
from onward.kernels.recurrence import DeltaShape, emit_delta, emit_scan
from onward.kernels.state_space import emit_state_space
from onward.kernels.units import emit_unit
from onward.kernels.values import I64, PTR, Value
from onward.kernels.waiting import FUTEX_WAIT, FUTEX_WAKE

END, NORM_CODE, QUANTISE_CODE, UNIT_CODE = range(4)
SCAN_CODE, DELTA_CODE, STATE_SPACE_CODE, SPARSIFY_CODE = range(4, 8)
ROUTE_CODE, GROUP_CODE, GATHER_CODE, COMBINE_CODE, CAP_CODE = range(8, 13)
KEEP_CODE, CONVOLVE_CODE, ALTUP_CODE, WEIGH_CODE = range(13, 17)
_FIRST_EMBED, _FIRST_PRODUCT, _FIRST_EXPERT_PRODUCT, _FIRST_NORM_HEADS, _FIRST_ATTENTION = 24, 64, 128, 192, 224
SLEEPERS_OFFSET = 64
"""Bytes from a number that threads wait for to the count of those that sleep."""
COMPLETION_WORDS = 16
CONTROL_TAPE, CONTROL_QUIT = 128, 136
"""Of the workers' memory: the number of steps at 0."""
CONTROL_WORDS = 24
MAX_GROUP = 8
"""Records up to a barrier."""
BARRIER_SPINS, IDLE_SPINS = 2000, 2000
"""How often a thread looks before it sleeps: some 50 microseconds."""
NUM_OPERATIONS = 256
STEP_FIELDS = ("rows", "num_tiles", "are_heads_together", "num_merged", "num_runs")
"""Fields of the context that each step states."""
_ALL = 2**31 - 1


@dataclass(frozen=True)
class Kernels:
    """Which kernels a model needs. Each is a module of machine code, which models share that need the same."""

    products: tuple[ProductKind, ...]
    embeddings: tuple[str, ...]
    """Types of tables."""
    attention: tuple[AttentionShape, ...]
    """Of all layers."""
    norm_sizes: tuple[int, ...] = ()
    """Sizes of parts of a row, other than heads, that are normalised separately."""
    has_experts: bool = False
    has_caps: bool = False
    has_convolutions: bool = False
    has_altup: bool = False
    """Whether rows have several hidden states."""
    has_sparse_gates: bool = False
    delta: DeltaShape | None = None
    """Of layers that keep a state of each sequence."""
    has_state_spaces: bool = False

    @property
    def has_states(self) -> bool:
        """Whether sequences have states."""
        return self.delta is not None or self.has_state_spaces

    def embed_code(self, name: str) -> int:
        """Return the operation that reads a table of this type."""
        return _FIRST_EMBED + self.embeddings.index(name)

    def product_code(self, kind: ProductKind) -> int:
        """Return the operation of a product."""
        return _FIRST_PRODUCT + self.products.index(kind)

    def expert_product_code(self, kind: ProductKind) -> int:
        """Return the operation of products with the experts that are used."""
        return _FIRST_EXPERT_PRODUCT + self.products.index(kind)

    def norm_heads_code(self, size: int) -> int:
        """Return the operation of norms of heads, or other parts of a row, of this size."""
        return _FIRST_NORM_HEADS + self._norm_sizes().index(size)

    def _norm_sizes(self) -> list[int]:
        return sorted({*self.norm_sizes, *(shape.head_size for shape in self.attention)})

    def attention_codes(self, shape: AttentionShape) -> tuple[int, int, int]:
        """Return the operations of a shape: rotate, attend, merge."""
        first = _FIRST_ATTENTION + 3 * self.attention.index(shape)
        return first, first + 1, first + 2

    def forms(self) -> set[ActivationName]:
        """Return the forms of activations that rows are written in: those that products read, and float32."""
        return {"float32", *(kind.activations for kind in self.products)}

    def scratch_bytes(self, isa: Isa, longest_row: int) -> int:
        """Return the scratch memory of a thread, for rows of float32 of up to so many numbers."""
        wanted = [4 * (longest_row + 64), ROUTE_SCRATCH_BYTES, *(kind.scratch_bytes(isa) for kind in self.products)]
        wanted += [attention_scratch_bytes(shape, isa) for shape in self.attention]
        return -(-max(wanted) // 4096) * 4096

    def operations(self) -> dict[int, str]:
        """Return the functions of the operations, by code."""
        found = {NORM_CODE: "norm", QUANTISE_CODE: "quantise", UNIT_CODE: "unit"}
        found |= {self.norm_heads_code(size): f"norm_heads_{size}" for size in self._norm_sizes()}
        found |= {self.embed_code(name): f"embed_{name}" for name in self.embeddings}
        found |= {self.product_code(kind): f"product_{kind.name}" for kind in self.products}
        for shape in self.attention:
            name = shape.unrotated.name
            names = f"rotate_{shape.name}", f"attend_{name}", f"merge_{name}"
            found |= dict(zip(self.attention_codes(shape), names, strict=True))
        if self.has_experts:
            found |= {ROUTE_CODE: "route", GROUP_CODE: "group", GATHER_CODE: "gather", COMBINE_CODE: "combine"}
            found[WEIGH_CODE] = "weigh"
            found |= {self.expert_product_code(kind): f"experts_{kind.name}" for kind in self.products}
        if self.has_caps:
            found[CAP_CODE] = "cap"
        if self.has_altup:
            found[ALTUP_CODE] = "altup"
        if self.has_sparse_gates:
            found[SPARSIFY_CODE] = "sparsify"
        if self.has_convolutions:
            found |= {KEEP_CODE: "keep", CONVOLVE_CODE: "convolve"}
        if self.has_states:
            found[SCAN_CODE] = "scan"
        if self.delta is not None:
            found[DELTA_CODE] = f"delta_{self.delta.name}"
        if self.has_state_spaces:
            found[STATE_SPACE_CODE] = "state_space"
        return {code: f"operation_{name}" for code, name in found.items()}

    def recipes(self, isa: Isa) -> list[Recipe]:
        """Return how the modules are written. Together they export step, work, interleave_TYPE, product_KIND and the
        operations."""
        forms = tuple(sorted(self.forms()))
        # those that take longest to compile first: the last ones decide how long several processes wait for each other
        parts: list[tuple[Any, ...]] = [(_emit_products, isa, kind) for kind in self.products]
        parts += [(_emit_attention, isa, shape) for shape in dict.fromkeys(shape.unrotated for shape in self.attention)]
        parts += [(_emit_rows, forms), (_emit_interpreter, isa)]
        parts += [(emit_embed, isa, name) for name in self.embeddings]
        parts += [(emit_interleave, name) for name in sorted({kind.weights for kind in self.products})]
        parts += [(emit_norm_heads, size) for size in self._norm_sizes()]
        parts += [(emit_rotate, shape) for shape in self.attention]
        if self.has_experts:
            parts.append((_emit_experts,))
        if self.has_caps:
            parts.append((emit_cap,))
        if self.has_altup:
            parts.append((emit_altup,))
        if self.has_sparse_gates:
            parts.append((emit_sparsify,))
        if self.has_convolutions:
            parts.append((_emit_convolutions, self.attention[0], forms))
        if self.has_states:
            parts.append((emit_scan,))
        if self.delta is not None:
            parts.append((emit_delta, self.delta))
        if self.has_state_spaces:
            parts.append((emit_state_space,))
        return [_recipe(isa, *part) for part in parts]


def product_recipes(kind: ProductKind, isa: Isa) -> list[Recipe]:
    """Return how the modules of a product and of its panels are written."""
    return [_recipe(isa, _emit_products, isa, kind), _recipe(isa, emit_interleave, kind.weights)]


def _recipe(isa: Isa, emit: Callable[..., Any], *facts: Any) -> Recipe:
    """Return how `emit(module, *facts)` writes a module. Where an Isa decides more than `soft`, it is a fact."""
    soft = tuple(sorted(isa.soft))
    return Recipe(partial(_text, emit, soft, facts), (emit.__name__, soft, *facts), (kernels,))


def _text(emit: Callable[..., Any], soft: tuple[str, ...], facts: tuple[Any, ...]) -> str:
    module = Module("kernels", soft)
    emit(module, *facts)
    return module.text()


def _emit_rows(module: Module, forms: Iterable[ActivationName]) -> None:
    writers = Writers(module, forms)
    for emit in (emit_norm, emit_quantise, emit_unit):
        emit(module, writers)


def _emit_products(module: Module, isa: Isa, kind: ProductKind) -> None:
    emit_product_operation(module, isa, kind)
    emit_expert_product(module, isa, kind)


def _emit_attention(module: Module, isa: Isa, shape: AttentionShape) -> None:
    emit_attention(module, isa, shape)
    emit_merge(module, isa, shape)


def _emit_experts(module: Module) -> None:
    for emit in (emit_route, emit_group, emit_gather, emit_weigh, emit_combine):
        emit(module)


def _emit_convolutions(module: Module, shape: AttentionShape, forms: Iterable[ActivationName]) -> None:
    emit_keep(module, shape)
    emit_convolve(module, shape, Writers(module, forms))


def _emit_interpreter(module: Module, isa: Isa) -> None:
    wait, wake = _emit_wait(module, isa), _emit_wake(module)
    walk = _emit_walk(module, _emit_finish(module, wait), wake)
    _emit_step(module, walk, wake)
    _emit_work(module, walk, wait)


def _emit_wait(module: Module, isa: Isa) -> Any:
    """Emit (context, number's address, old, spins): return when the number is no longer `old`."""
    f = Function(module, "wait", [PTR, PTR, I64, I64], inline=False)
    context, address, old, spins = f.args
    done = f.fn.append_basic_block("changed")
    with f.loop(0, spins):
        _leave_if_changed(f, address, old, done)
        isa.pause(f)
    function, number = CONTEXT.load(f, context, "wait"), CONTEXT.load(f, context, "wait_number")
    with f.forever() as loop:
        f.fetch_add(address, 1, SLEEPERS_OFFSET)
        with f.when(f.fetch_add(address, 0).eq(old)):
            f.call_address(function, [number, address, f.i64(FUTEX_WAIT), old, f.i64(0), f.i64(0)])
        f.fetch_add(address, -1, SLEEPERS_OFFSET)
        loop.break_if(f.load_acquire(address).ne(old))
    f.b.branch(done)
    f.b.position_at_end(done)
    return f.ret()


def _leave_if_changed(f: Function, address: Value, old: Value, done: Any) -> None:
    following = f.fn.append_basic_block()
    f.b.cbranch(f.load_acquire(address).ne(old).v, done, following)
    f.b.position_at_end(following)


def _emit_wake(module: Module) -> Any:
    """Emit (context, number's address): increment a number, and wake the threads that wait for it."""
    f = Function(module, "wake", [PTR, PTR], inline=False)
    context, address = f.args
    f.fetch_add(address, 1)
    function, number = CONTEXT.load(f, context, "wake"), CONTEXT.load(f, context, "wake_number")
    with f.when(f.fetch_add(address, 0, SLEEPERS_OFFSET).ne(0) & function.is_null().eq(0)):
        f.call_address(function, [number, address, f.i64(FUTEX_WAKE), f.i64(_ALL), f.i64(0), f.i64(0)])
    return f.ret()


def _emit_finish(module: Module, wait: Any) -> Any:
    """Emit (context, counter, total, step): return when so many pieces are complete, or the step is over."""
    f = Function(module, "finish", [PTR, PTR, I64, I64], inline=False)
    context, counter, total, step = f.args
    completion = CONTEXT.load(f, context, "completion")
    with f.forever() as loop:
        before = f.load_acquire(completion)
        loop.break_if((f.load_acquire(counter) >> STEP_SHIFT).ne(step))
        loop.break_if(f.load_acquire(counter, COMPLETED_OFFSET) >= total)
        f.call(wait, [context, completion, before, f.i64(BARRIER_SPINS)])
    return f.ret()


def _emit_walk(module: Module, finish: Any, wake: Any) -> Any:
    """Emit (tape, context, thread, step): every record up to END, as long as the step lasts."""
    f = Function(module, "walk", [PTR, PTR, I64, I64], inline=False)
    tape, context, thread, step = f.args
    own = f.at(CONTEXT.load(f, context, "threads_own"), thread * OWN_BYTES)
    operations = CONTEXT.load(f, context, "operations")
    OWN.store(f, own, "step", step)
    totals = f.stack(I64, MAX_GROUP)
    index, first = f.var(I64, 0), f.var(I64, 0)
    with f.forever() as records:
        record = f.at(tape, index.value * RECORD_BYTES)
        code = HEADER.load(f, record, "operation")
        records.break_if(code.eq(END))
        counters = CONTEXT.load(f, context, "counters")
        counter = f.at(counters, index.value * COUNTER_BYTES)
        OWN.store(f, own, "counter", counter)
        # a thread that comes late may read a record that is none any more: it finds that the step is over, below
        with f.when((code > END) & (code < NUM_OPERATIONS)):
            function = f.load_pointer(operations, code * 8)
            with f.when(function.is_null().eq(0)):
                f.call_address(function, [record, context, thread, own])
        with f.when(OWN.load(f, own, "is_last").ne(0)):
            f.call(wake, [context, CONTEXT.load(f, context, "completion")])
        f.store(OWN.load(f, own, "total"), totals, (index.value - first.value) * 8, 8)
        with f.when(BARRIER.load(f, record, "has_barrier").ne(0)):
            with f.loop(first.value, index.value + 1) as each:
                total = f.load(totals, I64, (each - first.value) * 8, 8)
                f.call(finish, [context, f.at(counters, each * COUNTER_BYTES), total, step])
            first.set(index.value + 1)
        records.break_if((f.load_acquire(counter) >> STEP_SHIFT).ne(step))
        index.value += 1
    return f.ret()


def _emit_step(module: Module, walk: Any, wake: Any) -> None:
    """Emit step(control, context, tape, STEP_FIELDS): begin a step, and walk the tape as thread 0.

    Counters are those of the step before anything else changes that a thread which comes late may read: one that
    walks the new tape, but believes in the step before, takes nothing of it.
    """
    f = Function(module, "step", [PTR, PTR, I64] + [I64] * len(STEP_FIELDS), exported=True)
    control, context, tape, *fields = f.args
    step = (f.load_acquire(control) + 1) & PIECE_MASK
    counters = CONTEXT.load(f, context, "counters")
    with f.loop(0, CONTEXT.load(f, context, "num_records")) as index:
        f.store_release(0, counters, index * COUNTER_BYTES + COMPLETED_OFFSET)
        f.store_release(step << STEP_SHIFT, counters, index * COUNTER_BYTES)
    for name, value in zip(STEP_FIELDS, fields, strict=True):
        f.store_release(value, context, CONTEXT.offset(name))
    f.store_release(tape, control, CONTROL_TAPE)
    f.call(wake, [context, control])
    f.call(walk, [f.load_pointer(control, CONTROL_TAPE), context, f.i64(0), step])
    f.ret()


def _emit_work(module: Module, walk: Any, wait: Any) -> None:
    """Emit work(control, context, thread): walk the tape with each step, until the workers are asked to quit."""
    f = Function(module, "work", [PTR, PTR, I64], exported=True)
    control, context, thread = f.args
    seen = f.var(I64, 0)
    with f.forever() as steps:
        f.call(wait, [context, control, seen.value, f.i64(IDLE_SPINS)])
        seen.set(f.load_acquire(control))
        steps.break_if(f.load(control, I64, CONTROL_QUIT, 8).ne(0))
        f.call(walk, [f.load_pointer(control, CONTROL_TAPE), context, thread, seen.value & PIECE_MASK])
    f.ret()
