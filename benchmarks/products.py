"""Products of weights against the machine's limits: GB/s and GMAC/s of each type, by the number of rows.

Limits are measured in the same run, on the same threads: reading memory, multiplying float32 in registers (fma), and
int8 (dpbusd, or maddubs and maddwd). `python -m benchmarks.products --json benchmarks/figures/products.json --plot
docs/images/products.svg`; figures are medians of rounds in which everything takes its turn. `--exact-host` compares
kernels as they are with some that are compiled for exactly this processor instead.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure
from benchmarks.chart import Panel, Series, chart
from onward.kernels.activations import ACTIVATIONS, ActivationName
from onward.kernels.code import Code, link
from onward.kernels.compiler import compile_object
from onward.kernels.function import Function, Module
from onward.kernels.isa import Isa
from onward.kernels.memory import address, untouched
from onward.kernels.products import OUT_BYTES, ProductKind, emit_product
from onward.kernels.records import PRODUCT
from onward.kernels.targets import Target, exact_host, host
from onward.kernels.type_table import WEIGHT_TYPES
from onward.kernels.values import F32, I8, I32, I64, PTR, vec
from onward.kernels.weight_types import PANEL_ROWS, FloatType
from onward.machine import compute_threads

OUTPUTS, INPUTS = 65_536, 4_096
"""Of the matrix: larger than caches with every type."""
CACHED = 256, 4_096
"""Of one that the second-level cache has room for: there, code decides, not memory."""
ROWS = (1, 2, 8, 32, 128)
COMPARED_ROWS = (1, 8, 32)
"""With which the forms of activations are compared."""
READ_BYTES = 256 << 20
SUMS = 12
"""Independent sums in registers, so that no instruction waits for the one before."""
TURNS = 20_000_000
PLOTTED = ("Q4_0", "Q4_K", "Q8_0")
_P, _I = ctypes.c_void_p, ctypes.c_int64


def kinds(names: Sequence[str], forms: Sequence[ActivationName]) -> list[ProductKind]:
    """Return the products of these types with these forms of activations; float types have float32 alone."""
    return [
        ProductKind(name, form)
        for name in names
        for form in forms
        if form == "float32" or not isinstance(WEIGHT_TYPES[name], FloatType)
    ]


def write_limits(module: Module, isa: Isa) -> None:
    """Write read(memory, bytes, target), fma(memory, turns) and dot(memory, turns)."""
    line = vec(I64, 8)
    f = Function(module, "read", [PTR, I64, PTR], exported=True)
    memory, size, target = f.args
    totals = [f.var(line, 0) for _ in range(4)]
    with f.loop(0, size, 64 * len(totals)) as at:
        for i, total in enumerate(totals):
            total.set(total.value ^ f.load(memory, line, at + 64 * i))
    for i, total in enumerate(totals):
        f.store(total.value, target, 64 * i)
    f.ret()

    f = Function(module, "fma", [PTR, I64], exported=True)
    memory, turns = f.args
    t = vec(F32, isa.width // 4)
    sums = [f.var(t, f.load(memory, t, 64 * i)) for i in range(SUMS)]
    factor = f.load(memory, t, 64 * SUMS)
    with f.loop(0, turns):
        for each in sums:
            each.set(f.fma(each.value, factor, factor))
    for i, each in enumerate(sums):
        f.store(each.value, memory, 64 * i)
    f.ret()

    f = Function(module, "dot", [PTR, I64], exported=True)
    memory, turns = f.args
    counts, numbers = vec(I32, isa.width // 4), vec(I8, isa.width)
    totals = [f.var(counts, f.load(memory, counts, 64 * i)) for i in range(SUMS)]
    ones = f.const(vec(I32, isa.width // 4), 1)
    with f.loop(0, turns):
        for each in totals:
            x = each.value.as_(numbers)  # depends on the sum: no turn can be left out
            if isa.has_dot:
                each.set(isa.dpbusd(f, each.value, x, x))
            else:
                words = isa.maddubs(f, x, x)
                each.set(each.value + isa.maddwd(f, words, ones.as_(words.t)))
    for i, each in enumerate(totals):
        f.store(each.value, memory, 64 * i)
    f.ret()


def compiled(wanted: Sequence[ProductKind], target: Target | None = None) -> Code:
    """Return the code of the limits and of these products, by default as it is usually compiled for this processor."""
    target = target or host()
    module = Module("products", target.isa.soft)
    write_limits(module, target.isa)
    for kind in wanted:
        emit_product(module, target.isa, kind)
    return link([compile_object(module.text(), target)], target)


class Bench:
    """Runs functions on `threads` threads at once, each on a part of its own."""

    def __init__(self, code: Code, threads: int, outputs: int, inputs: int) -> None:
        self._code, self._threads, self._outputs, self._inputs = code, threads, outputs, inputs
        self._pool = ThreadPoolExecutor(threads)
        self._weights = untouched(max(READ_BYTES, outputs * inputs * 4))
        self._weights[:] = 0x11  # every page is resident, and no number is a denormal
        self._scratch = [untouched(1 << 20) for _ in range(threads)]

    def seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """Return the seconds of calls that start together, one per thread."""
        begin = time.perf_counter()
        for job in [self._pool.submit(call) for call in calls]:
            job.result()
        return time.perf_counter() - begin

    def read_limit(self) -> float:
        """Return GB/s."""
        function, size = self._code.function("read", [_P, _I, _P]), READ_BYTES // self._threads // 4096 * 4096
        calls = [
            partial(function, address(self._weights) + size * i, size, address(scratch))
            for i, scratch in enumerate(self._scratch)
        ]
        return size * self._threads / self.seconds(calls) / 1e9

    def compute_limit(self, name: str, products: int, turns: int) -> float:
        """Return GMAC/s of "fma" or "dot", whose instruction has so many products."""
        function = self._code.function(name, [_P, _I])
        calls = [partial(function, address(scratch), turns) for scratch in self._scratch]
        return turns * SUMS * products * self._threads / self.seconds(calls) / 1e9

    def product(self, kind: ProductKind, rows: int) -> dict[str, float]:
        """Return GB/s of weights and GMAC/s."""
        source: NDArray[np.uint8] = np.full(
            (rows, ACTIVATIONS[kind.activations].row_bytes(self._inputs)), 0x3B, np.uint8
        )
        out = np.zeros((rows, self._outputs), np.float32)
        panels, blocks = self._outputs // PANEL_ROWS, self._inputs // kind.type.block_weights
        panel_bytes = blocks * kind.type.panel_block_bytes
        record = PRODUCT.record(
            0, panels=self._weights, panel_bytes=panel_bytes, blocks=blocks, num_panels=panels, source=source,
            source_stride=source.shape[1], target=out, target_stride=panels * OUT_BYTES, bias=0, is_added=0, claim=1,
            scale=1.0,
        )  # fmt: skip
        function = self._code.function(f"product_{kind.name}", [_P, _I, _I, _I, _P])
        edges = [panels * i // self._threads for i in range(self._threads + 1)]
        calls = [
            partial(function, address(record), edges[i], edges[i + 1], rows, address(scratch))
            for i, scratch in enumerate(self._scratch)
        ]
        seconds = self.seconds(calls)
        return {"gb_s": panels * panel_bytes / seconds / 1e9,
                "gmac_s": rows * self._outputs * self._inputs / seconds / 1e9}  # fmt: skip


def run(
    wanted: Sequence[ProductKind], threads: int, rounds: int, outputs: int, inputs: int, turns: int
) -> dict[str, Any]:
    """Return medians over rounds: limits, and products by name and rows."""
    bench, width = Bench(compiled(wanted), threads, outputs, inputs), host().isa.width
    limits: dict[str, list[float]] = {"read_gb_s": [], "fma_gmac_s": [], "dot_gmac_s": []}
    found: dict[str, dict[int, list[dict[str, float]]]] = {kind.name: {rows: [] for rows in ROWS} for kind in wanted}
    for _ in range(rounds):
        limits["read_gb_s"].append(bench.read_limit())
        limits["fma_gmac_s"].append(bench.compute_limit("fma", width // 4, turns))
        limits["dot_gmac_s"].append(bench.compute_limit("dot", width, turns))
        for kind in wanted:
            for rows in ROWS:
                found[kind.name][rows].append(bench.product(kind, rows))
    return {
        "isa": host().isa.name, "threads": threads, "matrix": [outputs, inputs],
        "limits": {name: statistics.median(values) for name, values in limits.items()},
        "products": {
            name: {str(rows): {key: statistics.median(each[key] for each in runs) for key in runs[0]}
                   for rows, runs in by_rows.items()}
            for name, by_rows in found.items()
        },
    }  # fmt: skip


def exact_host_lines(wanted: Sequence[ProductKind], rounds: int, outputs: int, inputs: int) -> list[str]:
    """Return a table in Markdown: how many times as fast kernels for exactly this processor are, on one thread."""
    benches = [Bench(compiled(wanted, target), 1, outputs, inputs) for target in (exact_host(), host())]
    lines = ["| weights, activations | " + " | ".join(f"{rows} rows" for rows in ROWS) + " |"]
    lines.append("|---|" + "--:|" * len(ROWS))
    for kind in wanted:
        cells = []
        for rows in ROWS:
            each = [[bench.product(kind, rows)["gmac_s"] for bench in benches] for _ in range(rounds)]
            exact, usual = (statistics.median(rates) for rates in zip(*each, strict=True))
            cells.append(f"{exact / usual:.2f}")
        lines.append(f"| {kind.weights}, {kind.activations} | {' | '.join(cells)} |")
    return lines


def products_section(figures: dict[str, Any]) -> list[str]:
    """Return a table in Markdown: GB/s of one row, GMAC/s of each number of rows."""
    limits = figures["limits"]
    lines = [
        f"{figures['isa']}, {figures['threads']} threads. Limits in the same run: memory {limits['read_gb_s']:.1f} "
        f"GB/s, fma {limits['fma_gmac_s']:.0f} GMAC/s, int8 {limits['dot_gmac_s']:.0f} GMAC/s.",
        "",
        "![Products per second against rows](../docs/images/products.svg)",
        "",
        "| weights, activations | GB/s at 1 row | of memory | "
        + " | ".join(f"GMAC/s at {rows}" for rows in ROWS)
        + " |",
        "|---|--:|--:|" + "--:|" * len(ROWS),
    ]
    for name, by_rows in figures["products"].items():
        one = by_rows["1"]["gb_s"]
        rates = [f"{by_rows[str(rows)]['gmac_s']:.1f}" for rows in ROWS]
        lines.append(
            f"| {name.replace('_int', ', int').replace('_float', ', float')} | {one:.1f} "
            f"| {one / limits['read_gb_s']:.0%} | {' | '.join(rates)} |"
        )
    return [*lines, "", *_forms_table(figures)]


def _forms_table(figures: dict[str, Any]) -> list[str]:
    """Return a table in Markdown: how long products with the other forms of activations take, of int8's time."""
    others = list(dict.fromkeys(name.rpartition("_")[2] for name in figures["products"] if "_int8" not in name))
    rows = [str(count) for count in COMPARED_ROWS]
    lines = [
        f"Time of a product with {' / '.join(rows)} rows, as a multiple of its time with int8:",
        "",
        f"| weights | {' | '.join(others)} |",
        "|---|" + "--:|" * len(others),
    ]
    for name, by_rows in figures["products"].items():
        weights, _, form = name.rpartition("_")
        if form == "int8":
            found = [figures["products"].get(f"{weights}_{other}") for other in others]
            cells = [
                " / ".join(f"{by_rows[count]['gmac_s'] / each[count]['gmac_s']:.2f}" for count in rows) if each else "–"
                for each in found
            ]
            lines.append(f"| {weights} | {' | '.join(cells)} |")
    return lines


def plot(figures: dict[str, Any]) -> str:
    """Return an SVG: GMAC/s against rows, with the limit of the arithmetic, a panel per form of activations."""
    panels = []
    for form, limit in (("int8", "dot_gmac_s"), ("float32", "fma_gmac_s")):
        names = [name for name in PLOTTED if f"{name}_{form}" in figures["products"]][:2]
        series = [
            Series(name, [(rows, figures["products"][f"{name}_{form}"][str(rows)]["gmac_s"]) for rows in ROWS])
            for name in names
        ]
        if series:
            series.append(Series("limit", [(rows, figures["limits"][limit]) for rows in ROWS]))
            panels.append(Panel(f"GMAC/s, {form} activations", "rows", series, log_x=True))
    return chart(panels)


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("products", __doc__)
    parser.add_argument("--types", nargs="*", default=list(WEIGHT_TYPES), choices=list(WEIGHT_TYPES), metavar="TYPE")
    parser.add_argument("--activations", nargs="*", default=list(ACTIVATIONS), choices=list(ACTIVATIONS))
    parser.add_argument("--threads", type=int, default=compute_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--exact-host", action="store_true", help="compare with kernels for exactly this processor")
    parser.add_argument("--plot", type=Path, help="write an SVG here")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    wanted = kinds(options.types, options.activations)
    if options.exact_host:
        print("\n".join(exact_host_lines(wanted, options.rounds, *CACHED)))
        return
    figures = run(wanted, options.threads, options.rounds, OUTPUTS, INPUTS, TURNS)
    print("\n".join(products_section(figures)))
    report(figures)
    if options.plot:
        options.plot.write_text(plot(figures), encoding="utf-8")


if __name__ == "__main__":
    measure.run(arguments(), main)
