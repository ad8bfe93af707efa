"""Shared by the tests of KV block files."""

from __future__ import annotations

import pytest

from onward.engine import block_files


@pytest.fixture(autouse=True)
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the tests may be full."""
    monkeypatch.setattr(block_files, "MIN_FREE_BYTES", 0)
