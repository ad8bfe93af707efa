"""Folders of the user, whatever the environment says."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.folders import cache_folder


@pytest.mark.parametrize(("stated", "found"), [("/a/b", "/a/b"), ("", "/home/me/.cache"), ("rel", "/home/me/.cache")])
def test_a_cache_folder_does_not_depend_on_the_working_folder(
    stated: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", stated)
    assert cache_folder() == Path(found) / "onward"
