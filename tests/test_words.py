"""The code speaks the field's English: words of the old private dialect do not come back (docs/glossary.md)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
UNITS = "second|token|line|row|request|choice|round|client|message|minute|core|thread|alternative"
COUNTED = "tokens|requests|entries|entry|bytes|rows|blocks|steps|one|lines?|times|MiB|GiB|MB|µs|keys?|chunks?|calls?"


class OldWord(NamedTuple):
    """What must not be written (`pattern`), what to write `instead`, and phrases that the pattern must find."""

    pattern: str
    instead: str
    examples: tuple[str, ...]


OLD_WORDS = (
    OldWord(r"\b(gives|made ready|makes ready)\b", "return, yield, emit", ("gives a list", "what is made ready")),
    OldWord(r"\b(tells?|told)\b", "say, report, send", ("is told of it", "tells the client")),
    OldWord(r"\b(guess|guesses|guessed|guessing|foretold|mistaken)\b", "draft, accepted, rejected", ("all guesses",)),
    OldWord(
        r"\b(unforked|untold|awaited_|WaitingLine|waiting lines?|held sequences?)\b",
        "forks_pending, undelivered, waiting queue, preempted",
        ("self.unforked", "the waiting line", "a held sequence"),
    ),
    OldWord(r"\b(BRIEF|brief prompts?|brief ones)\b", "short prompt", ("BRIEF = 1024", "a brief prompt")),
    OldWord(
        r"\b(all|running|the) (writers|readers)\b|\b(writers?|readers?) (run|wait|decode|prefill)s?\b",
        "decoding, prefilling sequence",
        ("all writers", "readers wait"),
    ),
    OldWord(r"\bworks: list|\bclass Work\b|\bfor work in works\b", "scheduled sequences", ("works: list[Work]",)),
    OldWord(
        r"\bprompts? (is|are|was|were|has been|have been|being) read\b|\breads? (a|the|its|their) prompts?\b",
        "prefill",
        ("the prompt is read", "reads its prompt"),
    ),
    OldWord(
        r"\b(Piece|PieceOf|piece_of|Screen|Screened|screened|ThoughtCounter|thoughts)\b",
        "text delta, token bytes, filter, reasoning",
        ("class Piece", "the screened text", "thoughts"),
    ),
    OldWord(
        r"\b(drawn tokens?|tokens? (is|are|was) drawn|DRAWING_REVISION|(draw|draws|drawing) (a |the |its )?tokens?)\b",
        "sample",
        ("drawn tokens", "the token is drawn", "draws a token", "drawing tokens"),
    ),
    OldWord(
        r"\b(chain_of|blocks_short|hand_back|open_closed|as_told|uncollected)\b|\bvalues\.(truth|whole)\b",
        "block hash, drop file pages, convert error, gc paused, pluralize, boolean, integer",
        ("chain_of(prompt)", "hand_back()", "values.truth(x)"),
    ),
    OldWord(r"\b(Contest|contest|faults\(|def faults)\b", "lane tuner, problems", ("class Contest", "def faults")),
    OldWord(r"\bmend(s|ed|ing)?\b", "fix", ("what was mended",)),
    OldWord(
        r"\b_?(MOST|LEAST|GREATEST|GENTLE|HOPE|UNNOTICED|MOMENT)(_[A-Z_]+)?\b",
        "MAX_…, MIN_…, or what the constant is",
        ("MOST_GUESSES", "_LEAST", "HOPE = 4"),
    ),
    OldWord(r"\b(asker|whom|engine's death|engine died)\b", "client, caller; crash reason", ("the asker", "whom")),
    OldWord(rf"\b({COUNTED}) an? ({UNITS})\b", "per", ("8 bytes a token", "one line a request")),
    OldWord(r"\b\d[\d,]* (tokens|rows|blocks) a step\b", "per step", ("64 rows a step",)),
    OldWord(
        r"(?<!here )\b(is|are) no (valid|name|setting|flag|model|address|file|folder|number|key|decoder|text|token)\b",
        "is not a …",
        ("is no token", "is no setting"),
    ),
)


EXCEPTIONS = {
    "tests/test_words.py",
    "docs/glossary.md",  # explains them
    "docs/reference/parity.md",  # quotes other APIs
    "src/onward/models/storyteller/CREDITS.md",
    "src/onward/models/storyteller/README.md",  # tells stories
}
PLAIN_ENGLISH = (
    "gives its ",
    "gives all its ",
    "gives the same ",
    "gives each thread",
    "told her mom",
    "tell me a story",
)
"""Uses that are not of the dialect: a sequence gives its blocks back."""


def files() -> list[Path]:
    """Python sources and pages that git tracks, or all of them where there is no checkout."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "*.py", "*.md", "*.toml", "*.yml", "*.yaml", "*.service", "Makefile", "Dockerfile"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        folders = (ROOT / name for name in ("src", "tests", "benchmarks", "training", "docs"))
        listed = [str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("*.[pm][yd]")]
    return [ROOT / name for name in listed if name not in EXCEPTIONS]


@pytest.mark.parametrize("word", OLD_WORDS, ids=lambda word: word.examples[0])
def test_old_words_do_not_come_back(word: OldWord) -> None:
    found = []
    for path in files():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            for phrase in PLAIN_ENGLISH:
                line = line.replace(phrase, "")
            if re.search(word.pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, f"say {word.instead!r} instead:\n" + "\n".join(found)


@pytest.mark.parametrize("word", OLD_WORDS, ids=lambda word: word.examples[0])
def test_every_pattern_finds_its_examples(word: OldWord) -> None:
    assert all(re.search(word.pattern, example) for example in word.examples)


def test_the_check_reads_the_sources() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in files()}
    assert {"README.md", "src/onward/engine/step.py", "benchmarks/README.md", "training/README.md"} <= names
