"""Tapes: what one step computes, as records for the interpreter. All bounds are checked here, before anything runs.

Every method appends a record. Rows of float32 have room for a multiple of 32 numbers, whose unused ones stay zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from onward.kernels.activations import ACTIVATION_NAMES, ACTIVATIONS, ActivationName
from onward.kernels.attention_shape import AttentionShape
from onward.kernels.interpreter import (
    CAP_CODE,
    CONVOLVE_CODE,
    KEEP_CODE,
    NORM_CODE,
    QUANTISE_CODE,
    UNIT_CODE,
    Kernels,
)
from onward.kernels.memory import Rows, Vector
from onward.kernels.operands import Matrix, Norm, Table
from onward.kernels.panels import panel_count
from onward.kernels.parts import Part, Written, tape_of
from onward.kernels.products import OUT_BYTES, ProductKind
from onward.kernels.records import (
    ATTEND,
    CAP,
    CONVOLVE,
    EMBED,
    KEEP,
    NORM,
    NORM_HEADS,
    PRODUCT,
    QUANTISE,
    ROTATE,
    UNIT,
    Field,
    Layout,
)
from onward.kernels.units import UNITS, XIELU, XIELU_NUMBERS
from onward.kernels.values import LANES
from onward.kernels.weight_types import GROUP

MAX_CLAIM_BYTES = 1 << 20
"""Weights that a thread takes at a time: memory is read a quarter faster than in runs of 48 KB, each of which
begins with lines that nothing has fetched."""
UNIT_PIECE_NUMBERS = 1024
CAP_PIECE_NUMBERS = 8192
EVERYTHING = 1 << 30
"""A window that contains every position."""


def float_row_bytes(numbers: int) -> int:
    """Return the bytes of a row of float32."""
    return 4 * (-(-numbers // GROUP) * GROUP)


class TapeBuilder:
    """Writes a tape for steps of up to `rows` rows on `threads` threads. Keeps what its records point to alive."""

    def __init__(self, kernels: Kernels, rows: int, threads: int) -> None:
        self._kernels, self._rows, self._threads = kernels, rows, threads
        self._parts: Written = [(None, [])]
        self._memory: list[object] = []
        self.longest_row = 0
        """Numbers of the longest row that an operation keeps in the scratch memory of a thread."""

    def begin_part(self, needs: int | None) -> None:
        """Have the records that follow in another part, unless they need the same weights."""
        if self._parts[-1][0] != needs:
            self._parts.append((needs, []))

    def take(self) -> Written:
        """Return what was written since the last call."""
        written, self._parts = self._parts, [(None, [])]
        return written

    def finish(self) -> list[Part]:
        """Return what was written since the last call of `take` as a tape."""
        return tape_of(self.take())

    def _write(
        self,
        layout: Layout,
        operation: int,
        /,
        *,
        has_barrier: bool = True,
        longest_row: int = 0,
        **fields: Field,
    ) -> None:
        """Append a record, and keep the memory that it points to. `longest_row`: numbers of a row that the operation
        keeps in the scratch memory of a thread."""
        self._parts[-1][1].append(layout.record(operation, has_barrier=has_barrier, **fields))
        self.longest_row = max(self.longest_row, longest_row)
        self._memory += fields.values()

    def _form(self, form: ActivationName) -> int:
        """Return a form's number. Raises ValueError if the kernels do not write it."""
        if form not in self._kernels.forms():
            raise ValueError(f"The kernels were compiled without activations as {form}.")
        return ACTIVATION_NAMES.index(form)

    def embed(
        self, table: Table, target: Rows, scale: float = 1.0, *, of_positions: bool = False, is_added: bool = False
    ) -> None:
        """Write the table's rows of the step's tokens, or positions, to `target`, float32, or add them. Tokens beyond
        the table have its first row."""
        target.require(self._rows, float_row_bytes(table.inputs))
        if table.data.nbytes < table.rows * table.row_bytes:
            raise ValueError(f"A table of {table.rows} rows has {table.data.nbytes} bytes.")
        self._write(
            EMBED, self._kernels.embed_code(table.type), table=table.data, row_bytes=table.row_bytes,
            inputs=table.inputs, target=target, target_stride=target.stride, scale=scale, of_positions=of_positions,
            is_added=is_added, rows=table.rows,
        )  # fmt: skip

    def norm(
        self,
        source: Rows,
        norm: Norm,
        target: Rows,
        form: ActivationName,
        *,
        added_scale: float | None = None,
        total_scale: float = 1.0,
        reference: Rows | None = None,
    ) -> None:
        """Write normalised rows in a form of activations; with `added_scale`, add them times so much to float32, and
        multiply the sum by `total_scale`. `reference`: rows of the same stride, which they become as large as."""
        inputs = norm.weight.length
        is_added = added_scale is not None
        source.require(self._rows, float_row_bytes(inputs))
        target.require(self._rows, float_row_bytes(inputs) if is_added else ACTIVATIONS[form].row_bytes(inputs))
        if norm.bias is not None and norm.bias.length != inputs:
            raise ValueError(f"A norm of {inputs} numbers has a bias of {norm.bias.length}.")
        if reference is not None:
            reference.require(self._rows, float_row_bytes(inputs))
            if reference.stride != source.stride or norm.is_centred:
                raise ValueError("A norm becomes as large as rows of another stride, or is centred.")
        self._write(
            NORM, NORM_CODE, source=source, source_stride=source.stride, weight=norm.weight, bias=norm.bias,
            inputs=inputs, target=target, target_stride=target.stride, form=self._form(form),
            is_centred=norm.is_centred, is_added=is_added, epsilon=norm.epsilon, scale=added_scale or 0.0,
            total_scale=total_scale, reference=reference, longest_row=inputs,
        )  # fmt: skip

    def norm_heads(self, values: Rows, num_heads: int, size: int, norm: Norm) -> None:
        """Normalise each head of rows of float32, in place, by weights that all heads have, or each its own. Other
        parts of a row of one size, too."""
        values.require(self._rows, 4 * num_heads * size)
        if norm.weight.length not in (size, num_heads * size) or norm.bias is not None:
            raise ValueError(
                f"Heads of {size} numbers have a norm of {norm.weight.length}, or one that is not computed."
            )
        has_own_weights = norm.weight.length > size
        self._write(
            NORM_HEADS, self._kernels.norm_heads_code(size), values=values, stride=values.stride, num_heads=num_heads,
            weight=norm.weight, weight_stride=4 * size if has_own_weights else 0, is_centred=norm.is_centred,
            epsilon=norm.epsilon,
        )  # fmt: skip

    def quantise(
        self, source: Rows, inputs: int, target: Rows, form: ActivationName, weight: Vector | None = None
    ) -> None:
        """Write rows of float32, times a weight, in another form."""
        source.require(self._rows, float_row_bytes(inputs))
        if weight is not None and weight.length != inputs:
            raise ValueError(f"{inputs} numbers are multiplied by {weight.length}.")
        target.require(self._rows, ACTIVATIONS[form].row_bytes(inputs))
        self._write(
            QUANTISE, QUANTISE_CODE, source=source, source_stride=source.stride, inputs=inputs, target=target,
            target_stride=target.stride, form=self._form(form), weight=weight,
            longest_row=0 if weight is None else inputs,
        )  # fmt: skip

    def unit(
        self,
        gate: Rows | None,
        up: Rows,
        inputs: int,
        target: Rows,
        form: ActivationName,
        activation: str,
        copies: int = 1,
        parameters: Vector | None = None,
    ) -> None:
        """Write activation(gate) * up, or activation(up), in a form of activations. `copies`: rows for each row;
        `parameters`: the activation's own numbers."""
        for rows in (up, gate or up):
            rows.require(self._rows * copies, float_row_bytes(inputs))
        if gate is not None and gate.stride != up.stride:
            raise ValueError("Both inputs of a unit must have rows of one length.")
        if (0 if parameters is None else parameters.length) != (XIELU_NUMBERS if activation == XIELU else 0):
            raise ValueError(f"{activation} has other numbers of its own, or none.")
        target.require(self._rows * copies, ACTIVATIONS[form].row_bytes(inputs))
        self._write(
            UNIT, UNIT_CODE, gate=gate, up=up, source_stride=up.stride, inputs=inputs, target=target,
            target_stride=target.stride, form=self._form(form), pieces=max(1, inputs // UNIT_PIECE_NUMBERS),
            activation=UNITS.index(activation), copies=copies, parameters=parameters, longest_row=inputs,
        )  # fmt: skip

    def rotate(
        self,
        shape: AttentionShape,
        queries: tuple[Rows, Rows] | None,
        written: tuple[Rows, Rows] | None,
        tables: tuple[Rows, Rows],
        cache: Rows,
        scale: float,
        growth: Rows | None = None,
        common: Rows | None = None,
    ) -> None:
        """Rotate queries, from the first to the second of `queries`, and write keys, rotated, and values to a layer's
        cache, `written`; None: there are none, or they are not wanted. `tables`: cosines and sines by position;
        `growth`: what queries are multiplied by, float32 by position; `common`: what keys of all heads have alike."""
        source, target = queries or (None, None)
        if source is not None and target is not None:
            source.require(self._rows, 4 * shape.num_heads * shape.head_size)
            target.require(self._rows, shape.query_stride)
        for rows, size in zip(written or (), (shape.own_key_size, shape.value_size), strict=False):
            rows.require(self._rows, 4 * shape.num_kv_heads * size)
        if (common is not None) != shape.has_common_part:
            raise ValueError("The kernels were compiled with dimensions that all keys have in common, or without.")
        if common is not None:
            common.require(self._rows, 4 * shape.rotated)
        cache.require(1, shape.block_bytes)
        strides = {rows.stride for rows in written or ()}
        if len(strides) > 1 or (target is not None and target.stride != shape.query_stride):
            raise ValueError("Rows of keys, values or queries are not as long as the kernels expect.")
        for table in tables:
            if table.stride != 2 * shape.rotated:
                raise ValueError(f"A table of positions has rows of {table.stride} bytes.")
        if growth is not None and (growth.stride != 4 or growth.count != tables[0].count):
            raise ValueError(f"Queries grow at {growth.count} positions instead of {tables[0].count}.")
        keys, values = written or (None, None)
        self._write(
            ROTATE, self._kernels.attention_codes(shape)[0], queries=source, keys=keys, values=values,
            query_stride=0 if source is None else source.stride, key_stride=0 if keys is None else keys.stride,
            cosines=tables[0], sines=tables[1], cache=cache, cache_stride=cache.stride, target=target, scale=scale,
            growth=growth, common=common, common_stride=0 if common is None else common.stride,
            longest_row=shape.head_size,
        )  # fmt: skip

    def attend(
        self,
        shape: AttentionShape,
        queries: Rows,
        cache: Rows,
        target: Rows,
        window: int | None = None,
        *,
        sinks: Vector | None = None,
        cap: float | None = None,
    ) -> None:
        """Write what each head attends to, float32 [rows, heads * value size]: to all positions, or to a window.
        `sinks`: of each head, the score of a key without a value; `cap`: of scores."""
        queries.require(self._rows, shape.query_stride)
        target.require(self._rows, 4 * shape.num_heads * shape.value_size)
        if window is not None and not (shape.has_window and window > 0):
            raise ValueError("The kernels were compiled without windows, or one has no positions.")
        if (sinks is not None) != shape.has_sinks or (sinks is not None and sinks.length != shape.num_heads):
            raise ValueError(f"The kernels need other sinks for {shape.num_heads} heads, or none.")
        if (cap is not None) != shape.has_cap:
            raise ValueError("The kernels were compiled with a cap of scores, or without one.")
        cache.require(1, shape.block_bytes)
        if queries.stride != shape.query_stride:
            raise ValueError("Rows of queries are not as long as the kernels expect.")
        _, attend, merge = self._kernels.attention_codes(shape)
        for code in (attend, merge):
            self._write(
                ATTEND, code, queries=queries, query_stride=queries.stride, cache=cache, cache_stride=cache.stride,
                target=target, target_stride=target.stride, window=EVERYTHING if window is None else window,
                cap=cap or 0.0, sinks=sinks,
            )  # fmt: skip

    def keep(self, source: Rows, width: int, cache: Rows) -> None:
        """Write what a short convolution reads of the step's rows to a layer's cache."""
        self._require_convolution(source, width, cache)
        self._write(
            KEEP, KEEP_CODE, source=source, source_stride=source.stride, width=width, cache=cache,
            cache_stride=cache.stride,
        )  # fmt: skip

    def convolve(
        self, source: Rows, width: int, weights: Vector, cache: Rows, target: Rows, form: ActivationName
    ) -> None:
        """Write convolutions in a form of activations, of rows that are kept: `weights` are of the position furthest
        back first, `width` for each."""
        self._require_convolution(source, width, cache)
        target.require(self._rows, ACTIVATIONS[form].row_bytes(width))
        length, rest = divmod(weights.length, width)
        if length == 0 or rest:
            raise ValueError(f"A convolution of {width} numbers has {weights.length} weights.")
        self._write(
            CONVOLVE, CONVOLVE_CODE, source=source, source_stride=source.stride, width=width, cache=cache,
            cache_stride=cache.stride, weights=weights, length=length, target=target, target_stride=target.stride,
            form=self._form(form), longest_row=width,
        )  # fmt: skip

    def _require_convolution(self, source: Rows, width: int, cache: Rows) -> None:
        source.require(self._rows, 3 * 4 * width)
        cache.require(1, self._kernels.attention[0].kept_bytes(width))
        if not self._kernels.has_convolutions:
            raise ValueError("The kernels were compiled without convolutions.")

    def cap(self, values: Rows, numbers: int, cap: float, *, is_hard: bool = False) -> None:
        """Cap numbers, float32 [rows, numbers]: whole vectors of 16."""
        values.require(self._rows, 4 * numbers)
        if numbers % LANES or not self._kernels.has_caps:
            raise ValueError(f"{numbers} numbers cannot be capped, or the kernels were compiled without that.")
        self._write(
            CAP, CAP_CODE, values=values, stride=values.stride, num_vectors=numbers // LANES,
            pieces=max(1, numbers // CAP_PIECE_NUMBERS), is_hard=is_hard, cap=cap,
        )  # fmt: skip

    def products(
        self,
        parts: Sequence[tuple[Matrix, Rows, Vector | None]],
        sources: dict[ActivationName, Rows],
        forms: Sequence[ActivationName],
        *,
        scales: Sequence[float],
        is_added: bool = False,
    ) -> None:
        """Multiply one input, in forms of activations that are in `sources`, with several matrices: (weights, target,
        bias). They are complete together, after the last one. `scales`: by what each product is multiplied."""
        for index, ((weights, target, bias), form, scale) in enumerate(zip(parts, forms, scales, strict=True)):
            source = sources[form]
            panels, kind = panel_count(weights.rows), ProductKind(weights.type, form)
            source.require(self._rows, ACTIVATIONS[form].row_bytes(weights.padded_inputs))
            target.require(self._rows, panels * OUT_BYTES)
            if weights.panels.nbytes < panels * weights.panel_bytes:
                raise ValueError(
                    f"{panels} panels of {weights.panel_bytes} bytes are not within {weights.panels.nbytes}."
                )
            if bias is not None and (bias.length != weights.rows or bias.values.size < panels * 16):
                raise ValueError(f"A bias of {bias.length} numbers is added to {weights.rows}.")
            self._write(
                PRODUCT, self._kernels.product_code(kind), has_barrier=index == len(parts) - 1, panels=weights.panels,
                panel_bytes=weights.panel_bytes, blocks=weights.blocks, num_panels=panels, source=source,
                source_stride=source.stride, target=target, target_stride=target.stride, bias=bias, is_added=is_added,
                claim=max(1, MAX_CLAIM_BYTES // weights.panel_bytes), scale=scale,
            )  # fmt: skip
