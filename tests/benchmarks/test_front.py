"""The benchmark of the path from engine to client streams every token. Speed is not tested."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from benchmarks.front import measured


@pytest.mark.parametrize("fields", [{}, {"logprobs": 5}])
def test_each_repetition_streams_every_token(fields: dict[str, Any]) -> None:
    assert len(asyncio.run(measured(2, fields))) == 2
