"""The engine's Model over a tape: rows of a step in, logits out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.mapped import FileWatch
from onward.engine.model import Hook, Row, StepShape, nothing
from onward.kernels.attention_shape import BLOCK_TOKENS
from onward.kernels.machine import Machine
from onward.kernels.memory import Rows, address
from onward.kernels.parts import Part
from onward.runtimes.native.buffers import Buffers
from onward.runtimes.native.expert_cache import ExpertCache
from onward.runtimes.native.panel_cache import PanelCache
from onward.runtimes.native.positions import Positions
from onward.runtimes.native.runs import MAX_DRAFTS, Runs

STEP_SHAPE = StepShape(
    block_tokens=BLOCK_TOKENS, min_prefill_tokens=1, tile_tokens=8, max_prefill_tokens=512, imperceptible_seconds=0.010
)
MAX_ROWS = 1024
"""Rows that are computed at a time; a longer step takes several passes, with the same bits."""


class Tape(NamedTuple):
    """What a step walks: `whole` where the logits of all rows are wanted; else `kept` for all rows, and then `rest` for
    those that are wanted. `kept` ends with the keys and values of the last layer that has some of its own: what follows
    no other row reads, whether in this step or in a later one. Where hidden states of all rows are kept, it ends with
    these, and only the output layer is left."""

    whole: Sequence[Part]
    kept: Sequence[Part]
    rest: Sequence[Part]

    @property
    def parts(self) -> list[Part]:
        return [*self.whole, *self.kept, *self.rest]


class NativeModel:
    """Implements engine.model.ModelRunner. Created by `load`; engine thread only. No row's bits depend on another
    row, on the number of threads, or on how a step is cut.

    Rows of each adapter have a tape of their own, one after the other over the same memory.
    """

    def __init__(
        self,
        machine: Machine,
        tape: Tape,
        panels: PanelCache,
        experts: ExpertCache | None,
        cache: Rows,
        states: Rows,
        positions: Positions,
        buffers: Buffers,
        watch: FileWatch,
        *,
        vocab_size: int,
        context_length: int,
        blocks: int,
        keep: object,
    ) -> None:
        """`tape`: of rows without an adapter. `cache`: a row per block; `states`: a row per state, of models whose
        sequences have some. `watch`: of the files, which steps read, too. `keep`: what owns the tape's memory."""
        self.vocab_size, self.context_length, self.blocks = vocab_size, context_length, blocks
        self.shape = STEP_SHAPE
        self._runs: Runs | None = None
        if states.count:
            self.shape = replace(STEP_SHAPE, states=states.count, max_draft_tokens=MAX_DRAFTS)
            self._runs = Runs(states.count)
        self._parts: tuple[Machine, PanelCache] | None = (machine, panels)
        self._experts, self._watch = experts, watch
        self._tapes: dict[str, tuple[Tape, object]] = {"": (tape, keep)}
        """Of adapters, of none, and of a layer that predicts, each with what owns the memory that it points to."""
        self._cache, self._states = _array(cache), _array(states)
        self._positions = positions
        self._carried = [_array(each) for each in buffers.carried]
        self._logits = _array(buffers.logits).view(np.float32)[:, :vocab_size]
        self._tables = np.zeros(1024, np.int32)
        self.keep_hidden: Callable[[Sequence[Row]], None] | None = None
        """Keeps the hidden states of a step's rows; None: nothing reads them."""

    def use_tape(self, adapter: str, tape: Tape, keep: object) -> None:
        """Compute the rows of an adapter by a tape of its own. `keep`: what owns the memory that it points to."""
        self._open().accept(tape.parts)
        self._tapes[adapter] = tape, keep

    def drop_tape(self, adapter: str) -> None:
        """Free what the rows of an adapter are computed with."""
        tape, _ = self._tapes.pop(adapter)
        self._open().retire(tape.parts)

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        """Return logits, float32 [outputs, vocab_size]; see engine.model.ModelRunner. Raises RuntimeError for rows that
        are outside of the context, the vocabulary or their block tables, or of an adapter that is not loaded, and if
        the model is closed or its files were written to."""
        if self._runs is not None:
            self._runs.begin_step()
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(row.adapter, []).append(row)
        parts = [part for group in groups.values() for part in _passes(group)]
        if len(parts) == 1:
            return self._evaluate_pass(rows, before_compute)
        found = []
        for index, part in enumerate(parts):
            found.append(self._evaluate_pass(part, before_compute if index == 0 else nothing).copy())
        logits = np.concatenate(found)
        return logits if len(groups) == 1 else logits[_places(rows, groups)]

    def _evaluate_pass(self, rows: Sequence[Row], before_compute: Hook) -> NDArray[np.float32]:
        machine, adapter = self._open(), rows[0].adapter
        if adapter not in self._tapes:
            raise RuntimeError(f"The adapter {adapter} is not loaded.")
        tape, _ = self._tapes[adapter]
        count, wanted = self._fill(machine, rows)
        runs = 0 if self._runs is None else self._runs.fill(machine.runs, rows)
        logits = self.walk(machine, tape, count, wanted, before_compute, runs=runs)
        if self.keep_hidden is not None:
            self.keep_hidden(rows)
        return logits

    def begin_rows(self, tokens: Sequence[int], positions: Sequence[int]) -> Machine:
        """Return the machine, with tokens and positions of the next step, whose block tables the caller writes. Raises
        RuntimeError for those outside of the vocabulary or the context."""
        machine, count = self._open(), len(tokens)
        self._require_bounds(tokens, positions)
        machine.tokens[:count], machine.positions[:count] = tokens, positions
        return machine

    def walk(
        self,
        machine: Machine,
        tape: Tape,
        count: int,
        wanted: NDArray[np.int64],
        before_compute: Hook,
        *,
        runs: int = 0,
    ) -> NDArray[np.float32]:
        """Compute the rows that were written, and return the logits of those that are wanted."""
        machine.plan(count)
        before_compute()
        if self._experts is not None:
            self._experts.begin_step()
        if len(wanted) == count:
            machine.step(count, tape.whole, runs=runs)
        else:
            machine.step(count, tape.kept, tape.rest if len(wanted) else (), runs=runs)
            self._compute_rest(machine, tape.rest, wanted)
        if self._experts is not None:
            self._experts.check()
        self._watch.require_unchanged()
        logits = self._logits[: len(wanted)]
        return logits if logits.flags.c_contiguous else np.ascontiguousarray(logits)

    def _compute_rest(self, machine: Machine, rest: Sequence[Part], wanted: NDArray[np.int64]) -> None:
        """Compute the rest of a step for the rows that are wanted, which become the first ones."""
        if not len(wanted):
            return
        carried: list[NDArray[Any]] = [machine.tokens, machine.positions, machine.tables, *self._carried]
        for values in carried:
            values[: len(wanted)] = values[wanted]
        machine.plan(len(wanted))
        machine.step(len(wanted), rest, runs=0)

    def _fill(self, machine: Machine, rows: Sequence[Row]) -> tuple[int, NDArray[np.int64]]:
        """Write the step's rows; return how many there are, and those whose logits are wanted. With lists, because most
        steps have a few rows: a call of numpy takes as long as all of these."""
        lengths = [len(row.tokens) for row in rows]
        begins = self._fill_tables(rows, lengths)
        tokens = [token for row in rows for token in row.tokens]
        positions = [
            each for row, length in zip(rows, lengths, strict=True) for each in range(row.start, row.start + length)
        ]
        first = address(self._tables)
        tables: list[int] = []
        for begin, length in zip(begins, lengths, strict=True):
            tables += [first + 4 * begin] * length
        wanted = [
            each for row, end in zip(rows, accumulate(lengths), strict=True) for each in range(end - row.outputs, end)
        ]
        self._require_bounds(tokens, positions)
        count = len(tokens)
        machine.tokens[:count], machine.positions[:count], machine.tables[:count] = tokens, positions, tables
        return count, np.array(wanted, np.int64)

    def _fill_tables(self, rows: Sequence[Row], lengths: list[int]) -> list[int]:
        """Write all block tables one after the other; return where each row's begins. Successive rows of one sequence,
        a token and its drafts, share one."""
        table: list[int] = []
        begins: list[int] = []
        previous: Sequence[int] | None = None
        for row, length in zip(rows, lengths, strict=True):
            needed = self.shape.blocks_for(row.start + length)
            if len(row.blocks) < needed:
                raise RuntimeError(f"Sequence {row.sequence} needs {needed} blocks for {row.start + length} tokens.")
            if row.blocks is previous:
                begins.append(begins[-1])
                table += row.blocks[len(table) - begins[-1] : needed]
                continue
            begins.append(len(table))
            table += row.blocks[:needed]
            previous = row.blocks
        if len(table) > len(self._tables):
            self._tables = np.zeros(2 * len(table), np.int32)
        self._tables[: len(table)] = table
        if table and not 0 <= min(table) <= max(table) < self.blocks:
            raise RuntimeError(f"A block table names blocks that are not within the cache of {self.blocks}.")
        return begins

    def _require_bounds(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            raise RuntimeError(f"A token is not within the vocabulary of {self.vocab_size}.")
        last = max(positions)
        if min(positions) < 0 or last >= self.context_length:
            raise RuntimeError(f"A position is not within the context of {self.context_length} tokens.")
        self._positions.fill(last + 1)

    def block_memory(self, block: int) -> list[NDArray[np.uint8]]:
        self._open()
        return [self._cache[block]]

    def copy_state(self, source: int, target: int) -> None:
        """See engine.model.RecurrentModel."""
        self._open()
        assert self._runs is not None
        self._states[target] = self._states[source]
        self._runs.copy(source, target)

    def state_memory(self, state: int) -> NDArray[np.uint8]:
        self._open()
        own: NDArray[np.uint8] = self._states[state]
        return own

    def set_state(self, state: int, content: NDArray[np.uint8], num_positions: int) -> None:
        """See engine.model.RecurrentModel."""
        self._open()
        assert self._runs is not None
        self._states[state] = content
        self._runs.replace(state, num_positions)

    def close(self) -> None:
        """End the threads, and free the weights and the KV cache. May be called again."""
        if self._parts is not None:
            self._parts[0].close()
            self._parts[1].close()
        if self._experts is not None:
            self._experts.close()
            self._experts = None
        self._parts = None
        self._watch.close()
        self._tapes = {}
        self._cache = self._states = np.empty((0, 0), np.uint8)

    def _open(self) -> Machine:
        if self._parts is None:
            raise RuntimeError("The model is closed.")
        return self._parts[0]


def _array(rows: Rows) -> NDArray[np.uint8]:
    """Return the memory of rows, uint8 [rows, bytes]."""
    return rows.memory[: rows.count * rows.stride].reshape(rows.count, rows.stride)


def _places(rows: Sequence[Row], groups: Mapping[str, Sequence[Row]]) -> NDArray[np.int64]:
    """Return where the logits of rows are, in their order, among those of their groups, one after the other."""
    begins = np.cumsum([0, *(sum(row.outputs for row in group) for group in groups.values())])
    following = dict(zip(groups, begins.tolist(), strict=False))
    places = []
    for row in rows:
        places.append(np.arange(following[row.adapter], following[row.adapter] + row.outputs))
        following[row.adapter] += row.outputs
    return np.concatenate(places)


def _passes(rows: Sequence[Row]) -> list[list[Row]]:
    """Cut a step into parts of at most MAX_ROWS tokens, in order. A token and its drafts are not separated."""
    if sum(len(row.tokens) for row in rows) <= MAX_ROWS:
        return [list(rows)]
    parts: list[list[Row]] = [[]]
    room = MAX_ROWS
    for row, num_drafts in _with_drafts(rows):
        begin, count = 0, len(row.tokens)
        while begin < count:
            if room <= num_drafts:
                parts.append([])
                room = MAX_ROWS
            end = min(count, begin + room)
            outputs = max(0, end - max(begin, count - row.outputs))
            whole = begin == 0 and end == count
            part = (
                row if whole else replace(row, tokens=row.tokens[begin:end], start=row.start + begin, outputs=outputs)
            )
            parts[-1].append(part)
            room -= end - begin
            begin = end
    return parts


def _with_drafts(rows: Sequence[Row]) -> list[tuple[Row, int]]:
    """Return rows, each with the number of drafts that follow it: 0 for a draft."""
    found: list[tuple[Row, int]] = []
    num_drafts = 0
    for row in reversed(rows):
        found.append((row, 0 if row.is_draft else num_drafts))
        num_drafts = num_drafts + 1 if row.is_draft else 0
    return found[::-1]
