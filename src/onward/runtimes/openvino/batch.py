"""Lays the rows of a step out in the graph's inputs: fixed buffers, resized in place, bound once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onward.engine.model import Row, blocks_for
from onward.runtimes.openvino.graph import ROWS_INPUT
from onward.runtimes.openvino.library import ov

_KINDS: dict[str, type[np.signedinteger]] = {
    "input_ids": np.int64,
    "position_ids": np.int64,
    "past_lens": np.int32,
    "subsequence_begins": np.int32,
    "block_indices": np.int32,
    "block_indices_begins": np.int32,
    ROWS_INPUT: np.int32,
}
_LONGEST = "max_context_len"
INPUTS = frozenset({*_KINDS, _LONGEST})
"""The inputs, beside the caches, that a paged graph may have."""

_LEAST = 2
"""Tokens of a padding row, and rows of the output layer: one is another kernel, for attention and for a MatMul."""
_MOST_SINGLES = 3
"""Padding rows of one token that a step gets at most; where more are missing, one row of several tokens costs less:
beside it, single tokens may be fewer than threads."""


class Buffer:
    """A vector input of varying length over memory that grows by doubling. A bound tensor is the same object."""

    def __init__(self, request: ov.InferRequest, name: str, kind: type[np.signedinteger]) -> None:
        self._request, self._name, self._kind = request, name, kind
        self.values: NDArray[np.signedinteger] = np.zeros(0, kind)
        self._tensor: ov.Tensor | None = None
        self._length = 0

    def resize(self, length: int) -> NDArray[np.signedinteger]:
        """The buffer's memory, of which the first `length` values will be read by the next step."""
        if self._tensor is None or length > len(self.values):
            self.values = np.zeros(max(512, 2 * length), self._kind)
            self._tensor = ov.Tensor(self.values, shared_memory=True)
            self._request.set_tensor(self._name, self._tensor)
            self._length = -1
        if length != self._length:
            self._tensor.shape = [length]
            self._length = length
        return self.values


class Batch:
    """The step's inputs, filled anew by `fill`. Engine thread only; not to be touched while a step runs."""

    def __init__(self, request: ov.InferRequest, names: frozenset[str], scratch: int, threads: int) -> None:
        """`names`: the inputs that this graph has; `scratch`: the block that padding writes to; `threads`:
        how many threads the step runs on."""
        self._buffers = {name: Buffer(request, name, kind) for name, kind in _KINDS.items() if name in names}
        self._longest = np.zeros((), np.int32)
        if _LONGEST in names:
            request.set_tensor(_LONGEST, ov.Tensor(self._longest, shared_memory=True))
        self._scratch = (scratch,)
        self._threads = threads
        self.least = _LEAST
        """Tokens, and rows in the output layer, that every step gets by padding; at most a block."""

    def fill(self, rows: Sequence[Row]) -> int:
        """Write all inputs; give the number of logit rows asked for (the output may hold padding after them).

        OpenVINO splits attention otherwise when single tokens are fewer than its threads, and that shows in
        the last bits; padding in the scratch block keeps such a step on the common path. A MatMul over fewer than
        `least` rows may be another kernel too, so never fewer go through the layers, nor through the output layer
        (unless none do). A lone row that need not be repeatable goes as it is. Where a number of tokens is not a
        usual one, padding makes it so (`_usual`). Raises RuntimeError for a block table that is too short.
        """
        exact = len(rows) > 1 or rows[0].repeatable
        rows = self._padded(rows, exact)
        lengths = [len(row.tokens) for row in rows]
        self._fill_tokens(rows, lengths)
        self._fill_tables(rows, lengths)
        return self._fill_outputs(rows, lengths, exact)

    def _padded(self, rows: Sequence[Row], exact: bool) -> Sequence[Row]:
        tokens = sum(len(row.tokens) for row in rows)
        singles = len(rows) == tokens
        least = max(self.least, _LEAST, self._threads if singles else 0) if exact else 1
        missing = _usual(max(tokens, least), singles=singles) - tokens
        if singles and missing <= _MOST_SINGLES:
            return [*rows, *[self._padding(1)] * missing]
        if singles:
            missing = max(self.least - tokens, _LEAST)
        return [*rows, self._padding(missing)] if missing else rows

    def _padding(self, tokens: int) -> Row:
        """A row in the scratch block: never longer than that, as `least` is not."""
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
        longest = 0
        for row, length in zip(rows, lengths, strict=True):
            context = row.start + length
            longest = max(longest, context)
            needed = blocks_for(context)
            table += row.blocks[:needed]
            begins.append(begins[-1] + needed)
            if len(table) != begins[-1]:
                raise RuntimeError(f"Sequence {row.sequence} needs {needed} blocks for {context} tokens.")
        self._buffers["block_indices"].resize(len(table))[: len(table)] = table
        self._buffers["block_indices_begins"].resize(len(begins))[: len(begins)] = begins
        self._longest[...] = longest

    def _fill_outputs(self, rows: Sequence[Row], lengths: list[int], exact: bool) -> int:
        wanted: list[int] = []
        end = 0
        for row, length in zip(rows, lengths, strict=True):
            end += length
            if row.outputs == 1:
                wanted.append(end - 1)
            elif row.outputs:
                wanted.extend(range(end - row.outputs, end))
        count = len(wanted)
        if count:
            wanted += wanted[-1:] * (_usual(max(count, self.least) if exact else count) - count)
        self._buffers[ROWS_INPUT].resize(len(wanted))[: len(wanted)] = wanted
        return count


def _usual(count: int, *, singles: bool = True) -> int:
    """The number of tokens, or of rows of the output layer, that a step has for `count`: OpenVINO compiles kernels
    for each number that it has not seen lately, which takes longer than a few tokens more."""
    if count == 1:
        return 1
    step = 2 if count <= 8 else 4 if singles else 8
    return -(-count // step) * step
