"""The commands of the tutorial and of the guides to scoring and batches print what these pages show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.processes import served

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = {"tutorial.md": 15, "how-to/score.md": 5, "how-to/batches.md": 4}
"""The pages, and how many commands at least each of them has."""
DEFAULT_URL = "http://127.0.0.1:8000"


def commands(page: str) -> list[tuple[str, str]]:
    """(command, what it shows) of every console block that is not marked as not run."""
    found = []
    for skipped, block in re.findall(
        r"(<!-- not run[^\n]*-->\n)?```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    ):
        if skipped:
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            more = next((index for index, line in enumerate(lines[1:], 1) if not line.startswith("> ")), len(lines))
            command = "\n".join([lines[0], *(line[2:] for line in lines[1:more])])
            found.append((command, "\n".join(lines[more:])))
    return found


@pytest.fixture(scope="module")
def storyteller() -> Iterator[str]:
    with served(model="storyteller") as url:
        yield url


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_shows_what_the_page_shows(
    page: str, storyteller: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Sections stand on their own: two are run at a time, each in a folder of its own."""
    sections = [found for part in (DOCS / page).read_text(encoding="utf-8").split("\n## ") if (found := commands(part))]
    assert sum(map(len, sections)) >= PAGES[page]
    folders = [tmp_path_factory.mktemp("section") for _ in sections]
    with ThreadPoolExecutor(2) as pool:
        wrong = list(pool.map(partial(first_difference, storyteller), sections, folders))
    assert not any(wrong), "\n".join(filter(None, wrong))


def first_difference(server: str, section: list[tuple[str, str]], folder: Path) -> str | None:
    """What the first command that fails or shows something else said, None when all is as shown."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command, shown in section:
        done = subprocess.run(
            ["bash", "-c", command.replace(DEFAULT_URL, server)],
            cwd=folder, env={**os.environ, "PATH": path}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0 or not matches(shown, done.stdout):
            return f"{command}\nshould show\n{shown}\nand shows\n{done.stdout}"
    return None


def matches(shown: str, said: str) -> bool:
    """Whether the output matches what the page shows; `…` matches anything."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split("…"))
    return re.fullmatch(pattern, said.strip(), re.DOTALL) is not None


def test_only_wildcards_match_other_characters() -> None:
    assert matches("a … c", "a b\nb c") and matches("…", "x")
    assert not matches("a … c", "a b d") and not matches("a", "ab")


def test_commands_are_found_with_their_continuations_and_output() -> None:
    page = "```console\n$ a\n> b\nout\n$ c\n```\n<!-- not run: x -->\n```console\n$ d\n```\n"
    assert commands(page) == [("a\nb", "out"), ("c", "")]
