"""Write the figures of JSON reports to README.md, each with the command that measured it.

`python -m benchmarks.render` reads the reports in benchmarks/figures/ and replaces the text between the markers; a
missing report is shown as not measured yet.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.products import products_section
from benchmarks.render_abuse import abuse_section
from benchmarks.render_reach import compare_section, reach_section
from benchmarks.render_scale import engine_process_section, queueing_section, soak_section, sweep_section
from benchmarks.render_speculation import speculation_section

HERE = Path(__file__).parent
BEGIN, END = "<!-- figures: written by benchmarks/render.py -->", "<!-- end of figures -->"
NOT_YET = "Not measured yet on a quiet machine."
DEFAULT_COMMANDS = {
    "engine": "python -m benchmarks.engine --json benchmarks/figures/engine.json",
    "engine-qwen05b": "python -m benchmarks.engine --model .peers/models/qwen05b-Q8_0.gguf --clients 1 8 32 "
    "--waves 6 6 4 --rounds 3 --json benchmarks/figures/engine-qwen05b.json",
    "compare-qwen-coder": "python -m benchmarks.compare --model Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf --untuned "
    "--rounds 3 --waves 2 --top-k-off 0 --json benchmarks/figures/compare-qwen-coder.json",
    "compare-smollm2": "python -m benchmarks.compare --model SmolLM2-135M-Instruct.Q4_1.gguf --untuned --rounds 5 "
    "--waves 2 --top-k-off 0 --json benchmarks/figures/compare-smollm2.json",
    "compare-storyteller": "python -m benchmarks.compare storyteller "
    "--json benchmarks/figures/compare-storyteller.json",
    "engine-process-05b": "python -m benchmarks.engine_process --model .peers/models/qwen05b-Q8_0.gguf "
    "--token-range 256:151936 --kv-memory 1GB --waves 1 --out 32 --json benchmarks/figures/engine-process-05b.json",
    "engine-process": "python -m benchmarks.engine_process --rounds 15 --json benchmarks/figures/engine-process.json",
    "reach": "python -m benchmarks.reach storyteller .peers/models/qwen05b-Q8_0.gguf "
    "--json benchmarks/figures/reach.json",
    "speculation": "python -m benchmarks.speculation --model storyteller .peers/models/qwen05b-Q8_0.gguf --rounds 1 "
    "--out 64 --json benchmarks/figures/speculation.json",
    "sweep": "python -m benchmarks.sweep --json benchmarks/figures/sweep.json --plot docs/images/throughput.svg",
    "queueing": "python -m benchmarks.queueing --json benchmarks/figures/queueing.json",
    "soak": "python -m benchmarks.soak --json benchmarks/figures/soak.json --plot docs/images/memory.svg",
    "abuse": "python -m benchmarks.abuse --json benchmarks/figures/abuse.json",
    "startup": "python -m benchmarks.startup --json benchmarks/figures/startup.json",
    "products": "python -m benchmarks.products --json benchmarks/figures/products.json --plot docs/images/products.svg",
}


def engine_section(figures: dict[str, Any]) -> list[str]:
    """Return throughput, latency and memory as Markdown lines."""
    lines = [
        "| clients | | output tok/s | of bare (least to greatest round) | while all clients have work "
        "| full decode steps, of bare | TTFT p50 / p95, ms | between tokens p50 / p95, ms |",
        "|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    for clients, arms in figures["clients"].items():
        lines += [_arm_row(clients, name, arms[name]) for name in sorted(arms, key=_arm_order)]
    return [*lines, "", *_parts_table(figures["clients"]), _memory_line(figures["memory"])]


def _parts_table(clients: dict[str, Any]) -> list[str]:
    """Return where the time of a token goes, nothing if that was not measured."""
    columns = [(name, part) for name, arm in next(iter(clients.values())).items() for part in arm.get("parts_us", ())]
    if not columns:
        return []
    heads = [f"{name}: {part}" for name, part in columns]
    lines = [
        "Microseconds per output token: of bare loop and engine, time of their thread by part; with the server, "
        "processor time of each process, the engine's with all its threads.",
        "",
        f"| clients | {' | '.join(heads)} |",
        "|--:|" + "--:|" * len(columns),
    ]
    for count, arms in clients.items():
        cells = (f"{arms[name]['parts_us'][part]:,.0f}" for name, part in columns)
        lines.append(f"| {count} | {' | '.join(cells)} |")
    return [*lines, ""]


def _arm_order(name: str) -> int:
    return ["bare", "engine", "server"].index(name)


def _arm_row(clients: str, name: str, found: dict[str, Any]) -> str:
    ratios = [found.get(key) if name != "bare" else None for key in ("of_bare", "steady_of_bare")]
    cells = [
        clients,
        name,
        f"{found['tok_s']['median']:,.0f}",
        *(_spread(ratio) if ratio else "–" for ratio in ratios),
        f"{found['decode_of_bare']['median']:.1%}" if "decode_of_bare" in found and name != "bare" else "–",
    ]
    for key in ("ttft_ms", "itl_ms"):
        cells.append(f"{found[key]['p50']:.1f} / {found[key]['p95']:.1f}" if key in found else "–")
    return "| " + " | ".join(cells) + " |"


def _spread(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.1%} ({ratio['least']:.1%} to {ratio['greatest']:.1%})"


def _memory_line(memory: dict[str, Any] | None) -> str:
    if memory is None:
        return "Memory: this system does not report it."
    memory = memory | {"resident": memory["anonymous"] + memory["file"] + memory["kv"]}
    sizes = {name: f"{size / 2**20:,.0f} MiB" for name, size in memory.items()}
    return (
        f"Server's memory after these runs: {sizes['resident']} resident (peak, while loading or later: "
        f"{sizes['peak']}), of which weights {sizes['weights']} (the file's size) and KV cache {sizes['kv']}; "
        f"**{sizes['above_weights_and_kv']} above both**."
    )


def startup_section(figures: dict[str, Any]) -> list[str]:
    """Return times of whole processes as Markdown lines."""
    rows = {
        "`import onward`, less an empty interpreter": figures["import"]["seconds"],
        "`onward serve` until it is ready": figures["serve"]["ready"],
        "`onward serve` until the first token of a first request": figures["serve"]["token"],
        "`onward completions create` until the first character": figures["create"]["token"],
    }
    lines = ["| from process start | ms, median (least to greatest) |", "|---|--:|"]
    for name, found in rows.items():
        cells = (f"{found[key] * 1e3:,.0f}" for key in ("median", "least", "greatest"))
        lines.append("| {} | {} ({} to {}) |".format(name, *cells))
    heaviest = ", ".join(
        f"`{entry['module']}` {entry['cumulative_ms']:.0f} ms" for entry in figures["imports_of_create"]
    )
    return [*lines, "", f"Slowest imports of the last, each including what it imports: {heaviest}."]


SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], list[str]]]] = {
    "engine-qwen05b": ("Against the bare loop, 0.5B shape", engine_section),
    "engine": ("Against the bare loop, storyteller", engine_section),
    "compare-qwen-coder": ("Against llama-server, Qwen2.5-Coder 1.5B Q4_K_M", compare_section),
    "compare-smollm2": ("Against llama-server, SmolLM2 135M Q4_1", compare_section),
    "compare-storyteller": ("Against llama-server, storyteller", compare_section),
    "engine-process-05b": ("A process of its own, 0.5B shape", engine_process_section),
    "engine-process": ("A process of its own, storyteller", engine_process_section),
    "reach": ("Reach", reach_section),
    "speculation": ("Speculation", speculation_section),
    "sweep": ("More clients", sweep_section),
    "queueing": ("A longer queue", queueing_section),
    "soak": ("Many requests", soak_section),
    "abuse": ("Abusive requests", abuse_section),
    "startup": ("Start", startup_section),
    "products": ("Products of weights beside the machine's limits", products_section),
}


def section(name: str, report: dict[str, Any] | None) -> str:
    """Return heading, command, machine and tables of one report as Markdown."""
    title, write = SECTIONS[name]
    command = report["command"] if report else DEFAULT_COMMANDS[name]
    lines = [f"### {title}", "", f"`{command}`", ""]
    if report is None:
        return "\n".join([*lines, NOT_YET])
    return "\n".join([*lines, _machine_line(report["machine"]), "", *write(report["figures"])])


def _machine_line(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:.0f} GiB; {machine['system']}, "
        f"Python {machine['python']}, llvmlite {machine['llvmlite']}; load average at the start "
        f"{machine['load']}; {machine['date']}."
    )


def fill(page: str, reports: dict[str, dict[str, Any] | None]) -> str:
    """Return the page with its figures replaced. Raises ValueError if the markers are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page lacks the markers {BEGIN} and {END}")
    sections = "\n\n".join(section(name, reports.get(name)) for name in SECTIONS)
    return f"{before}{BEGIN}\n\n{sections}\n\n{END}{after}"


def read_report(path: Path) -> dict[str, Any] | None:
    """Return a JSON report, None if the file does not exist."""
    if not path.is_file():
        return None
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=__doc__)
    parser.add_argument("--figures", type=Path, default=HERE / "figures", help="folder of JSON reports")
    parser.add_argument("--page", type=Path, default=HERE / "README.md", help="the page to update")
    options = parser.parse_args()
    reports = {name: read_report(options.figures / f"{name}.json") for name in SECTIONS}
    page = options.page.read_text(encoding="utf-8")
    options.page.write_text(fill(page, reports), encoding="utf-8")


if __name__ == "__main__":
    measure.run_main(main)
