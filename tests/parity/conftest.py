"""The servers of the parity rows, started once per session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .servers import Servers


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    running = Servers()
    yield running
    logs = running.close()
    assert not any("Traceback" in log for name, log in logs.items() if name != "broken"), logs
    assert "the secret reason" in logs.get("broken", "the secret reason"), "the cause of an error must be logged"
