"""A model without weights: deterministic, instant and strict. For tests, documentation and demonstrations.

It generates lower-case pseudo-words. Each KV cell contains a hash of all tokens up to it, computed from the previous
cell through the block table, and logits are a function of that hash: a wrong block, a missing copy or a stale cell
changes the text. Like real runtimes, it rounds differently in its decode kernel (one token) and its prefill kernel
(several tokens): an engine that mixes them up changes the text too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onward.engine.model import Hook, Row, StepShape, nothing
from onward.model_files.toy import END, SPECIALS, ToyTokenizer

_MASK = (1 << 64) - 1
_DECODE_KERNEL, _PREFILL_KERNEL = 1, 2

STEP_SHAPE = StepShape(
    block_tokens=32, min_prefill_tokens=8, tile_tokens=64, max_prefill_tokens=512, imperceptible_seconds=0.010
)
"""That of the OpenVINO runtime, so that tests on this model meet its step sizes."""


class ToyModel:
    """Implements engine.model.ModelRunner. Counts steps and tokens, for tests of what is not computed."""

    def __init__(self, *, blocks: int = 512, context_length: int = 2048) -> None:
        self.vocab_size = ToyTokenizer().size
        self.context_length = context_length
        self.blocks = blocks
        self.shape = STEP_SHAPE
        self.evaluated_tokens = 0
        self.steps = 0
        self.fingerprint = "fp_toy"
        self._cells = np.zeros((blocks, STEP_SHAPE.block_tokens), np.uint64)
        self._base = _base_logits(self.vocab_size)
        self._ids = np.arange(1, self.vocab_size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        """Return logits, float32 [outputs, vocab_size], in memory of their own; see engine.model.ModelRunner."""
        before_compute()
        self.steps += 1
        hashes: list[int] = []
        for row in rows:
            of_row = self._row_hashes(row)
            hashes += of_row[len(of_row) - row.outputs :]
        logits = np.empty((len(hashes), self.vocab_size), np.float32)
        for index, value in enumerate(hashes):
            logits[index] = self._logits(value)
        return logits

    def block_memory(self, block: int) -> list[NDArray[np.uint8]]:
        return [self._cells[block].view(np.uint8)]

    def close(self) -> None:
        self._cells = self._cells[:0]

    def _row_hashes(self, row: Row) -> list[int]:
        """Write the row's cells and return the hash at each of its positions."""
        kernel = _DECODE_KERNEL if len(row.tokens) == 1 else _PREFILL_KERNEL
        hashes: list[int] = []
        value = self._cell(row, row.start - 1) if row.start else 0
        for position, token in enumerate(row.tokens, row.start):
            value = _mix(value + token * 4 + kernel)
            block, offset = divmod(position, STEP_SHAPE.block_tokens)
            self._cells[row.blocks[block], offset] = value
            hashes.append(value)
        self.evaluated_tokens += len(row.tokens)
        return hashes

    def _cell(self, row: Row, position: int) -> int:
        block, offset = divmod(position, STEP_SHAPE.block_tokens)
        return int(self._cells[row.blocks[block], offset])

    def _logits(self, value: int) -> NDArray[np.float32]:
        """Return float32 [vocab_size]."""
        noise = self._ids ^ np.uint64(value)
        noise *= np.uint64(0xBF58476D1CE4E5B9)
        noise ^= noise >> np.uint64(29)
        noise *= np.uint64(0x94D049BB133111EB)
        noise >>= np.uint64(40)
        return self._base + noise.astype(np.float32) * np.float32(6 / (1 << 24))


def _base_logits(size: int) -> NDArray[np.float32]:
    """Return float32 [size]: letters and spaces likely, ends rare, other bytes next to impossible (no broken UTF-8)."""
    base = np.full(size, -20.0, np.float32)
    base[ord("a") : ord("z") + 1] = 0.0
    base[ord(" ")] = 1.0
    base[[ord("."), ord("\n")]] = -2.0
    base[END] = -3.0
    base[256 + len(SPECIALS) :] = -1.0
    return base


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
