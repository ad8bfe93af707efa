"""Panels of experts: made when a step first uses an expert, in a bounded memory.

Most models use few of their experts for most texts, and a start need not wait for any. Where not all experts fit, those
that were used in the fewest steps are evicted; of equals, those that the step is done with. They are made from the file
again, whose pages the system keeps as far as it can. A step has all that one layer uses in memory at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onward.errors import MemoryTooSmall
from onward.kernels.code import Code
from onward.kernels.expert_tape import LayerExperts, Routing
from onward.kernels.memory import address, untouched
from onward.kernels.operands import Matrix
from onward.kernels.panels import panel_count
from onward.runtimes.native.panel_cache import (
    PanelGroup,
    PanelSource,
    bytes_of,
    interleave_functions,
    make_panels,
    wait_for,
)

_NEVER = np.iinfo(np.int64).max
_DECAY_EVICTIONS = 4
"""After so many evictions per expert in memory, what was counted before counts half."""


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """The matrices of a layer's experts, whose tensors are [experts, rows, inputs]."""

    layer: int
    sources: Sequence[PanelSource]

    @property
    def of_one(self) -> PanelGroup:
        """The matrices of the first expert."""
        return self.of_expert(0)

    def of_expert(self, expert: int) -> PanelGroup:
        return [PanelSource(each.name, each.tensor.part(expert), each.type) for each in self.sources]

    @property
    def num_experts(self) -> int:
        return self.sources[0].tensor.shape[0]


class _Slots:
    """Memory for experts of one size, of the layers that have this size."""

    def __init__(self, size: int, layers: Sequence[int], count: int) -> None:
        self.size, self.layers, self.count = size, np.array(layers), count
        self.memory = untouched(size * count)
        self.free = [address(self.memory) + size * index for index in reversed(range(count))]
        self.num_evicted = 0


def total_bytes(layers: Iterable[ExpertLayer]) -> int:
    """Return the memory that the panels of all experts take."""
    return sum(bytes_of(layer.of_one) * layer.num_experts for layer in layers)


def least_bytes(layers: Iterable[ExpertLayer]) -> int:
    """Return the memory without which a step cannot be computed: one layer of each size."""
    return sum({(size := bytes_of(layer.of_one)): size * layer.num_experts for layer in layers}.values())


class ExpertCache:
    """Makes panels of experts, on several threads, and keeps `budget` bytes of them. On the engine's thread, but for
    its own threads and for `_fetch`, which any thread of the kernels calls, one at a time, while the others wait.

    Raises MemoryTooSmall with this `message` if the experts of one layer do not fit.
    """

    def __init__(
        self, layers: Sequence[ExpertLayer], routing: Routing, code: Code, threads: int, budget: int, message: str
    ) -> None:
        self.routing = routing
        self.routings = {layer.layer: routing.of_layer() for layer in layers}
        """That of each layer."""
        self._interleave = interleave_functions(code, (source for layer in layers for source in layer.sources))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="onward-experts")
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._fetch)
        fetch = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        self._layers = list(layers)
        self._places, self._uses, self._steps = (np.zeros((len(layers), routing.count), np.int64) for _ in range(3))
        self.experts: dict[int, LayerExperts] = {}
        self.matrices: dict[str, tuple[Matrix, int]] = {}
        """Shape and type of one expert's matrix, and where it begins in the expert's memory."""
        sizes: dict[int, list[int]] = {}
        for index, layer in enumerate(layers):
            at = 0
            for source in layer.of_one:
                self.matrices[source.name] = source.placed(np.empty(0, np.uint8)), at
                at += source.num_bytes
            sizes.setdefault(at, []).append(index)
            self.experts[layer.layer] = LayerExperts(
                index, at, self._places[index], self._uses[index], self._steps[index], fetch
            )
        self._failure: BaseException | None = None
        self._slots = self._divided(sizes, budget, message)
        self.missing_bytes = total_bytes(layers) - sum(slots.size * slots.count for slots in self._slots)
        """Bytes of the experts for which there is no room."""

    def _divided(self, sizes: dict[int, list[int]], budget: int, message: str) -> list[_Slots]:
        """Return memory for each size of experts: for all, or for as large a share of each as fits."""
        count = self.routing.count
        total = sum(size * count * len(layers) for size, layers in sizes.items())
        found = []
        for size, layers in sizes.items():
            wanted = count * len(layers)
            slots = min(wanted, max(count, wanted * budget // total))
            found.append((size, layers, slots))
        if sum(size * slots for size, _, slots in found) > max(budget, 0):
            spare = budget - sum(size * count for size in sizes)
            if spare < 0:
                raise MemoryTooSmall(message)
            found = [(size, layers, count) for size, layers, _ in found]
        return [_Slots(*each) for each in found]

    def _fetch(self, index: int) -> None:
        """Make the panels of all experts of a layer that the step uses and that are not in memory.

        Called by compiled code, which no exception can pass: `check` raises it, and until then no product of an expert
        that is missing is computed.
        """
        try:
            self._make(index, self.routings[self._layers[index].layer].used_experts)
        except BaseException as failure:
            self._failure = failure

    def _make(self, index: int, used: NDArray[np.int64]) -> None:
        layer, places = self._layers[index], self._places[index]
        missing = used[places[used] == 0].tolist()
        slots = next(each for each in self._slots if index in each.layers)
        self._make_room(slots, len(missing), index, used)
        jobs: list[Future[None]] = []
        taken = {expert: slots.free.pop() for expert in missing}
        begin = address(slots.memory)
        try:
            for expert, place in taken.items():
                memory = slots.memory[place - begin : place - begin + slots.size]
                jobs.append(self._pool.submit(self._make_expert, layer.of_expert(expert), memory))
            wait_for(jobs)
        except BaseException:
            for job in jobs:
                job.cancel()
            wait(jobs)  # one that runs writes to its slot
            slots.free += taken.values()
            raise
        for expert, place in taken.items():
            places[expert] = place

    def _make_expert(self, group: PanelGroup, memory: NDArray[np.uint8]) -> None:
        at = 0
        for source in group:
            matrix = source.placed(memory[at : at + source.num_bytes])
            make_panels(self._interleave[source.type], source.tensor, matrix, 0, panel_count(matrix.rows))
            at += source.num_bytes

    def _make_room(self, slots: _Slots, count: int, index: int, used: NDArray[np.int64]) -> None:
        """Have so many free slots: evict others than the step's experts of this layer."""
        wanted = count - len(slots.free)
        if wanted <= 0:
            return
        places, uses = self._places[slots.layers], self._uses[slots.layers]
        now = self._steps[index][used[0]]
        scores = np.where(places != 0, 2 * uses + (self._steps[slots.layers] != now), _NEVER)
        scores[np.flatnonzero(slots.layers == index)[0], used] = _NEVER
        for each in np.argpartition(scores.reshape(-1), wanted - 1)[:wanted].tolist():
            layer, expert = slots.layers[each // self.routing.count], each % self.routing.count
            slots.free.append(int(self._places[layer, expert]))
            self._places[layer, expert] = 0
        slots.num_evicted += wanted
        if slots.num_evicted > _DECAY_EVICTIONS * slots.count:
            slots.num_evicted = 0
            self._uses[slots.layers] >>= 1

    def begin_step(self) -> None:
        """Forget the failure of an earlier step, which ended before `check`."""
        self._failure = None

    def check(self) -> None:
        """Raise what kept panels of the last step from being made."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End the threads. May be called again."""
        self._pool.shutdown(cancel_futures=True)
