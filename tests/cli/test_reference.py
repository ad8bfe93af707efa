"""The reference page shows the commands' own help."""

from __future__ import annotations

from pathlib import Path

from onward.cli.reference import page
from onward.cli.request.flags import request_flags
from onward.cli.root import COMMANDS

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "cli.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m onward.cli.reference > docs/reference/cli.md"


def test_every_flag_and_argument_has_a_meaning() -> None:
    assert "|  |" not in page() and "such as . " not in page()


def test_the_page_has_every_command_and_every_flag() -> None:
    text = page()
    for name in COMMANDS:
        assert f"## onward {name}" in text
    for flag in request_flags():
        assert flag.flag in text
