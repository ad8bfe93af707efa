"""The parity table against real servers, one test per row."""

from __future__ import annotations

import pytest

from .rows import ROWS
from .servers import Servers
from .table import Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_row(servers: Servers, row: Row) -> None:
    row.check(servers[row.on])
