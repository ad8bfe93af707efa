"""The commands of the tutorial and of the guides to scoring and batches print what these pages show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from tests.processes import served
from tests.waiting import PATIENCE_SECONDS

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = {"tutorial.md": 15, "how-to/score.md": 5, "how-to/batches.md": 4}
"""The pages, and how many commands at least each of them has."""
DEFAULT_URL = "http://127.0.0.1:8000"


def commands(page: str) -> list[tuple[str, str]]:
    """(command, what it shows) of every console block."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
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
@pytest.mark.skipif(not (Path(sys.prefix) / "bin/activate").exists(), reason="needs an environment, as make makes it")
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
    """The output of the first command that fails or differs from the page; None if all are as shown. What a section
    starts is the server of its other commands. The folder is a clone's: it has the environment that the tests run in.
    """
    (folder / ".venv").symlink_to(sys.prefix)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    with ExitStack() as servers:
        for command, shown in section:
            if command.startswith("onward serve"):
                server, said = servers.enter_context(started(command, folder, environment, len(shown.splitlines())))
                status = 0
            else:
                done = subprocess.run(
                    ["bash", "-c", command.replace(DEFAULT_URL, server)],
                    cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                )  # fmt: skip
                status, said = done.returncode, done.stdout
            if status != 0 or not matches(shown, said):
                return f"{command}\nshould show\n{shown}\nand shows\n{said}"
    return None


@contextmanager
def started(command: str, folder: Path, environment: dict[str, str], num_lines: int) -> Iterator[tuple[str, str]]:
    """Run a server on a free port; yield its URL, and the lines that it prints first, as they are on its usual port.
    Its log, which a terminal does not show, is a file of the folder."""
    log = folder / "server.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env={**environment, "ONWARD_PORT": "0"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        said = "".join(islice(process.stdout, num_lines))
        url = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert url is not None, said + log.read_text(encoding="utf-8")
        yield url[0], said.replace(url[0], DEFAULT_URL)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)


def matches(shown: str, said: str) -> bool:
    """Whether the output matches what the page shows; `…` matches anything."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split("…"))
    return re.fullmatch(pattern, said.strip(), re.DOTALL) is not None


def test_only_wildcards_match_other_characters() -> None:
    assert matches("a … c", "a b\nb c") and matches("…", "x")
    assert not matches("a … c", "a b d") and not matches("a", "ab")


def test_commands_are_found_with_their_continuations_and_output() -> None:
    page = "```console\n$ a\n> b\nout\n$ c\n```\n"
    assert commands(page) == [("a\nb", "out"), ("c", "")]
