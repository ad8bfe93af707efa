"""The picture and the table of the rooms in docs/maintainers.md: from the table of tests/test_layers.py, and the first
line of each room's docstring."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "onward"
LEVEL_NAMES = {
    6: "who asks: HTTP, a terminal, Python",
    5: "APIs, and the wiring",
    4: "who answers: engines here and elsewhere",
    3: "what a completion means; what computes; where weights are",
    2: "how tokens are made; model files",
    1: "pure parts",
    0: "what any program needs",
}
WIDTH, MARGIN, GAP = 960, 16, 8
LABEL_HEIGHT, BOX_HEIGHT, LETTER = 22, 30, 7.4


def layers() -> dict[str, int]:
    """Return the level of each room, but for the package's own modules."""
    sys.path.insert(0, str(ROOT))
    try:
        from tests.test_layers import LEVELS
    finally:
        sys.path.remove(str(ROOT))
    return {room: level for room, level in LEVELS.items() if level in LEVEL_NAMES}


def purpose(room: str) -> str:
    """Return the first line of a room's docstring."""
    folder = SOURCE / room.replace(".", "/")
    module = folder.with_suffix(".py")
    path = module if module.is_file() else folder / "__init__.py"
    found = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert found, f"{path} has no docstring"
    return " ".join(found.split("\n\n")[0].split())


def rooms_table() -> str:
    """Return the rooms as a table, from the faces down."""
    rooms = layers()
    lines = ["| room | level | what it is |", "|---|---|---|"]
    for level in LEVEL_NAMES:
        for room in sorted(room for room, of in rooms.items() if of == level):
            lines.append(f"| `{room.replace('.', '/')}` | {level} | {purpose(room).replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def rooms_picture() -> str:
    """Return the rooms as SVG: one band per level, in which rooms stand beside each other."""
    rooms, bands, top = layers(), list[str](), MARGIN
    for level, name in LEVEL_NAMES.items():
        boxes, height = _boxes(sorted(room for room, of in rooms.items() if of == level), top + LABEL_HEIGHT)
        bands.append(
            f'<rect class="band" x="{MARGIN}" y="{top}" width="{WIDTH - 2 * MARGIN}" '
            f'height="{LABEL_HEIGHT + height}" rx="6"/>\n'
            f'<text class="level" x="{2 * MARGIN}" y="{top + 16}">{level} · {escape(name)}</text>\n' + "\n".join(boxes)
        )
        top += LABEL_HEIGHT + height + GAP
    arrow = (
        f'<text class="level" x="{WIDTH - 2 * MARGIN}" y="{top + 8}" text-anchor="end">'
        "A room imports from the levels below it. A request goes down once, events come up once.</text>"
    )
    return "\n".join([*_head(top + 2 * MARGIN), *bands, arrow, "</svg>"]) + "\n"


def _boxes(rooms: list[str], top: int) -> tuple[list[str], int]:
    """Return the boxes of a band, and the height of their lines."""
    boxes, x, y = list[str](), 2 * MARGIN, top
    for room in rooms:
        name = room.replace(".", "/")
        width = round(len(name) * LETTER) + 2 * MARGIN
        if x + width > WIDTH - 2 * MARGIN:
            x, y = 2 * MARGIN, y + BOX_HEIGHT + GAP
        boxes.append(
            f'<g><title>{escape(purpose(room))}</title><rect class="room" x="{x}" y="{y}" width="{width}" '
            f'height="{BOX_HEIGHT}" rx="4"/>'
            f'<text x="{x + width / 2:g}" y="{y + 20}" text-anchor="middle">{name}</text></g>'
        )
        x += width + GAP
    return boxes, y + BOX_HEIGHT + GAP - top


def _head(height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-label="The rooms of Onward, by level" font-family="ui-monospace, monospace" font-size="12.5">'
    )
    yield "<!-- Written by docs/generate.py. Do not edit. -->"
    yield (
        "<style>.band{fill:#f3f4f6}.room{fill:#fff;stroke:#9ca3af}.level{fill:#4b5563;font-family:sans-serif}"
        "text{fill:#111827}@media(prefers-color-scheme:dark){.band{fill:#1f2937}.room{fill:#111827;stroke:#6b7280}"
        "text{fill:#f3f4f6}.level{fill:#d1d5db}}</style>"
    )
