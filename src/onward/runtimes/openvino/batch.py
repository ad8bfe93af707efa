"""Writes the rows of a step into the graph's inputs: fixed buffers, resized in place, bound once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onward.engine.model import Row
from onward.runtimes.openvino.graph import ROWS_INPUT
from onward.runtimes.openvino.library import ov
from onward.runtimes.openvino.window import STEP_SHAPE

_DTYPES: dict[str, type[np.signedinteger]] = {
    "input_ids": np.int64,
    "position_ids": np.int64,
    "past_lens": np.int32,
    "subsequence_begins": np.int32,
    "block_indices": np.int32,
    "block_indices_begins": np.int32,
    ROWS_INPUT: np.int32,
}
_MAX_CONTEXT = "max_context_len"
INPUTS = frozenset({*_DTYPES, _MAX_CONTEXT})
"""The inputs, in addition to the KV cache, that a paged graph may have."""

_MIN_TOKENS = 2
"""Tokens of a padding row, and rows in the output layer: for one, attention and MatMul use other kernels."""
_MAX_SINGLE_PADDING = 3
"""Padding rows of one token per step. Where more would be needed, one row of several tokens costs less: next to it,
there may be fewer single tokens than threads."""


class Buffer:
    """A one-dimensional input of varying length, over memory that grows by doubling and stays bound to the request."""

    def __init__(self, request: ov.InferRequest, name: str, dtype: type[np.signedinteger]) -> None:
        self._request, self._name, self._dtype = request, name, dtype
        self.values: NDArray[np.signedinteger] = np.zeros(0, dtype)
        self._tensor: ov.Tensor | None = None
        self._length = 0

    def resize(self, length: int) -> NDArray[np.signedinteger]:
        """Return the buffer's memory; the next step reads its first `length` values."""
        if self._tensor is None or length > len(self.values):
            self.values = np.zeros(max(512, 2 * length), self._dtype)
            self._tensor = ov.Tensor(self.values, shared_memory=True)
            self._request.set_tensor(self._name, self._tensor)
            self._length = -1
        if length != self._length:
            self._tensor.shape = [length]
            self._length = length
        return self.values


class Batch:
    """The inputs of one step after the other. Engine thread only; not to be touched while a step runs."""

    def __init__(self, request: ov.InferRequest, names: frozenset[str], scratch: int, threads: int) -> None:
        """`names`: the inputs that the graph has; `scratch`: the block that padding writes to; `threads`: how many
        threads compute a step."""
        self._buffers = {name: Buffer(request, name, dtype) for name, dtype in _DTYPES.items() if name in names}
        self._max_context = np.zeros((), np.int32)
        if _MAX_CONTEXT in names:
            request.set_tensor(_MAX_CONTEXT, ov.Tensor(self._max_context, shared_memory=True))
        self._scratch = (scratch,)
        self._threads = threads
        self.min_tokens = _MIN_TOKENS
        """Tokens, and rows in the output layer, to which every step is padded; at most a block."""

    def fill(self, rows: Sequence[Row]) -> int:
        """Write all inputs and return the number of rows of logits; the output may have padding after them.

        Where there are fewer single tokens than threads, OpenVINO splits attention differently, which shows in the last
        bits; padding rows in the scratch block avoid that. A MatMul over fewer than `min_tokens` rows may use another
        kernel too, so no fewer go through the layers, nor through the output layer (unless none do). Sizes are rounded
        up to `padded_count`, so that there are few. Raises RuntimeError for a block table that is too short.
        """
        rows = self._padded(rows)
        lengths = [len(row.tokens) for row in rows]
        self._fill_tokens(rows, lengths)
        self._fill_tables(rows, lengths)
        return self._fill_outputs(rows, lengths)

    def _padded(self, rows: Sequence[Row]) -> Sequence[Row]:
        tokens = sum(len(row.tokens) for row in rows)
        singles = len(rows) == tokens
        least = max(self.min_tokens, _MIN_TOKENS, self._threads if singles else 0)
        missing = padded_count(max(tokens, least), singles=singles) - tokens
        if singles and missing <= _MAX_SINGLE_PADDING:
            return [*rows, *[self._padding(1)] * missing]
        if singles:
            missing = max(self.min_tokens - tokens, _MIN_TOKENS)
        return [*rows, self._padding(missing)] if missing else rows

    def _padding(self, tokens: int) -> Row:
        """Return a row in the scratch block, which it fits into because `min_tokens` does."""
        return Row(-1, (0,) * tokens, 0, self._scratch, 0)

    def _fill_tokens(self, rows: Sequence[Row], lengths: list[int]) -> None:
        total = sum(lengths)
        tokens = self._buffers["input_ids"].resize(total)
        starts = self._buffers["past_lens"].resize(len(rows))
        starts[: len(rows)] = [row.start for row in rows]
        begins = self._buffers["subsequence_begins"].resize(len(rows) + 1)
        positions = self._buffers["position_ids"].resize(total) if "position_ids" in self._buffers else None
        begin = 0
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            end = begin + length
            if length == 1:
                tokens[begin] = row.tokens[0]
                if positions is not None:
                    positions[begin] = row.start
            else:
                tokens[begin:end] = row.tokens
                if positions is not None:
                    positions[begin:end] = np.arange(row.start, row.start + length)
            begin = begins[index + 1] = end

    def _fill_tables(self, rows: Sequence[Row], lengths: list[int]) -> None:
        table: list[int] = []
        begins = [0]
        max_context = 0
        for row, length in zip(rows, lengths, strict=True):
            context = row.start + length
            max_context = max(max_context, context)
            needed = STEP_SHAPE.blocks_for(context)
            table += row.blocks[:needed]
            begins.append(begins[-1] + needed)
            if len(table) != begins[-1]:
                raise RuntimeError(f"Sequence {row.sequence} needs {needed} blocks for {context} tokens.")
        self._buffers["block_indices"].resize(len(table))[: len(table)] = table
        self._buffers["block_indices_begins"].resize(len(begins))[: len(begins)] = begins
        self._max_context[...] = max_context

    def _fill_outputs(self, rows: Sequence[Row], lengths: list[int]) -> int:
        positions: list[int] = []
        end = 0
        for row, length in zip(rows, lengths, strict=True):
            end += length
            if row.outputs == 1:
                positions.append(end - 1)
            elif row.outputs:
                positions.extend(range(end - row.outputs, end))
        count = len(positions)
        if count:
            positions += positions[-1:] * (padded_count(max(count, self.min_tokens)) - count)
        self._buffers[ROWS_INPUT].resize(len(positions))[: len(positions)] = positions
        return count


def padded_count(count: int, *, singles: bool = True) -> int:
    """Return to how many tokens, or rows of the output layer, a step of `count` is padded.

    OpenVINO compiles kernels for each number that it has not seen lately, which takes longer than a few more tokens.
    """
    step = 2 if count <= 8 else 4 if singles else 8
    return -(-count // step) * step
