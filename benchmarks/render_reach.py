"""README sections of `benchmarks.compare` and `benchmarks.reach`."""

from __future__ import annotations

from typing import Any

ARMS = (
    "| model | clients | | output tok/s | TTFT p50 / p95, ms | between tokens p50 / p95, ms |",
    "|---|--:|---|--:|--:|--:|",
)
RATIOS = (
    "| model | clients | ratio | output tok/s | TTFT p50 | TTFT p95 | between tokens p50 | between tokens p95 |",
    "|---|--:|---|--:|--:|--:|--:|--:|",
)
RATIO_KEYS = ("tok_s", "ttft_p50", "ttft_p95", "itl_p50", "itl_p95")
SCENARIOS = ("| model | ratio | measured | aim | ms, medians |", "|---|---|--:|--:|---|")


def compare_section(figures: dict[str, Any]) -> list[str]:
    """Return the ratios and then both servers' figures as Markdown lines."""
    arms, ratios, settings, idle, is_tuned = [], [], [], [0.0], False
    for family, by_clients in figures["families"].items():
        for clients, found in by_clients.items():
            idle.append(found["idle_cpu"])
            is_tuned = is_tuned or any(each["tried_tok_s"] for each in found["peer_settings"].values())
            settings += [
                f"{family} {name} with {clients} clients: {each['chosen']}"
                for name, each in found["peer_settings"].items()
            ]
            arms += [_arm_row(family, clients, name, arm) for name, arm in found["arms"].items()]
            ratios += [
                _row(family, clients, f"{mine} : {peer}", *(_ratio(ratio, key) for key in RATIO_KEYS))
                for mine, peers in found["ratios"].items()
                for peer, ratio in peers.items()
            ]
    return [
        "Ratios within one round, median of rounds (least to greatest):",
        "",
        *RATIOS,
        *ratios,
        "",
        *ARMS,
        *arms,
        "",
        f"llama-server: {figures['peer']}. Idle servers used at most {max(idle):.1%} of a core. "
        f"{'Its fastest settings' if is_tuned else 'Its settings, untuned'}: {'; '.join(settings)}.",
    ]


def _arm_row(family: str, clients: str, name: str, arm: dict[str, Any]) -> str:
    times = (f"{arm[key]['p50']:,.1f} / {arm[key]['p95']:,.1f}" for key in ("ttft_ms", "itl_ms"))
    return _row(family, clients, name, f"{arm['tok_s']['median']:,.0f}", *times)


def _ratio(ratio: dict[str, Any], key: str) -> str:
    if key not in ratio:
        return "–"
    found, bold = ratio[key], "**" if key == "tok_s" else ""
    return f"{bold}{found['median']:.2f}×{bold} ({found['least']:.2f} to {found['greatest']:.2f})"


def reach_section(figures: dict[str, Any]) -> list[str]:
    """Return one row per model and scenario as Markdown lines."""
    lines = [*SCENARIOS]
    for model, scenarios in figures["models"].items():
        for found in scenarios.values():
            aim = f"{'≤' if found['lower'] else '≥'} {found['aim']:g}×"
            times = ", ".join(f"{name} {value['median']:,.1f}" for name, value in found["figures_ms"].items())
            lines.append(_row(model, found["what"], _ratio(found, "ratio"), aim, times))
    return lines


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
