"""The engine's Model over a tape: rows of a step in, logits out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.mapped import FileWatch
from onward.engine.model import Hook, Row, StepShape, nothing
from onward.kernels.attention_shape import BLOCK_TOKENS
from onward.kernels.machine import Machine
from onward.kernels.memory import Rows, address
from onward.kernels.tape import Part
from onward.runtimes.native.expert_cache import ExpertCache
from onward.runtimes.native.panel_cache import PanelCache
from onward.runtimes.native.positions import Positions

STEP_SHAPE = StepShape(
    block_tokens=BLOCK_TOKENS, min_prefill_tokens=1, tile_tokens=32, max_prefill_tokens=512, imperceptible_seconds=0.010
)
MAX_ROWS = 1024
"""Rows that are computed at a time; a longer step takes several turns, with the same bits."""


class NativeModel:
    """Implements engine.model.ModelRunner. Created by `load`; engine thread only. No row's bits depend on another
    row, on the number of threads, or on how a step is cut.

    Rows of each adapter have a tape of their own, one after the other over the same memory.
    """

    def __init__(
        self,
        machine: Machine,
        panels: PanelCache,
        experts: ExpertCache | None,
        cache: Rows,
        positions: Positions,
        logits: Rows,
        watch: FileWatch,
        *,
        vocab_size: int,
        context_length: int,
        blocks: int,
        keep: object,
    ) -> None:
        """`cache`: a row per block. `watch`: of the files, which steps read, too. `keep`: what owns the tape's
        memory."""
        self.vocab_size, self.context_length, self.blocks = vocab_size, context_length, blocks
        self.shape = STEP_SHAPE
        self._parts: tuple[Machine, PanelCache, object] | None = (machine, panels, keep)
        self._experts, self._watch = experts, watch
        self._tapes: dict[str, tuple[Sequence[Part], object]] = {}
        """Of adapters, each with what owns the memory that it points to."""
        self._cache = cache.memory[: cache.count * cache.stride].reshape(cache.count, cache.stride)
        self._positions = positions
        numbers = logits.memory[: logits.count * logits.stride].view(np.float32)
        self._logits = numbers.reshape(logits.count, -1)[:, :vocab_size]
        self._tables = np.zeros(1024, np.int32)

    def use_tape(self, adapter: str, tape: Sequence[Part], keep: object) -> None:
        """Compute the rows of an adapter by a tape of its own. `keep`: what owns the memory that it points to."""
        self._open().accept(tape)
        self._tapes[adapter] = tape, keep

    def drop_tape(self, adapter: str) -> None:
        """Free what the rows of an adapter are computed with."""
        tape, _ = self._tapes.pop(adapter)
        self._open().retire(tape)

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        """Return logits, float32 [outputs, vocab_size]; see engine.model.ModelRunner. Raises RuntimeError for rows that
        are outside of the context, the vocabulary or their block tables, or of an adapter that is not loaded, and if
        the model is closed or its files were written to."""
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(row.adapter, []).append(row)
        parts = [part for group in groups.values() for part in _turns(group)]
        if len(parts) == 1:
            return self._turn(rows, before_compute)
        found = []
        for index, part in enumerate(parts):
            found.append(self._turn(part, before_compute if index == 0 else nothing).copy())
        logits = np.concatenate(found)
        return logits if len(groups) == 1 else logits[_places(rows, groups)]

    def _turn(self, rows: Sequence[Row], before_compute: Hook) -> NDArray[np.float32]:
        machine, adapter = self._open(), rows[0].adapter
        if adapter and adapter not in self._tapes:
            raise RuntimeError(f"The adapter {adapter} is not loaded.")
        count, outputs = self._fill(machine, rows)
        machine.plan(count)
        before_compute()
        if self._experts is not None:
            self._experts.begin_step()
        machine.step(count, outputs, self._tapes[adapter][0] if adapter else None)
        if self._experts is not None:
            self._experts.check()
        self._watch.require_unchanged()
        logits = self._logits[:outputs]
        return logits if logits.flags.c_contiguous else np.ascontiguousarray(logits)

    def _fill(self, machine: Machine, rows: Sequence[Row]) -> tuple[int, int]:
        """Write the step's rows; return how many there are, and how many logits are wanted."""
        lengths = [len(row.tokens) for row in rows]
        count = sum(lengths)
        begins = self._fill_tables(rows, lengths)
        machine.tokens[:count] = [token for row in rows for token in row.tokens]
        starts = np.repeat(np.array([row.start for row in rows], np.int64), lengths)
        ends = np.cumsum(lengths)
        machine.positions[:count] = starts + np.arange(count) - np.repeat(ends - lengths, lengths)
        machine.tables[:count] = np.repeat(address(self._tables) + 4 * np.array(begins, np.int64), lengths)
        wanted = [
            index for row, end in zip(rows, ends.tolist(), strict=True) for index in range(end - row.outputs, end)
        ]
        machine.logit_rows[: len(wanted)] = wanted
        self._require_bounds(machine, count)
        return count, len(wanted)

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

    def _require_bounds(self, machine: Machine, count: int) -> None:
        tokens, positions = machine.tokens[:count], machine.positions[:count]
        if tokens.min() < 0 or tokens.max() >= self.vocab_size:
            raise RuntimeError(f"A token is not within the vocabulary of {self.vocab_size}.")
        last = int(positions.max())
        if positions.min() < 0 or last >= self.context_length:
            raise RuntimeError(f"A position is not within the context of {self.context_length} tokens.")
        self._positions.fill(last + 1)

    def block_memory(self, block: int) -> list[NDArray[np.uint8]]:
        self._open()
        return [self._cache[block]]

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
        self._cache = np.empty((0, 0), np.uint8)

    def _open(self) -> Machine:
        if self._parts is None:
            raise RuntimeError("The model is closed.")
        return self._parts[0]


def _places(rows: Sequence[Row], groups: Mapping[str, Sequence[Row]]) -> NDArray[np.int64]:
    """Return where the logits of rows are, in their order, among those of their groups, one after the other."""
    begins = np.cumsum([0, *(sum(row.outputs for row in group) for group in groups.values())])
    following = dict(zip(groups, begins.tolist(), strict=False))
    places = []
    for row in rows:
        places.append(np.arange(following[row.adapter], following[row.adapter] + row.outputs))
        following[row.adapter] += row.outputs
    return np.concatenate(places)


def _turns(rows: Sequence[Row]) -> list[list[Row]]:
    """Cut a step into parts of at most MAX_ROWS tokens, in order."""
    parts: list[list[Row]] = [[]]
    room = MAX_ROWS
    for row in rows:
        begin, count = 0, len(row.tokens)
        while begin < count:
            if room == 0:
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
