"""Shared by the tests of KV block files and of the cache on a disk."""

from __future__ import annotations

import pytest

from onward.engine import block_files, disk_cache


@pytest.fixture(autouse=True)
def slow_full_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of the tests may be slow, and its disk full."""
    monkeypatch.setattr(block_files, "MIN_FREE_BYTES", 0)
    monkeypatch.setattr(disk_cache, "READ_SECONDS", 600.0)
    monkeypatch.setattr(disk_cache, "PREFIX_CACHE_SAVE_SECONDS", 600.0)
