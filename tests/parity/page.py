"""Write docs/reference/parity.md from the rows: `python -m tests.parity.page`."""

from __future__ import annotations

import sys
from pathlib import Path

from .rows import ELSEWHERE, ROWS
from .servers import PROFILES
from .table import Row

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "parity.md"
GOLDEN_CASES = 81
HEAD = """\
# Parity: every behaviour, with its source

<!-- Made by `python -m tests.parity.page` from the rows in tests/parity; a test compares. Do not edit. -->

Each row is a test (`tests/parity`): a request over a real socket to a real `onward serve` process, and
what must come back. Requests show what differs from
`{"model": "toy", "prompt": "Say this is a test", "temperature": 0}`.
"spec" is the behavioural specification that Onward was written from: OpenAI's documents, recordings of its
service, and what real clients need. **Weak** marks rows for which the evidence is thin or contradictory, and says
what we chose.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, summary(), *(section(area) for area in dict.fromkeys(row.area for row in ROWS)), golden()]
    return "\n".join(parts)


def summary() -> str:
    weak = sum(1 for row in ROWS if row.weak)
    servers = "; ".join(f"*{name}*: `{' '.join(flags) or 'no flags'}`" for name, flags in PROFILES.items())
    return f"{len(ROWS)} rows, {weak} of them on weak evidence. Servers: {servers}.\n"


def section(area: str) -> str:
    rows = [row for row in ROWS if row.area == area]
    lines = [f"## {area}\n", "| behaviour | request | answer | source |", "|---|---|---|---|"]
    return "\n".join([*lines, *map(line, rows), ""])


def line(row: Row) -> str:
    behaviour = f"`{row.id}` {cell(row.says)}" + (f"<br>**Weak:** {cell(row.weak)}" if row.weak else "")
    profile = "" if row.on == "default" else f" *({row.on})*"
    golden_cases = "".join(f" G{number}" for number in row.golden)
    return f"| {behaviour} | {code(row.sent)}{profile} | {cell(row.expected)} | {cell(row.source)}{golden_cases} |"


def golden() -> str:
    """Which rows cover which golden case of the specification."""
    lines = ["## Golden cases (spec/completions §13)\n", "| case | rows |", "|---|---|"]
    for number in range(1, GOLDEN_CASES + 1):
        rows = [f"`{row.id}`" for row in ROWS if number in row.golden] + [
            f"`{place}`" for place in ELSEWHERE.get(number, ())
        ]
        lines.append(f"| G{number} | {', '.join(rows)} |")
    return "\n".join([*lines, ""])


def cell(text: str) -> str:
    """Text that neither ends a table's cell nor becomes markup."""
    printable = "".join(one if one.isprintable() else f"\\\\u{ord(one):04x}" for one in text)
    for mark in ("|", "<", "*", "_", "`"):
        printable = printable.replace(mark, f"\\{mark}")
    return printable


def code(text: str) -> str:
    printable = "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text)
    fence = "``" if "`" in printable else "`"
    return fence + printable.replace("|", "\\|") + fence


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {len(ROWS)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
