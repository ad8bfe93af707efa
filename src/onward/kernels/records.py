"""The records of a tape, and the context of a step: structures of 64-bit words that Python writes and kernels read."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.kernels.values import F32, I64, PTR, Value

RECORD_WORDS = 16
RECORD_BYTES = 8 * RECORD_WORDS
_OPERATION, _BARRIER = 0, RECORD_WORDS - 1

_TYPES = {"pointer": PTR, "integer": I64, "float": F32}


class Layout:
    """Names and kinds ("pointer", "integer", "float") of the words of a structure, from word `first` on."""

    def __init__(self, first: int = 1, **kinds: str) -> None:
        self._words = {name: (first + index, kind) for index, (name, kind) in enumerate(kinds.items())}
        assert self._words.keys()

    def load(self, f: Any, structure: Value, name: str) -> Value:
        """Emit the load of a field."""
        word, kind = self._words[name]
        return f.load(structure, _TYPES[kind], 8 * word, 4 if kind == "float" else 8)  # type: ignore[no-any-return]

    def offset(self, name: str) -> int:
        """Return where a field begins, in bytes."""
        return 8 * self._words[name][0]

    def store(self, f: Any, structure: Value, name: str, value: Value) -> None:
        """Emit the store of a field."""
        f.store(value, structure, self.offset(name), 8)

    def set(self, words: NDArray[np.int64], **values: float) -> None:
        """Write fields."""
        for name, value in values.items():
            word, kind = self._words[name]
            words[word] = float_word(value) if kind == "float" else int(value)

    def record(self, operation: int, *, has_barrier: bool, **values: float) -> NDArray[np.int64]:
        """Return a record with every field. `has_barrier`: whether nobody goes on before it is complete."""
        assert values.keys() == self._words.keys(), (values.keys(), self._words.keys())
        words = np.zeros(RECORD_WORDS, np.int64)
        words[_OPERATION], words[_BARRIER] = operation, has_barrier
        self.set(words, **values)
        return words


def float_word(value: float) -> int:
    """Return a word whose low half is a float32."""
    return int.from_bytes(struct.pack("<f", value), "little")


HEADER = Layout(_OPERATION, operation="integer")
BARRIER = Layout(_BARRIER, has_barrier="integer")

PRODUCT = Layout(
    panels="pointer", panel_bytes="integer", blocks="integer", num_panels="integer", source="pointer",
    source_stride="integer", target="pointer", target_stride="integer", bias="pointer", is_added="integer",
    of_logit_rows="integer", claim="integer", scale="float",
)  # fmt: skip
"""target[m] = (weights source[m] + bias) * scale, or added to it. `of_logit_rows`: rows are those whose logits are
wanted. `claim`: panels that a thread takes at a time."""
EMBED = Layout(
    table="pointer", row_bytes="integer", inputs="integer", target="pointer", target_stride="integer", scale="float",
    of_positions="integer", is_added="integer",
)  # fmt: skip
"""target[m] = row of the table for token m, or for its position, times a scale, or added to what is there."""
NORM = Layout(
    source="pointer", source_stride="integer", weight="pointer", bias="pointer", inputs="integer", target="pointer",
    target_stride="integer", form="integer", of_logit_rows="integer", is_centred="integer", is_added="integer",
    epsilon="float", scale="float",
)  # fmt: skip
"""target = source / root mean square * weight + bias, as a form of activations (0: int8, 1: int16, 2: float32). With
`is_centred` the mean is subtracted first. With `is_added`, the norm times a scale is added to target, float32."""
NORM_HEADS = Layout(values="pointer", stride="integer", num_heads="integer", weight="pointer", epsilon="float")
"""Each head's values divided by their root mean square, times a weight, in place."""
QUANTISE = Layout(
    source="pointer", source_stride="integer", inputs="integer", target="pointer", target_stride="integer",
    form="integer",
)  # fmt: skip
UNIT = Layout(
    gate="pointer", up="pointer", source_stride="integer", inputs="integer", target="pointer",
    target_stride="integer", form="integer", pieces="integer", activation="integer",
)  # fmt: skip
"""target = activation(gate) * up, or activation(up) where there is no gate. `pieces`: into how many parts a row is cut;
`activation`: 0 silu, 1 gelu, 2 gelu by tanh."""
ROTATE = Layout(
    queries="pointer", keys="pointer", values="pointer", query_stride="integer", key_stride="integer",
    cosines="pointer", sines="pointer", cache="pointer", target="pointer", scale="float",
)  # fmt: skip
"""Rotates queries, to `target`, and keys by their positions; multiplies queries by a scale; writes keys and values to
the layer's cache."""
ATTEND = Layout(
    queries="pointer", query_stride="integer", cache="pointer", target="pointer", target_stride="integer",
    window="integer", cap="float", sinks="pointer",
)  # fmt: skip

CONTEXT = Layout(
    0, rows="integer", threads="integer", counters="pointer", num_records="integer", completion="pointer",
    threads_own="pointer", tokens="pointer",
    positions="pointer", tables="pointer", logit_rows="pointer", num_logit_rows="integer", scratch="pointer",
    scratch_stride="integer", tiles="pointer", num_tiles="integer", tile_heads="integer", merged="pointer",
    num_merged="integer", slots="pointer", partials="pointer", wait="pointer", wait_number="integer", wake="pointer",
    wake_number="integer",
)  # fmt: skip
"""What the records of a step share. Arrays by row: `tokens`, `positions` int64, `tables` pointers to int32 block
tables. `completion`: a number that is raised when an operation is complete. `threads_own`: OWN of each thread,
OWN_BYTES apart. `logit_rows`: int64, the rows whose logits are wanted. `tiles`: TILE of attention, whose pieces have
`tile_heads` key-value heads; `merged`: int64, the rows that several tiles share, whose segments lie in `partials` from
their `slots` on. `scratch`: of the first thread, the next one's `scratch_stride` bytes behind. `wait`, `wake`: see
waiting."""
CONTEXT_WORDS = 32

TILE = Layout(0, first_row="integer", rows="integer", first_segment="integer", last_segment="integer")
"""Rows of one sequence at successive positions, and which segments of its keys a thread computes of them."""
TILE_BYTES = 32
ALL_SEGMENTS = 1 << 30
"""The last segment of a tile that has all."""

OWN = Layout(0, counter="pointer", step="integer", total="integer", is_last="integer")
"""Of one thread: the counter of the record that it computes, and the step that it believes in. What `claim` found: how
many pieces there are, and whether this thread has completed the last one."""
OWN_BYTES = 64
STEP_SHIFT, PIECE_MASK, COMPLETED_OFFSET = 32, 2**32 - 1, 8
"""A record's counter: the step in the high half, the next piece in the low one; behind it how many are complete."""
COUNTER_BYTES = 64
