"""The records of a tape, and the context of a step: structures of 64-bit words that Python writes and kernels read."""

from __future__ import annotations

import struct
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onward.kernels.memory import address
from onward.kernels.structures import Structure
from onward.kernels.values import F32, I64, PTR, Type

RECORD_WORDS = 16
RECORD_BYTES = 8 * RECORD_WORDS
_OPERATION, _BARRIER = 0, RECORD_WORDS - 1


class Memory(Protocol):
    """What a field may point to, as Rows and Vector."""

    @property
    def address(self) -> int: ...


Field = float | NDArray[np.generic] | Memory | None
"""A number, or memory whose address is written: null for None. The caller keeps it alive."""


class Layout(Structure):
    """A structure of words that Python writes: the names and types of its fields, from word `first` on."""

    def __init__(self, first: int = 1, **fields: Type) -> None:
        places = {name: (t, 8 * (first + index)) for index, (name, t) in enumerate(fields.items())}
        super().__init__(places, 8 * (first + len(fields)), alignment=8)

    def set(self, words: NDArray[np.int64], **values: Field) -> None:
        """Write fields."""
        for name, value in values.items():
            t, offset = self.fields[name]
            words[offset // 8] = _word(value, t)

    def record(self, operation: int, *, has_barrier: bool = True, **values: Field) -> NDArray[np.int64]:
        """Return a record with every field. `has_barrier`: whether no thread continues before it is complete."""
        assert values.keys() == self.fields.keys(), (values.keys(), self.fields.keys())
        words = np.zeros(RECORD_WORDS, np.int64)
        words[_OPERATION], words[_BARRIER] = operation, has_barrier
        self.set(words, **values)
        return words


def _word(value: Field, t: Type) -> int:
    """Return a field as a word; the low half of one is a float32."""
    if value is None:
        return 0
    if isinstance(value, np.ndarray):
        return address(value)
    if isinstance(value, int | float | np.generic):
        return int.from_bytes(struct.pack("<f", value), "little") if t == F32 else int(value)
    return value.address


HEADER = Layout(_OPERATION, operation=I64)
BARRIER = Layout(_BARRIER, has_barrier=I64)

PRODUCT = Layout(
    panels=PTR, panel_bytes=I64, blocks=I64, num_panels=I64, source=PTR,
    source_stride=I64, target=PTR, target_stride=I64, bias=PTR, is_added=I64, claim=I64, scale=F32,
)  # fmt: skip
"""target[m] = (weights source[m] + bias) * scale, or added to it. `claim`: panels that a thread takes at a time, at
most."""
EMBED = Layout(
    table=PTR, row_bytes=I64, inputs=I64, target=PTR, target_stride=I64, scale=F32,
    of_positions=I64, is_added=I64, rows=I64,
)  # fmt: skip
"""target[m] = row of the table for token m, or for its position, times a scale, or added to what is there. `rows`: of
the table; the first one is that of tokens beyond them."""
NORM = Layout(
    source=PTR, source_stride=I64, weight=PTR, bias=PTR, inputs=I64, target=PTR,
    target_stride=I64, form=I64, is_centred=I64, is_added=I64,
    epsilon=F32, scale=F32, total_scale=F32, reference=PTR,
)  # fmt: skip
"""target = source / root mean square * weight + bias, as a form of activations (its number in ACTIVATION_NAMES). With
`is_centred` the mean is subtracted first. With `is_added`, the norm times a scale is added to target, float32, and the
sum is multiplied by another one. `reference`: null, or rows of the same stride: then the norm is as large as they are,
target = source * root mean square of reference / root mean square of source * weight, and epsilon is the least mean
square that source is divided by."""
SPARSIFY = Layout(values=PTR, stride=I64, inputs=I64, cutoff=F32)
"""values = what they exceed their mean by, beyond `cutoff` times their standard deviation; 0 where they do not."""
NORM_HEADS = Layout(
    values=PTR, stride=I64, num_heads=I64, weight=PTR, weight_stride=I64, is_centred=I64, epsilon=F32
)  # fmt: skip
"""Each head's values divided by their root mean square, times a weight, in place. With `is_centred` their mean is
subtracted first. `weight_stride`: bytes from one head's weights to the next one's, 0 where all have the same."""
QUANTISE = Layout(
    source=PTR, source_stride=I64, inputs=I64, target=PTR, target_stride=I64,
    form=I64, weight=PTR,
)  # fmt: skip
"""target = source, times a weight where there is one, as a form of activations."""
UNIT = Layout(
    gate=PTR, up=PTR, source_stride=I64, inputs=I64, target=PTR,
    target_stride=I64, form=I64, pieces=I64, activation=I64, copies=I64, parameters=PTR,
)  # fmt: skip
"""target = activation(gate) * up, or activation(up) where there is no gate. `pieces`: into how many parts a row is cut;
`activation`: its number in units.UNITS; `parameters`: its own numbers, float32, null where it has none; `copies`: how
many rows there are for each row of the step."""
ALTUP = Layout(
    source=PTR, target=PTR, stride=I64, part=I64, count=I64, inputs=I64, coefficients=PTR, coefficient_stride=I64,
    computed=PTR, computed_stride=I64, pieces=I64,
)  # fmt: skip
"""Predictions of `count` hidden states of a row, `part` bytes apart, or, where `computed` is not null, corrections of
them by it; see altup. `pieces`: as in UNIT."""
CAP = Layout(values=PTR, stride=I64, num_vectors=I64, pieces=I64, is_hard=I64, cap=F32)
"""values = cap * tanh(values / cap), or, with `is_hard`, the nearest numbers from -cap to cap: vectors of 16. `pieces`:
as in UNIT."""
ROTATE = Layout(
    queries=PTR, keys=PTR, values=PTR, query_stride=I64, key_stride=I64,
    cosines=PTR, sines=PTR, cache=PTR, cache_stride=I64, target=PTR, scale=F32, growth=PTR,
    common=PTR, common_stride=I64,
)  # fmt: skip
"""Rotates queries, to `target`, and keys by their positions; multiplies queries by a scale, and by that of their
position if there is `growth`; writes keys and values to the layer's cache, whose blocks are `cache_stride` bytes apart.
`keys`, `values`: null for a layer that attends to another one's; `queries`: null where none are wanted. `common`: of
shapes whose heads have the rotated dimensions of keys in common, these; `keys` are the others."""
ATTEND = Layout(
    queries=PTR, query_stride=I64, cache=PTR, cache_stride=I64, target=PTR, target_stride=I64,
    window=I64, cap=F32, sinks=PTR,
)  # fmt: skip
KEEP = Layout(source=PTR, source_stride=I64, width=I64, cache=PTR, cache_stride=I64)
"""Writes what a short convolution reads of a row to the layer's cache: the products of the first and the last `width`
of its 3 * `width` numbers."""
CONVOLVE = Layout(
    source=PTR, source_stride=I64, width=I64, cache=PTR, cache_stride=I64, weights=PTR, length=I64, target=PTR,
    target_stride=I64, form=I64,
)  # fmt: skip
"""target = the second `width` numbers of source times the sums of what `length` positions keep times weights, float32
[length, width]."""

SCAN = Layout(
    values=PTR, stride=I64, width=I64, weights=PTR, length=I64, bias=PTR, states=PTR, state_stride=I64, log=PTR,
    pieces=I64,
)  # fmt: skip
"""A convolution of each run's rows, in place, of `width` numbers, a multiple of 16, over `length` positions: weights
are float32 [length, width], bias [width] or null. `states`, `log`: the layer's part of the first state, and of the
log's first row, which begins with these numbers; `pieces`: into how many parts a row is cut."""
DELTA = Layout(
    values=PTR, stride=I64, alpha=PTR, beta=PTR, gate_stride=I64, parameters=PTR, states=PTR, state_stride=I64,
    log=PTR, target=PTR, target_stride=I64, num_key_heads=I64, num_heads=I64, is_tiled=I64,
)  # fmt: skip
"""The delta rule over each run's rows: all queries, all keys, all values. `alpha`, `beta`: float32 by head, which
follow each other in the log, after the values; `parameters`: float32, the decays and the biases, each by head. Heads
share those of keys: with `is_tiled` every `num_key_heads`-th one has the same, else those that follow each other."""
STATE_SPACE = Layout(
    values=PTR, times=PTR, stride=I64, num_heads=I64, head_size=I64, state_size=I64, group_heads=I64, parameters=PTR,
    states=PTR, state_stride=I64, log=PTR,
)  # fmt: skip
"""The state space of each run's rows: x of all heads, B of all groups and C of all groups, one after the other in
`values`, dt of all heads in `times`, which follow the values in the log. `group_heads`: heads that have the same B and
C; `parameters`: float32, the bias of dt, A and D, each by head. `states`: of the first slot."""

ROUTE = Layout(
    logits=PTR, stride=I64, count=I64, used=I64, chosen=PTR, weights=PTR, is_normalised=I64, scale=F32,
    scales=PTR, is_sigmoid=I64, bias=PTR, groups=I64, used_groups=I64, is_by_logit=I64,
)  # fmt: skip
"""`used` of `count` experts for each row, and their weights times a scale, and times their own one of
`scales`, if there are some. `is_normalised`: whether weights are shares of those chosen, rather than of all.
`is_sigmoid`: weights are sigmoids of logits instead of e**logit. Experts are chosen by sigmoid, or share of all, plus
`bias`, null where there is none; logits become those sigmoids or shares. Where there are several `groups`, of
successive experts, they are chosen from `used_groups` of them: those with the best expert, or, of sigmoids, with
the largest sum of their two best ones. `is_by_logit`: weights are sigmoids, but experts are chosen by logits, which
stay: of two whose sigmoids round to 1, the larger one is better."""
GROUP = Layout(
    used=I64, count=I64, routing=PTR, experts=PTR, uses=PTR, steps=PTR, fetch=PTR, layer=I64,
)  # fmt: skip
"""Puts uses in the order of experts. `experts`: where each one's weights are, null for those that are not in memory,
for which `fetch(layer)` is called. `uses`, `steps`: int64 by expert, in how many steps it was used, and in which one
last."""
GATHER = Layout(
    rows=PTR, used=I64, source=PTR, source_stride=I64, target=PTR, target_stride=I64, row_bytes=I64,
)  # fmt: skip
"""target[place] = source[row of the use at this place]"""
EXPERT_PRODUCT = Layout(
    experts=PTR, offset=I64, panel_bytes=I64, blocks=I64, num_panels=I64, source=PTR, source_stride=I64, target=PTR,
    target_stride=I64, bias=PTR, bias_stride=I64, routing=PTR, piece=I64, run=I64,
)  # fmt: skip
"""A PRODUCT for each expert that is used, of the rows at its places. `offset`: of a matrix in an expert's weights;
`piece`: panels that are multiplied at a time; `run`: successive pieces that a thread takes at a time, at most."""
COMBINE = Layout(
    source=PTR, source_stride=I64, routing=PTR, used=I64, row_bytes=I64, target=PTR, target_stride=I64, scale=F32,
    shared=PTR, shared_stride=I64, gates=PTR, gate_stride=I64, is_added=I64,
)  # fmt: skip
"""Adds what a row's experts return, and a shared expert, to target, or writes it there. `shared`, `gates`: null where
there is none."""
WEIGH = Layout(routing=PTR, used=I64, gate=PTR, up=PTR, stride=I64, row_bytes=I64)
"""gate[place] and up[place] *= the weight of the use at this place, which then is 1."""
ROUTING = Layout(
    0, num_active=I64, chosen=PTR, weights=PTR, begins=PTR, active=PTR, places=PTR, rows=PTR,
)  # fmt: skip
"""Which experts a step's rows use. By use: `chosen`, int64, `weights`, float32, and `places`, int64. By place: `rows`,
int64. `active`: the experts that are used, int64, ascending. `begins`: by expert, after its last place, once
grouped."""
ROUTING_WORDS = ROUTING.size // 8

CONTEXT = Layout(
    0, rows=I64, threads=I64, counters=PTR, num_records=I64, completion=PTR,
    threads_own=PTR, tokens=PTR,
    positions=PTR, tables=PTR, scratch=PTR,
    scratch_stride=I64, tiles=PTR, num_tiles=I64, are_heads_together=I64, merged=PTR,
    num_merged=I64, slots=PTR, partials=PTR, wait=PTR, wait_number=I64, wake=PTR,
    wake_number=I64, operations=PTR, runs=PTR, num_runs=I64, log_stride=I64,
)  # fmt: skip
"""What the records of a step share. Arrays by row: `tokens`, `positions` int64, `tables` pointers to int32 block
tables. `completion`: a number that is raised when an operation is complete. `threads_own`: OWN of each thread,
OWN_BYTES apart. `tiles`: TILE of attention, whose pieces have all key-value heads, or one; `merged`: int64, the rows
that several tiles share, whose segments lie in `partials` from their `slots` on. `scratch`: of the first thread, the
next one's `scratch_stride` bytes further. `wait`, `wake`: see waiting. `operations`: the functions of records, by code.
`runs`: RUN of each sequence, of models whose sequences have states; `log_stride`: bytes from one row of their log to
the next."""
CONTEXT_WORDS = CONTEXT.size // 8

TILE = Layout(0, first_row=I64, rows=I64, first_segment=I64, last_segment=I64)
"""Rows of one sequence at successive positions, and which segments of its keys a thread computes of them."""
TILE_BYTES = TILE.size
ALL_SEGMENTS = 1 << 30
"""The last segment of a tile that has all."""

RUN = Layout(0, first_row=I64, rows=I64, slot=I64, known=I64, drafts=I64, logged=I64, log=I64, next_log=I64)
"""All rows of one sequence, adjacent and at successive positions, and the number of its state, which has taken in the
first `known` positions. It takes in `logged` rows of the log before the step's, from number `log` on. The last `drafts`
rows it does not take in: they are written to the log, from number `next_log` on."""
RUN_BYTES = RUN.size

OWN = Layout(0, counter=PTR, step=I64, total=I64, is_last=I64)
"""Of one thread: the counter of the record that it computes, and the step that it believes in. What `claim` found: how
many pieces there are, and whether this thread has completed the last one."""
OWN_BYTES = 64
STEP_SHIFT, PIECE_MASK, COMPLETED_OFFSET = 32, 2**32 - 1, 8
"""A record's counter: the step in the high half, the next piece in the low one; after it how many are complete."""
COUNTER_BYTES = 64
