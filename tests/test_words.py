"""The code speaks the field's English: words of the old private dialect do not come back (docs/glossary.md)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UNITS = "second|token|line|row|request|choice|round|client|message|minute|core|thread|alternative"
COUNTED = "tokens|requests|entries|entry|bytes|rows|blocks|steps|one|lines?|times|MiB|GiB|MB|µs|keys?|chunks?|calls?"

OLD_WORDS = {
    r"\b(gives|is told|are told|was told|been told|told that|(is|are) made ready|makes ready)\b": "return, yield, send",
    r"\b(guess|guesses|guessed|guessing|foretold|mistaken)\b": "draft, accepted, rejected",
    r"\b(unforked|untold|awaited_|WaitingLine|waiting lines?)\b": "forks_pending, undelivered, waiting queue",
    r"\b(BRIEF|brief prompts?|brief ones|prompt readers)\b": "short prompt",
    r"\b(are|is|all|running) writers?\b|\bwriters? (runs?|waits?|decodes?)\b": "decoding sequence",
    r"\bprompts? (is|are|was|were|has been|have been|being) read\b|\breads? (a|the|its|their) prompts?\b": "prefill",
    r"\b(Piece|PieceOf|piece_of|Screen|Screened|screened|ThoughtCounter|thoughts)\b": "text delta, filter, reasoning",
    r"\b(drawn tokens?|token is drawn|DRAWING_REVISION)\b": "sampled token, SAMPLING_REVISION",
    r"\b(chain_of|blocks_short|hand_back|open_closed|as_told)\b": "block hash, drop file pages, convert error",
    r"\b_?(MOST|LEAST|GREATEST|GENTLE|HOPE|UNNOTICED|MOMENT)(_[A-Z_]+)?\b": "MAX_…, MIN_…",
    r"\b(asker|whom|engine's death|engine died|is dead because)\b": "client, caller; crash reason",
    rf"\b({COUNTED}) an? ({UNITS})\b": "per",
    r"(?<!here )\b(is|are) no (name|setting|flag|model|address|file|folder|number|key|decoder|text)\b": "is not a …",
}
"""What must not be written, and what to write instead."""

EXCEPTIONS = {
    "tests/test_words.py",
    "docs/glossary.md",  # explains them
    "docs/reference/parity.md",  # quotes other APIs
    "src/onward/models/storyteller/CREDITS.md",
}
PLAIN_ENGLISH = ("gives its ", "gives all its ", "gives the same ", "gives each thread", "Most prompt tokens")
"""Uses that are not of the dialect: a sequence gives its blocks back."""


def files() -> list[Path]:
    """Python sources and pages that git tracks, or all of them where there is no checkout."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "*.py", "*.md", "*.toml", "*.yml", "Makefile"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        folders = (ROOT / name for name in ("src", "tests", "benchmarks", "training", "docs"))
        listed = [str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("*.[pm][yd]")]
    return [ROOT / name for name in listed if name not in EXCEPTIONS]


@pytest.mark.parametrize("pattern", OLD_WORDS)
def test_old_words_do_not_come_back(pattern: str) -> None:
    found = []
    for path in files():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            for phrase in PLAIN_ENGLISH:
                line = line.replace(phrase, "")
            if re.search(pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, f"say {OLD_WORDS[pattern]!r} instead:\n" + "\n".join(found)


def test_the_check_reads_the_sources() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in files()}
    assert {"README.md", "src/onward/engine/step.py", "benchmarks/README.md", "training/README.md"} <= names
