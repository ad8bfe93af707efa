"""Docs do what they say: every Python block runs, every curl answers, generated pages are up to date."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .processes import served

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DEFAULT_URL = "http://127.0.0.1:8000"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def storyteller() -> str:
    with served(model="storyteller") as url:
        yield url


@pytest.mark.real
@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "docs/how-to/python.md", ROOT / "docs/how-to/predictions.md"],
    ids=lambda page: page.stem,
)
def test_the_python_of_a_page_runs(page: Path, storyteller: str) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    written = io.StringIO()
    found = blocks(page, "python")
    assert found
    with contextlib.redirect_stdout(written):
        for block in found:
            exec(compile(block.replace(DEFAULT_URL, storyteller), page.name, "exec"), names)
    assert len(written.getvalue()) > 20


@pytest.mark.real
def test_the_curl_of_the_readme_answers(storyteller: str) -> None:
    (command,) = blocks(ROOT / "README.md", "bash")
    ran = subprocess.run(
        ["bash", "-c", command.replace(DEFAULT_URL, storyteller).replace("curl ", "curl -s ")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(ran.stdout)["choices"][0]["text"]


def test_generated_pages_are_up_to_date() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + "Run `make docs`."


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_setting_named_in_the_docs_exists() -> None:
    from onward.settings import options

    flags = {option.flag for option in options()} | {"--config", "--help", "--check", "--version"}
    flags |= {"--no-" + flag.removeprefix("--") for flag in flags}
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", ROOT / "docs/how-to/serve.md"))
    known = flags | {"--prompt", "--max-tokens", "--weight-format", "--model", "--temperature"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", pages)) <= known
