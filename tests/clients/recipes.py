"""The settings that docs/how-to/editors.md shows, a block per section: editors are run with these very settings."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "editors.md"
LANGUAGES = "json|yaml|vim|lua|toml"


def recipes() -> dict[str, str]:
    """Return the settings by the heading of their section."""
    found = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading = section.partition("\n")[0]
        blocks = re.findall(rf"^```(?:{LANGUAGES})\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        if blocks:
            (found[heading],) = blocks
    return found
