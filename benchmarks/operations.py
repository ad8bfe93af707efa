"""Where the time of a step goes: each operation of the native runtime's tape is run alone; its time is the minimum of
several runs.

Steps of so many sequences, one token of each after a context of `--context` tokens; with `--prefill` also a prompt.
`python -m benchmarks.operations --model FILE.gguf --rows 1 8 32`. Each ends with a barrier here, which many do not need
in a whole step, where an operation also finds the previous one's results in the caches: a step may take a little less
or more.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure
from benchmarks.bare import TOKEN
from benchmarks.measure import BenchmarkError
from benchmarks.models import load
from onward.engine.model import ModelRunner, Row
from onward.kernels import interpreter
from onward.kernels.interpreter import Kernels
from onward.kernels.machine import Machine
from onward.kernels.parts import Part
from onward.kernels.records import BARRIER, HEADER, PRODUCT
from onward.kernels.weight_types import PANEL_ROWS
from onward.runtimes.native import load as native_load
from onward.runtimes.native.model import NativeModel, Tape
from onward.values import Precision

CODES = {
    interpreter.NORM_CODE: "norms", interpreter.QUANTISE_CODE: "activations to int8",
    interpreter.UNIT_CODE: "gated unit", interpreter.SCAN_CODE: "short convolutions",
    interpreter.DELTA_CODE: "delta rule", interpreter.STATE_SPACE_CODE: "state spaces",
    interpreter.ROUTE_CODE: "routing", interpreter.GROUP_CODE: "routing", interpreter.GATHER_CODE: "rows of experts",
    interpreter.COMBINE_CODE: "sums of experts",
}  # fmt: skip
ATTENTION = ("rotation, keys and values", "attention", "attention, merged")
"""Of each shape of attention."""
OTHER = "others"


class Recorder:
    """The machine of a model that is loaded within `recording`, its tape and its kernels."""

    machine: Machine
    tape: Tape
    kernels: Kernels


@contextmanager
def recording() -> Iterator[Recorder]:
    found = Recorder()

    def model(machine: Machine, tape: Tape, *rest: Any, **named: Any) -> NativeModel:
        found.machine, found.tape = machine, tape
        return NativeModel(machine, tape, *rest, **named)

    def kernels(*parts: Any, **named: Any) -> Kernels:
        found.kernels = Kernels(*parts, **named)
        return found.kernels

    with patch.object(native_load, "NativeModel", model), patch.object(native_load, "Kernels", kernels):
        yield found


def name_of(record: NDArray[np.int64], kernels: Kernels) -> str:
    """Return an operation as it is listed: products by their weights."""
    code = int(record[HEADER.offset("operation") // 8])
    for kind in kernels.products:
        if code == kernels.product_code(kind):
            rows = int(record[PRODUCT.offset("num_panels") // 8]) * PANEL_ROWS
            inputs = int(record[PRODUCT.offset("blocks") // 8]) * kind.type.block_weights
            return f"product {kind.weights} {rows} x {inputs}"
    for shape in kernels.attention:
        for name, each in zip(ATTENTION, kernels.attention_codes(shape), strict=True):
            if code == each:
                return name
    sizes = {*kernels.norm_sizes, *(shape.head_size for shape in kernels.attention)}
    if any(code == kernels.norm_heads_code(size) for size in sizes):
        return "norms of heads"
    return CODES.get(code, OTHER)


def measured(model: ModelRunner, recorder: Recorder, rows: list[Row], runs: int) -> dict[str, Any]:
    """Return the seconds of each operation, the minimum of `runs` summed over its layers, and how often a step has it.
    The states of `rows` have processed the positions before them."""
    count, outputs, tape = sum(len(row.tokens) for row in rows), sum(row.outputs for row in rows), recorder.tape
    seconds: Counter[str] = Counter()
    number: Counter[str] = Counter()

    def add(num_rows: int, parts: Sequence[Part]) -> None:
        recorder.machine.runs[: len(rows), 3] = [row.start for row in rows]  # as if each time were the first one
        records = [record.copy() for part in parts for record in part.records[:-1]]
        for record, each in zip(records, _least(recorder.machine, num_rows, len(rows), records, runs), strict=True):
            name = name_of(record, recorder.kernels)
            seconds[name] += each  # type: ignore[assignment]
            number[name] += 1

    model.evaluate(rows)
    model.evaluate(rows, lambda: add(count, tape.whole if outputs == count else tape.kept))
    if outputs < count:  # `tape.rest` is planned by the evaluation above
        add(outputs, tape.rest)
    return {name: {"seconds": found, "count": number[name]} for name, found in seconds.most_common()}


def _least(machine: Machine, rows: int, sequences: int, records: list[NDArray[np.int64]], runs: int) -> list[float]:
    """Return the minimum seconds of each record of the planned step, run alone."""
    for record in records:
        BARRIER.set(record, has_barrier=1)  # without it, a step would end before all of its pieces are computed
    tapes = [[Part(None, np.stack([record, np.zeros_like(record)]))] for record in records]
    least = [float("inf")] * len(tapes)
    for _ in range(runs):
        for index, tape in enumerate(tapes):
            begin = perf_counter()
            machine.step(rows, tape, runs=sequences)
            least[index] = min(least[index], perf_counter() - begin)
    for tape in tapes:
        machine.retire(tape)  # a late thread may still read it
    return least


def decoding(model: ModelRunner, rows: int, context: int) -> list[Row]:
    blocks = model.shape.blocks_for(context + 1)
    if rows * blocks > model.blocks or context >= model.context_length:
        raise BenchmarkError(f"{rows} sequences of {context} tokens do not fit into the KV cache.")
    tables = [range(each * blocks, (each + 1) * blocks) for each in range(rows)]
    if model.shape.states:
        for each in range(rows):
            model.evaluate([Row(each, [TOKEN] * context, 0, tables[each], 0, state=each)])
    return [Row(each, [TOKEN], context, tables[each], 1, state=each) for each in range(rows)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operations", description=__doc__)
    parser.add_argument("--model", default="storyteller")
    parser.add_argument("--precision", default="fast", choices=get_args(Precision), help="default: fast")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument(
        "--context", type=int, default=150, help="tokens of each sequence before the step (default 150)"
    )
    parser.add_argument(
        "--prefill", type=int, nargs="*", default=[], metavar="TOKENS", help="also prompts of this length"
    )
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    at_start = measure.start()
    with recording() as recorder:
        model, _ = load(options.model, options.precision)
    if any(part.needs is not None for part in recorder.tape.parts):
        raise BenchmarkError("the model does not fit into memory")
    figures = {}
    try:
        for rows in options.rows:
            figures[f"{rows} rows"] = measured(model, recorder, decoding(model, rows, options.context), options.runs)
        for tokens in options.prefill:
            prompt = [Row(0, [TOKEN] * tokens, 0, range(model.shape.blocks_for(tokens)), 1)]
            figures[f"a prompt of {tokens}"] = measured(model, recorder, prompt, options.runs)
    finally:
        model.close()
    for name, found in figures.items():
        total = sum(each["seconds"] for each in found.values())
        print(f"{name}: {total * 1e3:.2f} ms")
        for operation, each in found.items():
            print(f"  {each['seconds'] / total:6.1%} {each['seconds'] * 1e3:9.2f} ms {each['count']:5} x {operation}")
    measure.write_report(options.json, "operations", figures, at_start)
    return 0


if __name__ == "__main__":
    measure.run_main(main)
