"""README section of `benchmarks.speculation`."""

from __future__ import annotations

from typing import Any

HEAD = (
    "| model | text | clients | tok/s without | all output (least to greatest round) | median turn | decode only "
    "| per CPU second | steps | drafts accepted |",
    "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
)
MEDIANS = (
    "| model | kind of text, median case | all output (least case) | median turn | decode only | per CPU second |",
    "|---|---|--:|--:|--:|--:|",
)
TITLES = {
    "prediction": "copied, with `prediction`",
    "lookup": "copied from the prompt, no `prediction`",
    "unpredictable": "nothing to copy",
    "together": "copied by many, with `prediction`",
}
RATIOS = ("turn_ratio", "decode_ratio", "cpu_ratio")


def speculation_section(figures: dict[str, Any]) -> list[str]:
    """Return ratios of tokens per second, with speculation to without, as Markdown lines: medians per kind, all
    cases."""
    medians, rows, forcing = [], [], [0.0]
    for model, found in figures.items():
        medians += [_medians_row(model, kind, each) for kind, each in found["medians"].items()]
        rows += [_case_row(model, case) for case in found["cases"]]
        forcing += [case["forcing_fraction"] for case in found["cases"]]
    return [
        "Tokens per second with speculation relative to without:",
        "",
        *MEDIANS,
        *medians,
        "",
        *HEAD,
        *rows,
        "",
        f"Forcing the text took at most {max(forcing):.1%} of an arm's time.",
    ]


def _medians_row(model: str, kind: str, found: dict[str, float]) -> str:
    cells = [
        model,
        TITLES[kind],
        f"**{found['ratio']:.2f}** ({found['least']:.2f})",
        *(f"{found[key]:.2f}" for key in RATIOS),
    ]
    return f"| {' | '.join(cells)} |"


def _case_row(model: str, case: dict[str, Any]) -> str:
    ratio, steps, drafts = case["ratio"], case["steps"], case["drafts"]
    accepted = sum(count for key, count in drafts.items() if key.endswith("accepted"))
    cells = [
        model,
        f"{case['name']} ({case['kind']})",
        str(case["clients"]),
        f"{case['tok_s']['off']['median']:,.0f}",
        f"{ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['greatest']:.2f})",
        *(f"{case[key]['median']:.2f}" for key in RATIOS),
        f"{steps['off']:.0f} → {steps['on']:.0f}",
        f"{accepted:.0f} of {sum(drafts.values()):.0f}",
    ]
    return f"| {' | '.join(cells)} |"
