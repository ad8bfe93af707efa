"""Writes docs/reference/clients.md and the clients of README: the table that the last run printed, with versions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from .report import Report

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "clients.md"
README = ROOT / "README.md"
IN_README = re.compile(r"(?<=<!-- clients: written by make clients -->\n).*?(?=<!-- /clients -->)", re.DOTALL)
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


def write_page(reports: Sequence[Report], python: str) -> None:
    """Write the page. `python` is the version that the clients ran on."""
    rows = "".join(
        f"| {report.client} | {report.version} | {len(report.checks)} | {report.verdict} |\n" for report in reports
    )
    lists = "".join(
        f"\n**{report.client}**: " + "; ".join(name for name, _ in report.checks) + ".\n" for report in reports
    )
    PAGE.write_text(f"{HEAD}{rows}\nPython {python}.\n{TAIL}{lists}", encoding="utf-8")
    README.write_text(IN_README.sub(lambda _: readme_table(), README.read_text()), encoding="utf-8")


def readme_table() -> str:
    """Return the table for README: the clients of the page that were installed and passed, and their versions."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]*) \| \d+ \| passed \|$", PAGE.read_text(), re.MULTILINE)
    return "| client | version |\n|---|---|\n" + "".join(
        f"| {name} | {version} |\n" for name, version in rows if ", its r" not in name
    )
