"""Panels of a model's matrices: in memory, or, where they do not fit, made from the file whenever a step needs them.

Matrices are in groups, which a step needs one after the other. As many groups as fit stay. The others take turns in two
slots: while one is computed with, the next one is made in the other. Nothing is written to disk.

The last groups may be those of a layer that only drafts: not every step is followed by one, so they are made when they
are needed, never before. From then on both slots stay as they are until another group is needed: drafts alternate
between that layer and the output layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.mapped import drop_pages
from onward.checkpoints.tensor import Tensor
from onward.errors import MemoryTooSmall
from onward.kernels.code import Code
from onward.kernels.machine import INTEGER, POINTER
from onward.kernels.memory import address, untouched
from onward.kernels.operands import Matrix
from onward.kernels.panels import panel_count
from onward.kernels.type_table import WEIGHT_TYPES
from onward.kernels.weight_types import GROUP, PANEL_ROWS
from onward.runtimes.native.types import stored_rows

_CHUNK_BYTES = 4 << 20
"""Of panels that a thread makes at a time."""
_PAGE = 4096
_SLOTS = 2


@dataclass(frozen=True, slots=True)
class PanelSource:
    """A matrix and the tensor that it is made from."""

    name: str
    tensor: Tensor
    type: str

    @property
    def num_bytes(self) -> int:
        """Of its panels, in whole pages."""
        matrix = self.placed(np.empty(0, np.uint8))
        return -(-panel_count(matrix.rows) * matrix.panel_bytes // _PAGE) * _PAGE

    def placed(self, memory: NDArray[np.uint8]) -> Matrix:
        """Return the matrix with its panels in this memory."""
        rows, inputs = self.tensor.shape
        return Matrix(self.type, rows, inputs, memory)


PanelGroup = Sequence[PanelSource]
Interleave = Callable[..., Any]


def bytes_of(group: PanelGroup) -> int:
    """Return the memory that the panels of a group take."""
    return sum(source.num_bytes for source in group)


class PanelCache:
    """Makes panels, on several threads, and keeps `budget` bytes of them. Engine thread only, except for its own
    threads. `num_drafting`: of the groups, the last ones, which only drafts need.

    Raises MemoryTooSmall with this `message` if not even two groups fit.
    """

    def __init__(
        self,
        groups: Sequence[PanelGroup],
        code: Code,
        threads: int,
        budget: int,
        message: str,
        num_drafting: int = 0,
    ) -> None:
        self._interleave = interleave_functions(code, chain.from_iterable(groups))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="onward-panels")
        kept = _kept_groups([bytes_of(group) for group in groups], budget, message)
        self._streamed = groups[kept:]
        self._num_usual = max(0, len(self._streamed) - num_drafting)
        self.streamed_bytes = sum(map(bytes_of, self._streamed[: self._num_usual]))
        """Of the groups that do not stay and that every step needs."""
        self.drafting_bytes = sum(map(bytes_of, self._streamed[self._num_usual :]))
        """Of the others that do not stay."""
        self.matrices: dict[str, Matrix] = {}
        self.stream_index: dict[str, int] = {}
        """Of the matrices that do not stay: the number that `acquire` takes."""
        memory = untouched(sum(map(bytes_of, groups[:kept])))
        at = 0
        for group in groups[:kept]:
            self._place(group, memory[at:])
            at += bytes_of(group)
        wait_for([job for group in groups[:kept] for job in self._make(group)])
        slots = [untouched(max(map(bytes_of, self._streamed))) for _ in range(_SLOTS)] if self._streamed else []
        for index, group in enumerate(self._streamed):
            self._place(group, slots[index % _SLOTS])
            self.stream_index |= {source.name: index for source in group}
        self._held: list[tuple[int, list[Future[None]]]] = [(-1, [])] * _SLOTS

    def _place(self, group: PanelGroup, memory: NDArray[np.uint8]) -> None:
        at = 0
        for source in group:
            self.matrices[source.name] = source.placed(memory[at : at + source.num_bytes])
            at += source.num_bytes

    def _make(self, group: PanelGroup) -> list[Future[None]]:
        """Begin to make a group's panels."""
        jobs = []
        for source in group:
            matrix = self.matrices[source.name]
            step, last = max(1, _CHUNK_BYTES // matrix.panel_bytes), panel_count(matrix.rows)
            jobs += [
                self._pool.submit(
                    make_panels, self._interleave[source.type], source.tensor, matrix, first, min(first + step, last)
                )
                for first in range(0, last, step)
            ]
        return jobs

    def acquire(self, index: int) -> None:
        """Have the panels of a group that does not stay. Blocks until they are made. Raises what kept them from
        that: the next call makes them again."""
        slot = index % _SLOTS
        if self._held[slot][0] != index:
            self._load(index)
        jobs = self._held[slot][1]
        try:
            wait_for(jobs)
        except BaseException:
            self._held[slot] = -1, jobs
            raise

    def release(self, index: int) -> None:
        """Let the next group that every step needs take this one's place, unless a draft is under way."""
        if any(held >= self._num_usual for held, _ in self._held):
            return
        following = index + _SLOTS
        self._load(following if following < self._num_usual else index % _SLOTS)

    def _load(self, index: int) -> None:
        slot = index % _SLOTS
        held, jobs = self._held[slot]
        wait(jobs)  # those of a step that failed
        if held != index:
            self._held[slot] = index, self._make(self._streamed[index])

    def close(self) -> None:
        """End the threads. May be called again."""
        self._pool.shutdown(cancel_futures=True)


def wait_for(jobs: Sequence[Future[None]]) -> None:
    """Wait until all jobs are done. Raises what one of them raised."""
    for job in jobs:
        job.result()


def _kept_groups(sizes: Sequence[int], budget: int, message: str) -> int:
    """Return how many groups, the first ones, stay in this many bytes together with slots for the others."""
    if sum(sizes) <= budget:
        return len(sizes)
    for kept in reversed(range(len(sizes))):
        if sum(sizes[:kept]) + _SLOTS * max(sizes[kept:]) <= budget:
            return kept
    raise MemoryTooSmall(message)


def interleave_functions(code: Code, sources: Iterable[PanelSource]) -> dict[str, Interleave]:
    """Return what makes panels of each type of these matrices (kernels.panels)."""
    parameters = [POINTER, INTEGER, POINTER, INTEGER, INTEGER]
    return {kind: code.function(f"interleave_{kind}", parameters) for kind in {source.type for source in sources}}


def make_panels(interleave: Interleave, tensor: Tensor, matrix: Matrix, first: int, last: int) -> None:
    """Write panels `first` to `last` of a tensor, in the matrix's type."""
    kind = WEIGHT_TYPES[matrix.type]
    begin, end = first * PANEL_ROWS, min(last * PANEL_ROWS, matrix.rows)
    is_plain = tensor.type.name == matrix.type and tensor.data.ndim == 1 and matrix.inputs % GROUP == 0
    row_bytes = matrix.blocks * kind.block_bytes
    if is_plain:
        order = np.arange(begin, end) if tensor.order is None else tensor.order[begin:end]
        source, keep = address(tensor.data) + order * row_bytes, tensor.data
    else:
        keep = stored_rows(tensor, matrix.type, begin, end)
        source = address(keep) + np.arange(end - begin) * row_bytes
    zeros = np.zeros(row_bytes, np.uint8)
    pointers = np.full((last - first) * PANEL_ROWS, address(zeros), np.int64)
    pointers[: end - begin] = source
    interleave(address(pointers), matrix.blocks, address(matrix.panels), first, last)
    if is_plain and tensor.order is None:
        drop_pages(keep[begin * row_bytes : end * row_bytes])
    elif last * PANEL_ROWS >= matrix.rows:
        drop_pages(tensor.data)
