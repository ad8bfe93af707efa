"""2,400 diverse lines to tokenize, the same ones on every machine."""

from __future__ import annotations

import random

NUM_LINES = 2400
_WORDS = (
    "the a of and to in is it's don't we'll I'd they're Tokenizer naïve café über résumé façade jalapeño Zürich "
    "antidisestablishmentarianism COVID-19 3.14159 1,000,000 2026-11-23 0xDEADBEEF http://example.com/a?b=c&d=e "
    "user@example.org C++ C# F# .NET node.js i18n x86_64 don’t “quoted” ‘single’ em—dash en–dash ellipsis… №5 §12 "
    "10% $9.99 €5 £3 ¥100 ½ ²³ H₂O x² ∑∫∂ ≤≥≠ →⇒ ✓✗ ★ © ® ™ _under_score_ camelCase PascalCase SCREAMING "
    "kebab-case"
)
WORDS = _WORDS.split()
CODE = (
    "def f(x: int) -> int:", "    return x ** 2  # square", "\tif (a && b || !c) {", "}", "for(int i=0;i<n;++i)",
    "lambda x: x+1", "#include <stdio.h>", 'print(f"{x!r:>10}")', "SELECT * FROM t WHERE a='b';", "<div class=\"a\">",
    "    " * 5 + "pass", "\t\t\tx = [1,2,3]", "const f = (a, b) => a ?? b;",
    "fn main() { println!(\"{}\", 1_000u64); }",
    "a[i][j] += b[i]*c[j];", "// TODO: fix", "/* block */", "import os, sys", "@decorator", "x: y", "- item",
    "| a | b |",
    "$$\\int_0^1 x\\,dx$$", "\\begin{equation}", "`code`", "```python", "### Heading", "**bold** _it_", "\r", "a\rb",
)  # fmt: skip
SCRIPTS = (
    (0x4E00, 0x9FA5), (0x3041, 0x3096), (0x30A1, 0x30FA), (0xAC00, 0xD7A3), (0x0621, 0x064A), (0x05D0, 0x05EA),
    (0x0905, 0x0939), (0x0E01, 0x0E3A), (0x0410, 0x044F), (0x0391, 0x03C9), (0x0531, 0x0556), (0x10D0, 0x10F0),
    (0x1F300, 0x1F64F), (0x1F680, 0x1F6C5), (0x2200, 0x22FF), (0x20000, 0x20100), (0x1D400, 0x1D433), (0x0300, 0x036F),
)  # fmt: skip
"""First and last code points of scripts, emoji, symbols and combining marks."""
CLUSTERS = (
    "👩‍👩‍👧‍👦",
    "🏳️‍🌈",
    "🇩🇪🇫🇷",
    "é",
    "ñ̃",
    "한",
    "กำ",
    "क्षि",
    "‏עברית‎",
    "👍🏽",
    "☕️",
    "…",
    "fi",
    "\u00a0",
    "\u3000",
    "\u200b",
    "\ufeff",
)
SPACES = (" ", "  ", "   ", "    ", "\t", " \t ", "        ", "\u00a0", "\u2003", "\u3000", "\v", "\f")
CONTROLS = ("\x00", "\x01", "\x1b[0m", "\x7f", "\x85", "\u2028", "\ufffd", "\ue000", "\U0010ffff")


def lines() -> list[str]:
    """The lines, none empty and none with a line feed at its end only."""
    random_ = random.Random(20261123)
    makers = (_prose, _code, _script, _mixed, _spaced, _numbers, _controls, _paragraph)
    return [makers[number % len(makers)](random_) or "x" for number in range(NUM_LINES)]


def _prose(random_: random.Random) -> str:
    return " ".join(random_.choices(WORDS, k=random_.randint(1, 14)))


def _code(random_: random.Random) -> str:
    return "\n".join(random_.choices(CODE, k=random_.randint(1, 4)))


def _script(random_: random.Random) -> str:
    low, high = random_.choice(SCRIPTS)
    return "".join(chr(random_.randint(low, high)) for _ in range(random_.randint(1, 30)))


def _mixed(random_: random.Random) -> str:
    parts = [random_.choice((_prose, _script, _numbers))(random_) for _ in range(3)]
    return "".join(random_.sample([*parts, *random_.choices(CLUSTERS, k=3), *random_.choices(SPACES, k=2)], 8))


def _spaced(random_: random.Random) -> str:
    pieces = [random_.choice((random_.choice(WORDS), "", "\n", "\n\n", "!?", "...")) for _ in range(6)]
    return "".join(piece + random_.choice(SPACES) for piece in pieces)


def _numbers(random_: random.Random) -> str:
    digits = "".join(random_.choices("0123456789", k=random_.randint(1, 24)))
    return random_.choice(
        (digits, f"{digits[:3]}.{digits}", f"-{digits}e{digits[:2]}", f"a{digits}b{digits}", f"{digits} km")
    )


def _controls(random_: random.Random) -> str:
    return "".join(random_.choice((*CONTROLS, *WORDS, *CLUSTERS)) for _ in range(6))


def _paragraph(random_: random.Random) -> str:
    sentences = [_prose(random_).capitalize() + random_.choice((".", "!", "?", "。", ":", ";)")) for _ in range(4)]
    return random_.choice(("\n", "\n\n", " ", "  \n")).join(sentences)
