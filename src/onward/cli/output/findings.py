"""The findings of `onward doctor`, as a report."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

from onward.cli.output.terminal import Style, pluralize, style_of, visible

State = Literal["good", "note", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `advice` says what to do if it is not good."""

    subject: str
    state: State
    words: str
    advice: str = ""

    def as_object(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return {"subject": self.subject, "state": self.state, "words": self.words, "advice": self.advice or None}


def shown(findings: list[Finding], verdict: str) -> str:
    """Return the report. `verdict` is its last line if nothing is bad."""
    style = style_of(sys.stdout)
    width = max(len(visible(each.subject)) for each in findings)
    lines: list[str] = []
    for each in findings:
        lines.append(f"{_mark(each.state, style)} {visible(each.subject):<{width}}  {visible(each.words)}")
        if each.advice:
            lines.append(f"  {'':<{width}}  {style.dim(visible(each.advice))}")
    bad = sum(each.state == "bad" for each in findings)
    return "\n".join([*lines, "", style.bold(f"{pluralize(bad, 'problem')} found." if bad else verdict)])


def _mark(state: State, style: Style) -> str:
    return {"good": style.green("✓"), "note": style.yellow("!"), "bad": style.red("✗")}[state]
