"""The playground's sources: their own tests, and that the committed build is up to date. Needs Node."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onward.server.pages.layout import FOLDER
from tests.playground.browser import SOURCES, needs_node, node_program

pytestmark = [pytest.mark.slow, needs_node]
PAGES = ("playground", "reference", "usage")
BUILT = (*(f"{page}.{kind}" for page in PAGES for kind in ("js", "css")), "LICENSES.txt")


def run(*command: str, folder: Path = SOURCES) -> str:
    """Run a program to its end; return what it printed."""
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_unit_tests_pass() -> None:
    run(*node_program("npx", "vitest", "run", "--testTimeout", "120000"))  # 5 s are too few on a busy machine


def test_the_sources_are_well_typed() -> None:
    run(*node_program("npx", "tsc", "--noEmit"))


def test_the_types_are_those_of_the_openapi_document(tmp_path: Path) -> None:
    document = tmp_path / "openapi.json"
    document.write_text(run(sys.executable, "openapi.py"), encoding="utf-8")
    run(*node_program("npx", "openapi-typescript", str(document), "--output", str(tmp_path / "schema.ts")))
    written, committed = (tmp_path / "schema.ts", SOURCES / "src/api/schema.ts")
    assert written.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8"), "Run `make playground`."


def test_the_built_files_are_made_of_these_sources(tmp_path: Path) -> None:
    for page in PAGES:
        run(*node_program("npx", "vite", "build", "--mode", page, "--outDir", str(tmp_path)))
    for name in BUILT:
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), f"{name}: run `make playground`."


def test_the_licences_of_what_is_built_in_are_shipped() -> None:
    text = (FOLDER / "LICENSES.txt").read_text(encoding="utf-8")
    for name in json.loads((SOURCES / "package.json").read_text(encoding="utf-8"))["dependencies"]:
        assert re.search(rf"^## {re.escape(name)} - [\d.]+ \([\w.-]+\)$", text, re.MULTILINE), (
            f"{name} with its SPDX identifier"
        )
    assert text.count("Permission is hereby granted") >= 5


def test_versions_are_pinned() -> None:
    package = json.loads((SOURCES / "package.json").read_text(encoding="utf-8"))
    versions = [*package["dependencies"].values(), *package["devDependencies"].values()]
    assert versions and all(version[0].isdigit() for version in versions)
    assert (SOURCES / "package-lock.json").is_file()
    assert shutil.which("npm")
