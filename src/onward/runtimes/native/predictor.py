"""The layer of a model that predicts one more token (checkpoints.predictions), as a tape of its own.

It reads the model's hidden states, which each step writes to the KV blocks, behind the keys and values: so whoever has
a block has them, too, whether it was computed, shared, copied or read from a disk. Its own keys and values are those of
one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.predictions import PART, reads_hidden_first
from onward.engine.model import Hook, Row, nothing
from onward.kernels.attention_shape import BLOCK_TOKENS, AttentionShape
from onward.kernels.memory import Rows, address
from onward.kernels.parts import tape_of
from onward.runtimes.native.adapters import TapeWriter
from onward.runtimes.native.buffers import Buffers, Cache
from onward.runtimes.native.decoder import Decoder
from onward.runtimes.native.model import MAX_ROWS, STEP_SHAPE, NativeModel, Tape
from onward.runtimes.native.model_tape import DecoderTape, ModelTape
from onward.runtimes.native.weights import EMBEDDING, Weights

TAPE = "mtp"
"""The tape's name among those of the model, of which all others are those of adapters."""
Floats = NDArray[np.floating]


class PredictorBuffers:
    """The memory between the operations of a predicting layer, in addition to the model's."""

    def __init__(self, buffers: Buffers, hidden: int) -> None:
        self.hidden = hidden
        self.embedded, self.previous, self.returned = (buffers.floats(hidden) for _ in range(3))
        """`returned`: hidden states after the last norm, its own or those of the model's step."""
        self.joined = buffers.floats(2 * hidden + BLOCK_TOKENS)


class HiddenStates:
    """The hidden states of all positions in KV blocks, [blocks, BLOCK_TOKENS, hidden]. `place`: where in a block."""

    def __init__(self, cache: Rows, place: int, hidden: int, *, is_wide: bool) -> None:
        kind = np.dtype(np.float32 if is_wide else np.float16)
        strides = cache.stride, hidden * kind.itemsize, kind.itemsize
        self._values: Floats = np.ndarray((cache.count, BLOCK_TOKENS, hidden), kind, cache.memory, place, strides)

    @staticmethod
    def block_bytes(hidden: int, *, is_wide: bool) -> int:
        """Return the bytes of a block's, in whole lines."""
        return -(-BLOCK_TOKENS * hidden * (4 if is_wide else 2) // 64) * 64

    def keep(self, rows: Sequence[Row], values: NDArray[np.float32]) -> None:
        """Write the values of the positions of rows, [positions, hidden]."""
        positions = [(row, each) for row in rows for each in range(row.start, row.start + len(row.tokens))]
        blocks = [row.blocks[each // BLOCK_TOKENS] for row, each in positions]
        with np.errstate(over="ignore"):  # nothing is drafted from what is not finite
            self._values[blocks, [each % BLOCK_TOKENS for _, each in positions]] = values[: len(positions)]

    def read(self, blocks: Sequence[int], positions: Sequence[int]) -> Floats:
        """Return the values of positions, each in one of the blocks."""
        return self._values[blocks, [each % BLOCK_TOKENS for each in positions]]


class PredictingDecoder(Decoder):
    """Writes the tape of a predicting layer, which is the last one."""

    def write_prediction(self, buffers: PredictorBuffers) -> None:
        """Write what the layer reads: of tokens, and of `previous`."""
        found, weights, tape = self._found, self._weights, self._tape
        prefix, hidden = f"blk.{found.num_layers - 1}.{PART}.", found.hidden
        projection = f"{prefix}eh_proj"
        tape.begin_part(weights.stream_index(projection))
        tape.embed(weights.table(EMBEDDING), buffers.embedded, found.embedding_scale)
        halves = [(buffers.embedded, "enorm"), (buffers.previous, "hnorm")]
        if reads_hidden_first(found):
            halves.reverse()
        for index, (source, norm) in enumerate(halves):
            tape.norm(
                source, self._shared.norm(f"{prefix}{norm}"), buffers.joined.without(4 * hidden * index), "float32"
            )
        self._shared.read(buffers.joined, 2 * hidden, projection)
        self._shared.products([(projection, self._hidden)])

    def write_tape(self, buffers: PredictorBuffers) -> Tape:
        """Return the tape."""
        norm = f"blk.{self._found.num_layers - 1}.{PART}.shared_head_norm"
        self.write_prediction(buffers)
        first = self._tape.take()
        self.write_kept()
        kept = self._tape.take()
        self.write_rest(norm, buffers.returned)
        self.write_output(norm)
        rest = self._tape.take()
        return Tape(tape_of(first, rest), tape_of(first, kept), tape_of(rest))


class NativePredictor:
    """Implements engine.model.Predictor, for a model that keeps hidden states. Engine thread only.

    The layer's position p is that of the model's hidden states; its token is the one after it.
    """

    def __init__(self, model: NativeModel, tape: Tape, values: HiddenStates, buffers: PredictorBuffers) -> None:
        self.vocab_size, self.context_length = model.vocab_size, model.context_length
        self.blocks = STEP_SHAPE.blocks_for(model.context_length)
        self.shape = STEP_SHAPE
        self._model: NativeModel | None = model
        self._tape, self._values = tape, values
        self._previous, self._returned = (
            _floats(each, buffers.hidden) for each in (buffers.previous, buffers.returned)
        )
        self._table = np.arange(self.blocks, dtype=np.int32)
        self._last = -1
        model.keep_hidden = self._keep_hidden

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        """See engine.model.Predictor. Position 0 has nothing before it, and is left out."""
        found = [
            (token, position - 1, row.blocks[(position - 1) // BLOCK_TOKENS])
            for row in rows
            for position, token in enumerate(row.tokens, row.start)
            if position
        ]
        is_wanted = bool(rows) and rows[-1].outputs > 0
        if not found:
            return np.zeros((0, self.vocab_size), np.float32)
        tokens, positions, blocks = (list(each) for each in zip(*found, strict=True))
        self._previous[: len(tokens)] = self._values.read(blocks, positions)
        return self._compute(tokens, positions, is_wanted, before_compute)

    def extend(self, token: int) -> NDArray[np.float32]:
        """See engine.model.Predictor."""
        self._previous[0] = self._returned[0]
        return self._compute([token], [self._last + 1], True, nothing)

    def block_memory(self, block: int) -> Sequence[NDArray[np.uint8]]:
        """Nothing is shared: its keys and values are of one sequence."""
        return []

    def close(self) -> None:
        """Leave the model, which is closed by itself."""
        if self._model is not None:
            self._model.keep_hidden = None
        self._model = None

    def _compute(
        self, tokens: Sequence[int], positions: Sequence[int], is_wanted: bool, before_compute: Hook
    ) -> NDArray[np.float32]:
        if self._model is None:
            raise RuntimeError("The model is closed.")
        machine, count = self._model.begin_rows(tokens, positions), len(tokens)
        machine.tables[:count] = address(self._table)
        self._last = positions[-1]
        wanted = np.array([count - 1] if is_wanted else [], np.int64)
        return self._model.walk(machine, self._tape, count, wanted, before_compute)

    def _keep_hidden(self, rows: Sequence[Row]) -> None:
        self._values.keep(rows, self._returned)


class PredictorLoader:
    """What loading a model does for its predicting layer, in the order of the methods."""

    def __init__(self, found: Architecture, shape: AttentionShape, context: int) -> None:
        """`found`: with it as the last layer, whose attention has this `shape`; `context`: tokens of a sequence."""
        self._found, self._shape = found, shape
        self._blocks = STEP_SHAPE.blocks_for(context)
        self.block_bytes = HiddenStates.block_bytes(found.hidden, is_wide=shape.is_wide)
        """How much longer each KV block is."""
        self.cache_bytes = self._blocks * shape.block_bytes
        """Of its own keys and values."""
        self._buffers: PredictorBuffers
        self._tape: Tape
        self._kept: object = None

    def allocate(self, buffers: Buffers) -> Rows:
        """Return where the model has to leave hidden states."""
        self._buffers = PredictorBuffers(buffers, self._found.hidden)
        return self._buffers.returned

    def write(self, writer: TapeWriter, weights: Weights) -> int:
        """Write the tape. Returns the numbers of its longest row. `writer`: of the model's tapes."""
        tape = DecoderTape(writer.kernels, MAX_ROWS, writer.threads)
        cache, count = Rows.exactly(self._blocks, self._shape.block_bytes), self._found.num_layers
        experts = writer.experts.on(tape) if writer.experts is not None else None
        caches = Cache([self._shape] * count, [cache] * count, {})
        shared = ModelTape(self._found, weights, tape, writer.buffers)
        decoder = PredictingDecoder(shared, writer.positions, caches, experts)
        self._tape, self._kept = decoder.write_tape(self._buffers), tape
        return tape.longest_row

    def predictor(self, model: NativeModel, cache: Rows, place: int) -> NativePredictor:
        """Return the predictor of a model, whose hidden states are at `place` of each block of its cache."""
        model.use_tape(TAPE, self._tape, self._kept)
        values = HiddenStates(cache, place, self._found.hidden, is_wide=self._shape.is_wide)
        return NativePredictor(model, self._tape, values, self._buffers)


def _floats(rows: Rows, numbers: int) -> NDArray[np.float32]:
    """Return rows as float32 [rows, numbers]."""
    whole = rows.memory[: rows.count * rows.stride].view(np.float32)
    found: NDArray[np.float32] = whole.reshape(rows.count, -1)[:, :numbers]
    return found
