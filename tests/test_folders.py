"""Folders of the user, whatever the environment says."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.folders import cache_folder, exists, expanded


@pytest.mark.parametrize(("stated", "found"), [("/a/b", "/a/b"), ("", "/home/me/.cache"), ("rel", "/home/me/.cache")])
def test_a_cache_folder_does_not_depend_on_the_working_folder(
    stated: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", stated)
    assert cache_folder() == Path(found) / "onward"


@pytest.mark.parametrize("path", ["~nobody-of-this-name/a", "a" * 300, "a\0"])
def test_a_path_that_cannot_be_looked_for_is_nowhere_and_stays_as_it_is(path: str) -> None:
    assert not exists(path) and expanded(path) == Path(path)


def test_a_path_may_begin_with_a_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert exists("~") and not exists("~/a") and expanded("~/a") == tmp_path / "a"
