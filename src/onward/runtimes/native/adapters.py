"""LoRA adapters of a model: each has a tape of its own, which shares everything with the base's but
the adapter's own matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onward.checkpoints.adapter import Change, merged, read_changes
from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.errors import MemoryTooSmall
from onward.kernels.code import Code
from onward.kernels.interpreter import Kernels
from onward.kernels.memory import Rows
from onward.kernels.parts import tape_of
from onward.machine import available_memory
from onward.runtimes.fingerprint import adapter_id
from onward.runtimes.kv_plan import mib
from onward.runtimes.native.buffers import Buffers, Cache
from onward.runtimes.native.decoder import Decoder
from onward.runtimes.native.mixture import ExpertRecords
from onward.runtimes.native.model import MAX_ROWS, NativeModel, Tape
from onward.runtimes.native.model_tape import DecoderTape, ModelTape
from onward.runtimes.native.panel_cache import PanelCache, PanelSource, bytes_of
from onward.runtimes.native.positions import Positions
from onward.runtimes.native.weights import TABLES, MatrixChange, Weights, table_of

TAPE_GROWTH = 3
"""How many times as many records the tape of an adapter may have: a product has two more, what it reads one."""
ADAPTER_TYPE = "F32"
"""In which type an adapter is held and computed."""
MERGED_BYTES = 8
"""Per number of embeddings while they are changed: the sum, and what is added to it, in float32."""


@dataclass(frozen=True)
class TapeWriter:
    """Writes tapes over the same memory: the base's, and those of adapters."""

    found: Architecture
    kernels: Kernels
    threads: int
    buffers: Buffers
    positions: Positions
    cache: Cache
    experts: ExpertRecords | None = None
    hidden: Rows | None = None
    """Where a step leaves the hidden states of its rows, if something reads them."""

    def write(self, weights: Weights) -> tuple[Tape, DecoderTape]:
        """Return a tape, and its builder, which owns the memory that it points to."""
        tape = DecoderTape(self.kernels, MAX_ROWS, self.threads)
        experts = self.experts.on(tape) if self.experts is not None else None
        shared = ModelTape(self.found, weights, tape, self.buffers)
        decoder = Decoder(shared, self.positions, self.cache, experts)
        decoder.write_first()
        first = tape.take()
        decoder.write_kept()
        kept = tape.take()
        decoder.write_rest(target=self.hidden)
        rest = tape.take()
        decoder.write_output()
        output = tape.take()
        whole = tape_of(first, rest, output)
        if self.hidden is not None:
            return Tape(whole, tape_of(first, rest), tape_of(output)), tape
        return Tape(whole, tape_of(first, kept), tape_of(rest, output)), tape


class NativeAdapters:
    """Implements engine.model.AdapterLoader."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: Weights,
        code: Code,
        writer: TapeWriter,
        model: NativeModel,
        cache_dir: Path | None,
    ) -> None:
        self._checkpoint, self._weights, self._code = checkpoint, weights, code
        self._writer, self._model, self._cache_dir = writer, model, cache_dir

    def read(self, path: Path) -> tuple[str, Weights]:
        """See AdapterLoader. Any thread."""
        paths, changes = read_changes(self._checkpoint, path)
        adapter = adapter_id(paths, self._cache_dir)
        tables = {}
        for name in TABLES:
            if (change := changes.get(f"{name}.weight")) is None:
                continue
            # rows are looked up: there is no product to which their change could be added
            base = self._checkpoint.tensor(f"{name}.weight")
            _require_memory(path, MERGED_BYTES * math.prod(base.shape))
            tables[name] = table_of(merged(base, change))
            if self._weights.output_name() != name:
                del changes[f"{name}.weight"]
        return adapter, self._weights.changed(self._held(path, changes), tables)

    def add(self, adapter: str, read: object) -> None:
        """See AdapterLoader."""
        assert isinstance(read, Weights)
        self._model.use_tape(adapter, *self._writer.write(read))

    def remove(self, adapter: str) -> None:
        """See AdapterLoader."""
        self._model.drop_tape(adapter)

    def _held(self, path: Path, changes: Mapping[str, Change]) -> dict[str, MatrixChange]:
        """Return the matrices of an adapter, in memory. Raises MemoryTooSmall."""
        sides = {(name, side): getattr(each, side) for name, each in changes.items() for side in ("low", "high")}
        group = [PanelSource(f"{name} {side}", tensor, ADAPTER_TYPE) for (name, side), tensor in sides.items()]
        size = bytes_of(group)
        message = _require_memory(path, size)
        panels = PanelCache([group], self._code, self._writer.threads, size, message)
        panels.close()
        return {
            name.removesuffix(".weight"): MatrixChange(
                panels.matrices[f"{name} low"], panels.matrices[f"{name} high"], each.scale
            )
            for name, each in changes.items()
        }


def _require_memory(path: Path, size: int) -> str:
    """Raise MemoryTooSmall for an adapter that takes more bytes than are free. Returns the sentence that says so."""
    free = available_memory().free_bytes
    message = f"The adapter {path} takes {mib(size)} of memory, but {mib(free)} are free."
    if size > free:
        raise MemoryTooSmall(message)
    return message
