"""README sections of `benchmarks.sweep`, `benchmarks.queueing`, `benchmarks.soak` and `benchmarks.engine_process`."""

from __future__ import annotations

from typing import Any


def sweep_section(figures: dict[str, Any]) -> list[str]:
    """Return throughput and latency by number of clients as Markdown lines."""
    lines = [
        "![Throughput and time to first token against clients](../docs/images/throughput.svg)",
        "",
        "| clients | output tok/s (least to greatest round) | TTFT p50 / p95, ms | between tokens p50 / p95, ms |",
        "|--:|--:|--:|--:|",
    ]
    for clients, found in figures["clients"].items():
        rate = found["tok_s"]
        cells = [
            clients,
            f"{rate['median']:,.0f} ({rate['least']:,.0f} to {rate['greatest']:,.0f})",
            _pair(found["ttft_ms"]),
            _pair(found["itl_ms"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _pair(spread: dict[str, float | None]) -> str:
    return " / ".join("–" if (value := spread[key]) is None else f"{value:.1f}" for key in ("p50", "p95"))


def queueing_section(figures: dict[str, Any]) -> list[str]:
    """Return the cost of a request by queue length, then the scheduler's own, as Markdown lines."""
    lines: list[str] = []
    if "http" in figures:
        lines += ["| requests at once | server's processor time per request, ms | output tok/s |", "|--:|--:|--:|"]
        for depth, found in figures["http"].items():
            cost = found["cpu_ms"]
            spent = f"{cost['median']:.1f} ({cost['least']:.1f} to {cost['greatest']:.1f})"
            lines.append(f"| {int(depth):,} | {spent} | {found['tok_s']['median']:,.0f} |")
        lines.append("")
    waiting = list(next(iter(figures["scheduler"].values())))
    lines.append(
        "| scheduler, µs per step, by sequences waiting | " + " | ".join(f"{int(n):,}" for n in waiting) + " |"
    )
    lines.append("|---|" + "--:|" * len(waiting))
    for name, found in figures["scheduler"].items():
        lines.append(f"| {name} | " + " | ".join(f"{found[n]['p50_us']:,.0f}" for n in waiting) + " |")
    return lines


def soak_section(figures: dict[str, Any]) -> list[str]:
    """Return the memory of the server over many requests as Markdown lines."""
    own, left = figures["verdict"]["anonymous"], figures["at_rest"]["left_behind"]
    nothing = "no KV block, sequence or request was left behind"
    return [
        "![Memory of the server against requests](../docs/images/memory.svg)",
        "",
        f"{figures['requests']:,} requests, {figures['left_half_way']:,} of whose clients disconnected early; "
        f"{figures['problem_count']} unexpected responses. Over the second half, anonymous memory went from "
        f"{own['begin_mib']:.1f} to {own['end_mib']:.1f} MiB, {own['growth_mib_per_1000']:+.3f} MiB per thousand "
        f"requests; at the end {nothing if not left else f'this was left: {left}'}.",
    ]


def engine_process_section(figures: dict[str, Any]) -> list[str]:
    """Return what the engine's process costs against a thread, and both servers' memory, as Markdown lines."""
    lines = [
        "| clients | output tok/s, thread | process | of the thread's (least to greatest round) | TTFT p50, ms, thread "
        "| process | added | processor time, of the thread's |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for clients, found in figures["clients"].items():
        thread, process, ratio = found["thread"], found["process"], found["throughput_ratio"]
        cells = [
            clients,
            f"{thread['tok_s']:,.0f}",
            f"{process['tok_s']:,.0f}",
            f"{ratio['median']:.1%} ({ratio['least']:.1%} to {ratio['greatest']:.1%})",
            f"{thread['ttft_ms']:.1f}",
            f"{process['ttft_ms']:.1f}",
            f"{found['ttft_added_ms']['median']:+.1f}",
            f"{found['cpu_ratio']['median']:.1%}" if "cpu_ratio" in found else "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if not figures["memory"]["thread"]:
        return lines
    lines += ["", "| resident after these runs, MiB | anonymous | files | KV cache | all | proportional |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for arm, processes in figures["memory"].items():
        for number, memory in enumerate(processes):
            name = "engine in a thread" if arm == "thread" else "engine's process" if number else "server"
            sizes = (memory[key] / 2**20 for key in ("anonymous", "file", "kv", "resident", "proportional"))
            lines.append(f"| {name} | {' | '.join(f'{size:,.0f}' for size in sizes)} |")
    return lines
