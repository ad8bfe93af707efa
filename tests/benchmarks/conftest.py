"""For the tests of the benchmarks."""

from __future__ import annotations

import pytest


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the memory is measured on one megabyte: to write 256 of them takes longer than what else a test
    measures."""
    from benchmarks import products

    monkeypatch.setattr(products, "READ_BYTES", 1 << 20)
