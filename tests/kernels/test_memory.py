"""Memory of kernels: what rows have room for."""

from __future__ import annotations

import mmap

import pytest

from onward.kernels.memory import Rows


@pytest.mark.parametrize("row_bytes", [64, 960, 2048, 2304, 12_288])
def test_rows_that_are_spread_end_with_the_last_one(row_bytes: int) -> None:
    """What is between rows is nobody's, so that guard pages and checks of tapes find who reads past a row."""
    count = 5
    rows = Rows.spread(count, row_bytes)
    assert rows.stride >= row_bytes and rows.stride // 64 % 16 == 8
    assert rows.memory.nbytes == max((count - 1) * rows.stride + row_bytes, mmap.PAGESIZE)
    rows.require(count, row_bytes)
    if rows.stride > row_bytes and rows.memory.nbytes > mmap.PAGESIZE:
        with pytest.raises(ValueError, match="are not within"):
            rows.require(count, row_bytes + 64)
