"""Writes docs/reference/clients.md: the table that the last run printed, with versions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from .report import Report

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "clients.md"
HEAD = """\
# Clients that work with Onward

<!-- Written by `make clients ARGS=--write`. Do not edit. -->

`make clients` starts real servers, installs every client below into an environment of its own (under
`.venv-clients/`, on demand) and runs it against them over a socket. A client that cannot be installed is skipped
with the reason, and the command then fails. [Use it with your client](../how-to/clients.md) has the settings of each.

One of them, lm-eval's `gguf`, needs `onward serve --profile lenient` and is tested with it. [Serve
it](../how-to/serve.md#programs-that-the-default-refuses) lists editors and other programs that need this profile, and
what it permits.

| client | version | checks | result |
|---|---|---|---|
"""
TAIL = """
"Its rules" and "its reader" are clients that are not installed: a strict reader modelled on their sources
(`tests/clients/wire.py`) checks what they require of a response.

## What is checked
"""


def write_page(reports: Sequence[Report], order: Sequence[str], python: str) -> None:
    """Write the page: the clients of these reports, and all others of `order` as the page has them. `python` is the
    version that the clients ran on."""
    before = PAGE.read_text(encoding="utf-8")
    rows = {name: row for row, name in re.findall(r"^(\| ([^|]+) \| [^|]* \| \d+ \| .*)$", before, re.MULTILINE)}
    lists = {name: each for each, name in re.findall(r"^(\*\*(.+?)\*\*: .*)$", before, re.MULTILINE)}
    for report in reports:
        rows[report.client] = f"| {report.client} | {report.version} | {len(report.checks)} | {report.verdict} |"
        lists[report.client] = f"**{report.client}**: " + "; ".join(name for name, _ in report.checks) + "."
    table = "".join(f"{rows[name]}\n" for name in order if name in rows)
    checks = "".join(f"\n{lists[name]}\n" for name in order if name in lists)
    PAGE.write_text(f"{HEAD}{table}\nPython {python}.\n{TAIL}{checks}", encoding="utf-8")
