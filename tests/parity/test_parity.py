"""The parity table, one test per row; all of it over real sockets too."""

from __future__ import annotations

import pytest

from .rows import ROWS
from .servers import Servers
from .table import Row


@pytest.mark.parametrize("row", [row for row in ROWS if not row.needs_socket], ids=lambda row: row.id)
def test_row(servers: Servers, row: Row) -> None:
    row.check(servers[row.on])


@pytest.mark.slow
def test_all_rows_over_sockets(processes: Servers) -> None:
    """At once: a test each would be a thousand more for the same reason."""
    failed = [problem for row in ROWS if (problem := row.problem(processes[row.on])) is not None]
    assert failed == []
