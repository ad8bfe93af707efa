"""Where the time of a step goes: each operation of the native runtime's tape is run alone; its time is the minimum of
several runs.

Steps of so many sequences, one token of each after a context of `--context` tokens; with `--prefill` also a prompt, in
chunks as the engine computes it. Tokens are random, so that rows use different experts. Products have the GB of weights
that they read per second, and the memory's limit is measured in the same run. `python -m benchmarks.operations --model
FILE.gguf --rows 1 8 32 --prefill 512 4096`.

Each operation ends with a barrier here, which many do not need in a whole step, where one also finds the previous one's
results in the caches: a step may take a little less or more, which is listed too.
"""

from __future__ import annotations

import argparse
import ctypes
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure
from benchmarks.bare import TOKEN, random_prompts
from benchmarks.measure import BenchmarkError
from benchmarks.models import load
from benchmarks.products import Bench, compiled
from onward.engine.model import ModelRunner, Row
from onward.kernels import interpreter
from onward.kernels.interpreter import Kernels
from onward.kernels.machine import Machine
from onward.kernels.parts import Part
from onward.kernels.records import BARRIER, EXPERT_PRODUCT, HEADER, PRODUCT, ROUTING, ROUTING_WORDS, Layout
from onward.kernels.weight_types import PANEL_ROWS
from onward.machine import compute_threads
from onward.runtimes.native import load as native_load
from onward.runtimes.native.model import NativeModel, Tape
from onward.values import Precision

CODES = {
    interpreter.NORM_CODE: "norms", interpreter.QUANTISE_CODE: "activations to int8",
    interpreter.UNIT_CODE: "gated unit", interpreter.SCAN_CODE: "short convolutions",
    interpreter.DELTA_CODE: "delta rule", interpreter.STATE_SPACE_CODE: "state spaces",
    interpreter.ROUTE_CODE: "routing", interpreter.GROUP_CODE: "routing", interpreter.GATHER_CODE: "rows of experts",
    interpreter.COMBINE_CODE: "sums of experts", interpreter.ALTUP_CODE: "hidden states",
    interpreter.SPARSIFY_CODE: "sparse gates",
}  # fmt: skip
ATTENTION = ("rotation, keys and values", "attention", "attention, merged")
"""Of each shape of attention."""
OTHER = "others"
LIMIT_ROUNDS = 3
"""How often the memory's limit is measured before each number of rows; the greatest counts."""


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
    code = _field(record, HEADER, "operation")
    for kind in kernels.products:
        for what, layout, own in (
            ("product", PRODUCT, kernels.product_code(kind)),
            ("experts", EXPERT_PRODUCT, kernels.expert_product_code(kind)),
        ):
            if code == own:
                rows = _field(record, layout, "num_panels") * PANEL_ROWS
                return f"{what} {kind.weights} {rows} x {_field(record, layout, 'blocks') * kind.type.block_weights}"
    for shape in kernels.attention:
        for name, each in zip(ATTENTION, kernels.attention_codes(shape), strict=True):
            if code == each:
                return name
    sizes = {*kernels.norm_sizes, *(shape.head_size for shape in kernels.attention)}
    if any(code == kernels.norm_heads_code(size) for size in sizes):
        return "norms of heads"
    return CODES.get(code, OTHER)


def _field(record: NDArray[np.int64], layout: Layout, name: str) -> int:
    return int(record[layout.offset(name) // 8])


def weight_bytes(record: NDArray[np.int64], kernels: Kernels) -> int:
    """Return the bytes of weights that a record reads once its step's experts are chosen; 0 of other operations."""
    code = _field(record, HEADER, "operation")
    for kind in kernels.products:
        if code == kernels.product_code(kind):
            return _field(record, PRODUCT, "num_panels") * _field(record, PRODUCT, "panel_bytes")
        if code == kernels.expert_product_code(kind):
            routing = (ctypes.c_int64 * ROUTING_WORDS).from_address(_field(record, EXPERT_PRODUCT, "routing"))
            each = _field(record, EXPERT_PRODUCT, "num_panels") * _field(record, EXPERT_PRODUCT, "panel_bytes")
            return each * _field(np.array(routing), ROUTING, "num_active")
    return 0


def measured(model: ModelRunner, recorder: Recorder, rows: list[Row], runs: int) -> dict[str, Any]:
    """Return the seconds of each operation, the minimum of `runs` summed over its layers, how often a step has it, and
    the bytes of weights that it reads; and the seconds of the whole step. The states of `rows` have processed the
    positions before them."""
    count, outputs, tape = sum(len(row.tokens) for row in rows), sum(row.outputs for row in rows), recorder.tape
    seconds: Counter[str] = Counter()
    number: Counter[str] = Counter()
    read: Counter[str] = Counter()
    whole = 0.0

    def add(num_rows: int, parts: Sequence[Part]) -> None:
        nonlocal whole
        recorder.machine.runs[: len(rows), 3] = [row.start for row in rows]  # as if each time were the first one
        records = [record.copy() for part in parts for record in part.records[:-1]]
        for record, each in zip(records, _least(recorder.machine, num_rows, len(rows), records, runs), strict=True):
            name = name_of(record, recorder.kernels)
            seconds[name] += each  # type: ignore[assignment]
            number[name] += 1
            read[name] += weight_bytes(record, recorder.kernels)
        whole += min(_seconds(recorder.machine, num_rows, len(rows), parts) for _ in range(runs))

    if not model.shape.states:  # which take in each row once
        model.evaluate(rows)
    model.evaluate(rows, lambda: add(count, tape.whole if outputs == count else tape.kept))
    if 0 < outputs < count:  # `tape.rest` is planned by the evaluation above
        add(outputs, tape.rest)
    operations = {
        name: {"seconds": found, "count": number[name], "bytes": read[name]} for name, found in seconds.most_common()
    }
    return {"seconds": whole, "operations": operations}


def _seconds(machine: Machine, rows: int, sequences: int, tape: Sequence[Part]) -> float:
    begin = perf_counter()
    machine.step(rows, tape, runs=sequences)
    return perf_counter() - begin


def _least(machine: Machine, rows: int, sequences: int, records: list[NDArray[np.int64]], runs: int) -> list[float]:
    """Return the minimum seconds of each record of the planned step, run alone."""
    for record in records:
        BARRIER.set(record, has_barrier=1)  # without it, a step would end before all of its pieces are computed
    tapes = [[Part(None, np.stack([record, np.zeros_like(record)]))] for record in records]
    least = [float("inf")] * len(tapes)
    for _ in range(runs):
        for index, tape in enumerate(tapes):
            least[index] = min(least[index], _seconds(machine, rows, sequences, tape))
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
    tokens = random_prompts(model.vocab_size, rows, 1, seed=rows)
    return [Row(each, tokens[each], context, tables[each], 1, state=each) for each in range(rows)]


def prefilled(model: ModelRunner, recorder: Recorder, tokens: int, runs: int) -> dict[str, Any]:
    """Return what `measured` returns, of all chunks of a prompt together."""
    table, chunk = range(model.shape.blocks_for(tokens)), model.shape.max_prefill_tokens
    if len(table) > model.blocks or tokens >= model.context_length:
        raise BenchmarkError(f"A prompt of {tokens} tokens does not fit into the KV cache.")
    [prompt] = random_prompts(model.vocab_size, 1, tokens, seed=tokens)
    seconds, operations = 0.0, dict[str, Any]()
    for start in range(0, tokens, chunk):
        row = Row(0, prompt[start : start + chunk], start, table, int(start + chunk >= tokens))
        step = measured(model, recorder, [row], runs)
        seconds += step["seconds"]
        for name, each in step["operations"].items():
            before = operations.get(name, dict.fromkeys(each, 0))
            operations[name] = {key: before[key] + each[key] for key in each}
    ranked = sorted(operations.items(), key=lambda pair: -pair[1]["seconds"])
    return {"seconds": seconds, "operations": dict(ranked)}


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("operations", __doc__)
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
    parser.add_argument("--threads", type=int, default=compute_threads(), help="default: one per core")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    with recording() as recorder:
        model, _ = load(options.model, options.precision, threads=options.threads)
    if any(part.needs is not None for part in recorder.tape.parts):
        raise BenchmarkError("the model does not fit into memory")
    memory = Bench(compiled([]), options.threads, 1, 1)
    limits: list[float] = []
    figures = {}
    try:
        for rows in options.rows:
            limits += (memory.read_limit() for _ in range(LIMIT_ROUNDS))
            figures[f"{rows} rows"] = measured(model, recorder, decoding(model, rows, options.context), options.runs)
        for tokens in options.prefill:
            figures[f"a prompt of {tokens}"] = prefilled(model, recorder, tokens, options.runs)
    finally:
        model.close()
    limit = max(limits, default=0.0)
    if limit:
        print(f"memory: {limit:.1f} GB/s")
    for name, found in figures.items():
        print(step_lines(name, found))
    report({"read_gb_s": limit, "steps": figures})


def step_lines(name: str, step: dict[str, Any]) -> str:
    """Return the figures of a step for the terminal."""
    total = sum(each["seconds"] for each in step["operations"].values())
    read = sum(each["bytes"] for each in step["operations"].values())
    rate = f"{read / 1e6:.0f} MB of weights at {read / step['seconds'] / 1e9:.1f} GB/s"
    lines = [f"{name}: {total * 1e3:.2f} ms, as a whole {step['seconds'] * 1e3:.2f} ms: {rate}"]
    for operation, each in step["operations"].items():
        rate = f"{each['bytes'] / each['seconds'] / 1e9:6.1f} GB/s" if each["bytes"] else " " * 11
        share, milliseconds = each["seconds"] / total, each["seconds"] * 1e3
        lines.append(f"  {share:6.1%} {milliseconds:9.2f} ms {rate} {each['count']:5} x {operation}")
    return "\n".join(lines)


if __name__ == "__main__":
    measure.run(arguments(), main)
