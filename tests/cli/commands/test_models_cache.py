"""`onward models cache`: what is converted, and its removal."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from onward.runtimes.openvino.conversion_cache import FOLDER
from tests.cli.conftest import onward


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with three conversions of 1,000 bytes, the first one used last, and an unfinished one."""
    monkeypatch.setenv("ONWARD_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("smol-1", "gemma-2", "qwen-3", ".part-4")):
        folder = tmp_path / FOLDER / name
        folder.mkdir(parents=True)
        (folder / "openvino_model.bin").write_bytes(bytes(1000))
        os.utime(folder, (1000 - number, 1000 - number))
    return tmp_path / FOLDER


def names() -> list[str]:
    result = onward("models", "cache", "--format", "json")
    assert result.exit_code == 0, result.stderr
    return [each["name"] for each in json.loads(result.stdout)["data"]]


def test_conversions_are_listed_the_one_used_last_first() -> None:
    assert names() == ["smol-1", "gemma-2", "qwen-3"]
    shown = onward("models", "cache", "--format", "pretty").stdout
    assert "smol-1" in shown


def test_one_is_removed_by_its_name(cache: Path) -> None:
    result = onward("models", "cache", "--remove", "gemma-2")
    assert result.exit_code == 0 and "Removed gemma-2 (1.0 kB)" in result.stderr
    assert names() == ["smol-1", "qwen-3"] and not (cache / "gemma-2").exists()


def test_an_unknown_name_removes_nothing() -> None:
    result = onward("models", "cache", "--remove", "smol-1", "--remove", "gema-2")
    assert result.exit_code == 4 and "no converted model 'gema-2'. Did you mean 'gemma-2'?" in result.stderr
    assert len(names()) == 3


def test_a_limit_removes_what_was_used_longest_ago() -> None:
    assert onward("models", "cache", "--limit", "2KB").exit_code == 0
    assert names() == ["smol-1", "gemma-2"]
    wrong = onward("models", "cache", "--limit", "much")
    assert wrong.exit_code == 2 and "--limit: must be a size" in wrong.stderr


def test_all_are_removed() -> None:
    assert onward("models", "cache", "--all").exit_code == 0
    assert names() == []
